"""What the probe costs a step, and how fast it hashes.

    python benchmarks/probe.py [--steps N] [--repeat N]

Trains a perceptron of 10 million parameters with Adam on one torch thread, without the
probe and with each kind of fingerprints, in turns, and prints the medians of the steps.
Run it on a quiet machine; the CPU times hold on a busy one as well.

One process differs from the next by more than `saves` costs. That is therefore also told
from its parts: what is done at each step, shown by a model of the same modules that takes
no time itself, and the tenth part, as one step of ten is fingerprinted, of what `all` adds.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROGRAM = """
import sys, time, torch
torch.set_num_threads(1)
torch.manual_seed(0)
a, b, c, d, rows = (size // int(sys.argv[2]) for size in (1024, 3072, 2048, 256, 128))
net = torch.nn.Sequential(
    torch.nn.Linear(a, b), torch.nn.ReLU(), torch.nn.Linear(b, c),
    torch.nn.ReLU(), torch.nn.Linear(c, d))
opt = torch.optim.Adam(net.parameters(), 1e-3)
x = torch.randn(rows, a)
took = []
def clocks():
    return time.perf_counter(), time.thread_time(), time.process_time()
for step in range(int(sys.argv[1])):
    began = clocks()
    loss = net(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    took.append([now - then for now, then in zip(clocks(), began)])
for column in zip(*took[3:]):
    print(sorted(column)[len(column) // 2])
print(sum(p.numel() for p in net.parameters()))
"""

# Pages that the allocator gives back and takes again each step cost up to a fifth of it,
# now more and now fewer, with the probe and without.
KEEPS_ITS_MEMORY = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
}


def seconds_a_step(kind, steps, scale=1):
    """Return the median step of one run by each clock; `kind` None is a run without the probe.

    `scale` divides each width of the model.
    """
    with tempfile.TemporaryDirectory() as folder:
        orders = Path(folder, "orders.json")
        trace = Path(folder, "trace")
        trace.mkdir()
        orders.write_text(
            json.dumps({"trace": str(trace), "folder": folder, "fingerprint": kind})
        )
        env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        env.update(KEEPS_ITS_MEMORY)
        if kind is not None:
            boot = ROOT / "spotchaos" / "probe" / "boot"
            env.update(PYTHONPATH=str(boot), SPOTCHAOS_ORDERS=str(orders))
        command = [sys.executable, "-c", PROGRAM, str(steps), str(scale)]
        out = subprocess.run(
            command, env=env, cwd=folder, capture_output=True, text=True, check=True
        )
        marks = "".join(p.read_text() for p in trace.glob("*.trace"))
        assert '"probe-trouble"' not in marks, marks
        *seconds, parameters = out.stdout.split()
        return [float(s) for s in seconds], int(parameters)


def start_up_ms(*, orders):
    """Return how long an interpreter without torch takes to start and end."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "orders.json")
        path.write_text(json.dumps({"trace": folder, "folder": folder}))
        env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        if orders:
            boot = ROOT / "spotchaos" / "probe" / "boot"
            env.update(PYTHONPATH=str(boot), SPOTCHAOS_ORDERS=str(path))
        took = []
        for _ in range(10):
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", ""], env=env, check=True)
            took.append(time.perf_counter() - began)
        return 1000 * min(took)


def throughput():
    """Return GB/s of our fingerprint and of xxh3 alone, over the same 256 MB."""
    import torch
    import xxhash

    from spotchaos.probe.components import sorted_digest
    from spotchaos.probe.fingerprint import ALGORITHM, buffer_of

    ALGORITHM.choose(None)
    tensors = [(str(i), torch.rand(1 << 20)) for i in range(64)]
    ours, alone = [], []
    for _ in range(5):
        began = time.perf_counter()
        sorted_digest(tensors)
        ours.append(time.perf_counter() - began)
        began = time.perf_counter()
        state = xxhash.xxh3_128()
        for _, tensor in tensors:
            state.update(buffer_of(tensor))
        state.hexdigest()
        alone.append(time.perf_counter() - began)
    size = 64 * 4 * (1 << 20) / 1e9
    return size / min(ours), size / min(alone)


def best_of(runs):
    """Return the least of each clock: other work on the machine only adds."""
    return [min(values) for values in zip(*runs, strict=True)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    kinds = (None, "all", "saves", "light")
    took = {kind: [] for kind in kinds}
    parameters = 0
    for _ in range(args.repeat):
        for kind in kinds:
            seconds, parameters = seconds_a_step(kind, args.steps)
            took[kind].append(seconds)
    print(f"{parameters / 1e6:.1f} M parameters, Adam, one thread of torch")
    print("milliseconds a step: wall; CPU of the program's thread; CPU of all threads")
    bare = best_of(took[None])
    for kind in kinds:
        best = best_of(took[kind])
        cells = [
            f"{1000 * b:7.1f} {100 * (b / z - 1):+6.1f} %"
            for b, z in zip(best, bare, strict=True)
        ]
        print(f"{kind or 'no probe':9}" + "  ".join(cells))
    tiny = {
        k: best_of([seconds_a_step(k, 2000, 128)[0] for _ in range(3)])
        for k in (None, "saves")
    }
    each = tiny["saves"][0] - tiny[None][0]
    tenth = max(0.0, best_of(took["all"])[0] - bare[0]) / 10
    print(
        f"saves, from its parts: {1e6 * each:.0f} us at each step and {1e6 * tenth:.0f} us of"
        f" hashing are {100 * (each + tenth) / bare[0]:+.1f} %"
    )
    ours, alone = throughput()
    print(
        f"fingerprint {ours:.1f} GB/s, xxh3 alone {alone:.1f} GB/s ({100 * ours / alone:.0f} %)"
    )
    bare, probed = start_up_ms(orders=False), start_up_ms(orders=True)
    print(f"start without torch {bare:.1f} ms, with the probe {probed:.1f} ms")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
