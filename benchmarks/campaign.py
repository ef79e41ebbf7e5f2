"""CPU-seconds of the default campaign on a toy of 60 steps, cold and warm.

    python benchmarks/campaign.py [--out FILE.json]

Two baselines, the light run, the control and five trials. The goal is 90 CPU-seconds
cold; a forked attempt pays no import of torch.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import sys
import tempfile
from pathlib import Path

from spotchaos.campaign.campaign import run
from spotchaos.config.settings import Settings
from spotchaos.events import Outcome

TOY = Path(__file__).parents[1] / "scenarios" / "programs" / "toy.py"


def used_s() -> float:
    """Return the CPU time of this process and of all children that it has waited for."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, who))


def campaign(*, warm: bool) -> tuple[Outcome, float]:
    """Carry out the default campaign; return what it found, and the CPU-seconds."""
    with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
        shutil.copy(TOY, folder)
        settings = Settings(
            command=(sys.executable, TOY.name), folder=Path(folder), warm=warm
        )
        before_s = used_s()
        outcome = run(settings, lambda event: None)
        return outcome, used_s() - before_s


def main() -> None:
    """Print one line for each path, and write the figures if asked to."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out")
    args = parser.parse_args()
    figures = {"load": os.getloadavg()[0], "cores": os.cpu_count()}
    for name, warm in (("cold", False), ("warm", True)):
        outcome, cpu_s = campaign(warm=warm)
        attempts = sum(len(trial.attempts) for trial, _ in outcome.trials)
        figures[name] = {
            "verdict": str(outcome.verdict),
            "trials": len(outcome.trials),
            "attempts_of_trials": attempts,
            # What attempts report of themselves: ours is the rest.
            "cpu_s_of_attempts": round(outcome.cpu_s, 2),
            "cpu_s": round(cpu_s, 2),
            "wall_s": round(outcome.wall_s, 2),
        }
        print(name, figures[name])
    if args.out:
        Path(args.out).write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
