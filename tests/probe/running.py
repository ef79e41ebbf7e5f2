"""Running a script under the probe, without the harness, and reading its marks."""

import json
import os
import subprocess
import sys
from pathlib import Path

from spotchaos.trace.format import decode_lines

BOOT = Path(__file__).parents[2] / "spotchaos" / "probe" / "boot"


class Ran:
    """What a script printed, its exit status, and the marks of its processes."""

    def __init__(self, folder, process):
        self.folder = folder
        self.code = process.returncode
        self.out = process.stdout
        self.err = process.stderr
        self.processes = []
        for path in sorted(folder.glob("*.trace")):
            self.processes.append(list(decode_lines(path.read_bytes())))

    @property
    def marks(self):
        """The marks of the one process that trained, or of the only one."""
        trained = [m for m in self.processes if any(x["k"] == "step" for x in m)]
        (chosen,) = trained or [m for m in self.processes if m[0].get("role") == "main"]
        return chosen

    def of(self, kind, **values):
        return [
            m
            for m in self.marks
            if m["k"] == kind and all(m.get(k) == v for k, v in values.items())
        ]

    @property
    def bye(self):
        (bye,) = self.of("bye")
        return bye

    @property
    def steps(self):
        return len(self.of("step"))

    def states(self, at="step"):
        return self.of("state", at=at)


def environment(tmp_path, probe=True, **orders):
    """Return the environment of a script, and its trace folder."""
    trace = tmp_path / f"trace-{len(list(tmp_path.glob('trace-*')))}"
    trace.mkdir()
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    path = trace.with_suffix(".json")
    path.write_text(json.dumps({"trace": str(trace), "folder": str(work), **orders}))
    env = {k: v for k, v in os.environ.items() if not k.startswith("SPOTCHAOS")}
    env.update(OMP_NUM_THREADS="1", PYTHONHASHSEED="0", PYTHONDONTWRITEBYTECODE="1")
    env.pop("PYTHONPATH", None)
    if probe:
        env.update(PYTHONPATH=str(BOOT), SPOTCHAOS_ORDERS=str(path))
    return env, trace, work


def run(tmp_path, script, *, probe=True, argv=(), command=None, code=0, **orders):
    """Run `script` (its text) to its end, and return what it left behind."""
    env, trace, work = environment(tmp_path, probe, **orders)
    file = tmp_path / "program.py"
    file.write_text(script)
    process = subprocess.run(
        [*(command or [sys.executable]), str(file), *argv],
        env=env,
        cwd=work,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert code is None or process.returncode == code, process.stdout + process.stderr
    return Ran(trace, process)
