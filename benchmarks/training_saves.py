"""Stall, time to durability and load of a save, beside torch.save and fsync.

    python benchmarks/training_saves.py [MEGABYTES] [ROUNDS]

Prints one line for each figure with its bound. Each figure is the median of the rounds,
taken in turns with what it is compared with, so that a busy machine slows both alike.
"""

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

from spotchaos.training.background import BackgroundSaver
from spotchaos.training.checkpoint import STATE, CheckpointStore


def main():
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    state = {f"w{i}": torch.randn(250_000) for i in range(megabytes)}
    times = {
        name: [] for name in ("torch", "ours", "stall", "copy", "load", "torch load")
    }
    with tempfile.TemporaryDirectory(dir=".") as folder:
        store = CheckpointStore(Path(folder, "ours"), keep=1)
        saver = BackgroundSaver(lambda state, step: store.save(state, step=step))
        plain = Path(folder, "plain.pt")
        saver.save(state, 0)  # the first save makes the pool
        saver.wait()
        room = {name: torch.empty_like(t) for name, t in state.items()}
        for step in range(1, rounds + 1):
            times["torch"].append(timed(lambda: save_plainly(state, plain)))
            times["ours"].append(timed(lambda s=step: store.save(state, step=2 * s)))
            times["stall"].append(timed(lambda s=step: saver.save(state, 2 * s + 1)))
            saver.wait()
            times["copy"].append(
                timed(lambda: [room[n].copy_(t) for n, t in state.items()])
            )
            times["torch load"].append(
                timed(lambda: torch.load(plain, weights_only=True))
            )
            times["load"].append(timed(store.load_latest))
        size = (store.newest().folder / STATE).stat().st_size
        pool = saver.snapshot_bytes
    medians = {name: statistics.median(each) for name, each in times.items()}
    print(f"{size / 1e6:.0f} MB, {rounds} rounds, seconds (median):")
    for name, seconds in medians.items():
        print(f"  {name:12s} {seconds:.3f}")
    bounds = [
        ("stall of training / torch.save + fsync", "stall", "torch", 0.12),
        ("time to durable / torch.save + fsync", "ours", "torch", 1.3),
        ("verified load / torch.load", "load", "torch load", 1.3),
    ]
    failed = 0
    for text, ours, theirs, bound in bounds:
        ratio = medians[ours] / medians[theirs]
        failed += ratio > bound
        print(
            f"{'ok ' if ratio <= bound else 'NOT'} {text}: {ratio:.3f} (bound {bound})"
        )
    print(
        f"    extra memory / state: {pool / sum(t.nbytes for t in state.values()):.2f}"
    )
    return 1 if failed else 0


def save_plainly(state, path):
    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def timed(work):
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
