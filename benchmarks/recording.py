"""What recording costs: a save bare and supervised, in one run, and the enumeration.

Run as `python benchmarks/recording.py [--megabytes 100 1000] [--repeats 3]`. Ratios are of the
best times of one run on one machine; files lie on `--folder`, a tmpfs by default, so
that a disk does not hide the overhead.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

SAVES = """
import json, sys, time, torch
from pathlib import Path
folder, megabytes, repeats = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
from safetensors.torch import save_file
value = {"w": torch.ones(megabytes * 250_000)}
times = {"torch.save": [], "safetensors": []}
for i in range(repeats):
    for name, save in (("torch.save", torch.save), ("safetensors", save_file)):
        path = str(folder / name)
        began = time.perf_counter()
        save(value, path)
        times[name].append(time.perf_counter() - began)
        Path(path).unlink()
Path(sys.argv[4]).write_text(json.dumps(times))
"""
LOOP = """
import json, sys, time, torch
from pathlib import Path
torch.set_num_threads(1)
net, x = torch.nn.Linear(256, 256), torch.ones(64, 256)
opt = torch.optim.AdamW(net.parameters())
best = 1e9
for _ in range(5):
    began = time.perf_counter()
    for _ in range(200):
        opt.zero_grad(); net(x).square().mean().backward(); opt.step()
    best = min(best, time.perf_counter() - began)
Path(sys.argv[4]).write_text(json.dumps({"training loop, 200 steps": [best]}))
"""


def timed(code, work, megabytes, repeats, *, supervised):
    """Run the program; return its own timings by name, in seconds."""
    from spotchaos.launch.supervisor.supervisor import Options, run_supervised

    root = work / "root"
    root.mkdir()
    told = work / "told.json"
    command = [
        sys.executable,
        "-c",
        code,
        str(root),
        str(megabytes),
        str(repeats),
        str(told),
    ]
    if supervised:
        options = Options(roots=(str(root),), oplog=str(work / "ops"), real_fsync=False)
        status = run_supervised(command, options)
    else:
        status = os.spawnv(os.P_WAIT, sys.executable, command)
    assert status == 0, status
    times = json.loads(told.read_text())
    for path in (root, work / "ops", work / "ops.data"):
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return times


def recording(work, megabytes, repeats):
    """Compare bare and supervised saves of one size."""
    for code in (SAVES, LOOP) if megabytes == 100 else (SAVES,):
        bare = timed(code, work, megabytes, repeats, supervised=False)
        under = timed(code, work, megabytes, repeats, supervised=True)
        for name in bare:
            ratio = min(under[name]) / min(bare[name])
            print(
                f"{megabytes:5} MB  {name:26} bare {min(bare[name]) * 1000:8.1f} ms  "
                f"recorded {min(under[name]) * 1000:8.1f} ms  {ratio:5.2f}x",
                flush=True,
            )


def enumeration(work):
    """Time the states of four saves of a toy, model by model."""
    from spotchaos.launch.supervisor.supervisor import Options, run_supervised
    from spotchaos.persistence import oplog
    from spotchaos.persistence.crash_states import Tally, distinct, enumerate_states
    from spotchaos.persistence.history import History
    from spotchaos.persistence.models import MODELS

    root = work / "toy"
    root.mkdir()

    def in_place(step):
        yield root / "last"

    def numbered(step):
        yield root / "new.tmp"
        (root / "new.tmp").replace(root / f"step-{step}")
        if step > 2:
            (root / f"step-{step - 2}").unlink()

    for protocol in (in_place, numbered):

        def program(protocol=protocol):
            for step in range(1, 5):
                for path in protocol(step):
                    with path.open("wb", buffering=0) as file:
                        for part in range(9):
                            file.write(bytes([step * 16 + part]) * 4000)
            return 0

        shutil.rmtree(root)
        root.mkdir()
        options = Options(roots=(str(root),), oplog=str(work / "ops"))
        assert run_supervised(program, options) == 0
        for model in MODELS.values():
            seconds, tally = [], Tally()
            for _ in range(3):
                began, tally = time.process_time(), Tally()
                history = History(oplog.read(work / "ops"))
                distinct(history, enumerate_states(history, model, tally=tally), tally)
                seconds.append(time.process_time() - began)
            print(
                f"{protocol.__name__:9} {model.name:6} {tally.drawn:6} drawn "
                f"{tally.by_recipe:5} by recipe {tally.by_content:5} by content "
                f"{min(seconds):7.3f} CPU-s"
            )


def main():
    """Print one line for each measurement."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--megabytes", type=int, nargs="*", default=[1, 100, 1000])
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--folder", default="/dev/shm")
    chosen = options.parse_args()
    work = Path(tempfile.mkdtemp(prefix="spotchaos-recording-", dir=chosen.folder))
    try:
        enumeration(work)
        for megabytes in chosen.megabytes:
            recording(work, megabytes, chosen.repeats)
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
