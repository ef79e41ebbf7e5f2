"""How many crash states an exploration resumes a minute, against a loop of fresh processes.

Run as `python benchmarks/explore.py [--fresh 5] [--saves 2] -- python train.py`. Both
resume the same states of one recording, one after the other in one run, so that the
ratio is that of one machine under one load. What is told is the rate of states that
were settled (run or known to be equal), that of states that were run, and both ratios.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fresh", type=int, default=5, help="states of the fresh loop")
    parser.add_argument("--saves", type=int, help="as for explore")
    parser.add_argument("--jobs", type=int, help="as for explore")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    command = tuple(w for w in given.command if w != "--") or ("python", "train.py")

    from spotchaos.clock import SystemClock
    from spotchaos.config.settings import Settings
    from spotchaos.explore.exploration import Exploration

    told = {}

    class Timed(Exploration):
        """Times each batch of resumes, and lets fresh processes do some of the same."""

        def _resume_all(self, baseline_context, resumes, cases):
            if not cases or self._only is not None:
                return
            began = time.perf_counter()
            super()._resume_all(baseline_context, resumes, cases)
            told["s"] = told.get("s", 0.0) + time.perf_counter() - began
            if "fresh" not in told:
                told["fresh"] = fresh_seconds(cases, command, given.fresh)

    more = {} if given.jobs is None else {"jobs": given.jobs}
    settings = Settings(command=command, folder=Path.cwd(), saves=given.saves, **more)
    outcome = Timed(settings, lambda event: None, SystemClock()).run()
    states = outcome.coverage["crash_states"]
    settled, run = states["held"] + states["violated"], states["run"]
    if not told or not settled:
        print(f"nothing was resumed: {outcome.trouble}")
        return 1
    fresh = told["fresh"]
    print(f"fresh processes   {60 / fresh:8.0f} states a minute")
    for name, count in (("explored, run", run), ("explored, settled", settled)):
        rate = 60 * count / told["s"]
        print(f"{name:<17} {rate:8.0f} states a minute, {rate * fresh / 60:.1f}x")
    print(f"{settled} states in {told['s']:.1f} s, {run} of them run")
    return 0


def fresh_seconds(cases, command, count):
    """Return the mean seconds of a fresh process on evenly chosen states."""
    chosen = cases[:: max(1, len(cases) // count)][:count]
    began = time.perf_counter()
    for case in chosen:
        with tempfile.TemporaryDirectory(prefix="spotchaos-bench-") as folder:
            place = Path(folder) / "0"
            shutil.copytree(Path.cwd(), place, dirs_exist_ok=True)
            case.writer.write(case.state.layout, Path(folder), merge=True)
            subprocess.run(command, cwd=place, capture_output=True, check=False)
    return (time.perf_counter() - began) / len(chosen)


if __name__ == "__main__":
    sys.exit(main())
