"""What virtual workers cost beside plain DDP, on 1, 2 and 4 ranks.

    python benchmarks/training_virtual.py [STEPS] [ROUNDS]

Four workers' worth of data in each step, whatever the number of ranks: plain DDP gets its
micro-batches by accumulation. The time of a step is the median of a run, without start-up
and saves; in each round both take their turn, and the overhead is the median over the
rounds of the ratio within one.
"""

import re
import statistics
import subprocess
import sys
import tempfile


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    print("ranks  plain ms  virtual ms  overhead")
    for ranks in (1, 2, 4):
        pairs = [pair(ranks, steps) for _ in range(rounds)]
        plain, virtual = (statistics.median(each) for each in zip(*pairs, strict=True))
        overhead = statistics.median(second / first for first, second in pairs) - 1
        print(f"{ranks:5d} {plain:9.2f} {virtual:11.2f} {overhead:+9.0%}", flush=True)


def pair(ranks, steps):
    plain = step_ms(ranks, steps, ["--accumulate", str(2 * 4 // ranks)])
    return plain, step_ms(ranks, steps, ["--virtual-workers", "4"])


def step_ms(ranks, steps, options):
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "spotchaos.training", "--out", folder]
        command += ["--ranks", str(ranks), "--steps", str(steps), "--timing"]
        command += ["--save-every", str(10 * steps), "--samples", "640", *options]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(re.search(r"([\d.]+) ms a step", answer.stdout)[1])


if __name__ == "__main__":
    main()
