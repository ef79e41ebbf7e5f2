"""What virtual workers cost beside plain DDP, on 1, 2 and 4 ranks.

    python benchmarks/training_virtual.py [STEPS]

Four workers' worth of data in each step, whatever the number of ranks: plain DDP gets its
micro-batches by accumulation. Prints the time of a step, without start-up and saves.
"""

import re
import subprocess
import sys
import tempfile


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    print("ranks  plain ms  virtual ms  overhead")
    for ranks in (1, 2, 4):
        plain = step_ms(ranks, steps, ["--accumulate", str(2 * 4 // ranks)])
        virtual = step_ms(ranks, steps, ["--virtual-workers", "4"])
        print(f"{ranks:5d} {plain:9.2f} {virtual:11.2f} {virtual / plain - 1:+9.0%}")


def step_ms(ranks, steps, options):
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "spotchaos.training", "--out", folder]
        command += ["--ranks", str(ranks), "--steps", str(steps), "--timing"]
        command += ["--save-every", str(10 * steps), "--samples", "640", *options]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(re.search(r"([\d.]+) ms a step", answer.stdout)[1])


if __name__ == "__main__":
    main()
