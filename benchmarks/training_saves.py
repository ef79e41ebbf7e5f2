"""Stall, time to durability and load of a save, beside torch.save and fsync.

    python benchmarks/training_saves.py [MEGABYTES] [ROUNDS] [MEGABYTES OF ONE TENSOR]

What it is compared with writes a new file each time as well, and removes the one before:
to write over the only checkpoint is cheaper, since its memory is used again, and loses it.

Prints one line for each figure with its bound. In each round everything takes its turn
once, and a figure is the median over the rounds of the ratio within one round, so that a
busy machine slows both alike.
"""

import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

from spotchaos.training.background import BackgroundSaver
from spotchaos.training.checkpoint import STATE, CheckpointStore

BOUNDS = [
    ("stall of training / torch.save + fsync", "stall", "torch", 0.12),
    ("time to durable / torch.save + fsync", "ours", "torch", 1.3),
    ("verified load / torch.load", "load", "torch load", 1.3),
]


def main():
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    each = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    state = {f"w{i}": torch.randn(250_000 * each) for i in range(megabytes // each)}
    state_bytes = sum(tensor.nbytes for tensor in state.values())
    times = {}
    with tempfile.TemporaryDirectory(dir=".") as folder:
        store = CheckpointStore(Path(folder, "ours"), keep=1)
        saver = BackgroundSaver(lambda state, step: store.save(state, step=step))
        plain = Path(folder, "plain")
        plain.mkdir()
        # The first of each is not counted: it makes the pool, and fills caches.
        before = peak_bytes(anew=True)
        saver.save(state, 0)
        saver.wait()
        extra_bytes = peak_bytes() - before
        room = {name: torch.empty_like(t) for name, t in state.items()}
        turns = {
            "torch": lambda step: save_plainly(state, plain / f"{step}.pt"),
            "ours": lambda step: store.save(state, step=2 * step),
            "stall": lambda step: saver.save(state, 2 * step + 1),
            "copy": lambda step: [room[n].copy_(t) for n, t in state.items()],
            "torch load": lambda step: torch.load(
                plain / f"{step}.pt", weights_only=True
            ),
            "load": lambda step: store.load_latest(),
        }
        for step in range(rounds + 1):
            for name, work in turns.items():
                took_s = timed(work, step)
                saver.wait()
                if step:
                    times.setdefault(name, []).append(took_s)
        size = (store.newest().folder / STATE).stat().st_size
    print(
        f"{size / 1e6:.0f} MB in {len(state)} tensors, {rounds} rounds, "
        "seconds (median), of which CPU:"
    )
    for name, taken in times.items():
        wall, cpu = (statistics.median(one) for one in zip(*taken, strict=True))
        print(f"  {name:12s} {wall:.3f}  {cpu:.3f}")
    failed = 0
    for text, ours, theirs, bound in BOUNDS:
        pairs = zip(times[ours], times[theirs], strict=True)
        ratio = statistics.median(mine[0] / other[0] for mine, other in pairs)
        failed += ratio > bound
        print(
            f"{'ok ' if ratio <= bound else 'NOT'} {text}: {ratio:.3f} (bound {bound})"
        )
    copies = extra_bytes / state_bytes
    # A twentieth is for the buffers of the file.
    failed += copies > 1.05
    print(f"{'ok ' if copies <= 1.05 else 'NOT'} extra memory / state: {copies:.2f}")
    return 1 if failed else 0


def save_plainly(state, path):
    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    for old in path.parent.iterdir():
        if old != path:
            old.unlink()


def timed(work, step):
    """Return seconds, and seconds of this thread's CPU."""
    began, cpu = time.perf_counter(), time.thread_time()
    work(step)
    return time.perf_counter() - began, time.thread_time() - cpu


def peak_bytes(*, anew=False):
    """Return the most memory that this process had; `anew` from this moment on."""
    if anew:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])


if __name__ == "__main__":
    sys.exit(main())
