"""How many flawed specimens N drawn trials convict: led by what is new, and plain chance.

    python benchmarks/drawn_plans.py [--trials 50] [--seeds 1] [NAME...]

Both draws of one specimen are carried out in one campaign, on one groundwork, so that a
plan that both draw is run once and a resume whose like is known is not run again. Plain
chance is the same draw without knowledge of the gaps between file operations. Without
names: every specimen whose flaw a kill alone can show (no fault, notice, ranks), slow
ones left out.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from spotchaos.campaign.baseline import BaselineContext
from spotchaos.campaign.campaign import Campaign
from spotchaos.campaign.skipping import prepare
from spotchaos.clock import SystemClock
from spotchaos.config.options import make_settings
from spotchaos.config.plan import Plan
from spotchaos.events import Event
from spotchaos.model import Verdict
from spotchaos.planning.chance import draw
from spotchaos.planning.moments import Moments
from spotchaos.pytest_support import SPECIMENS
from spotchaos.pytest_support.shared_baselines import SharedBaselines
from spotchaos.pytest_support.specimen_runs import Specimen, read_table

MARKS = (5, 20, 50)


class Compared(Campaign):
    """Carries out what both ways draw, each plan once."""

    seeds: Sequence[int] = (0,)
    trials = 50
    drawn: tuple[list[list[Plan]], ...] = ()

    def work(self, baseline_context: BaselineContext) -> None:
        site_index = baseline_context.site_index
        plain = replace(site_index, moments=Moments())
        self.drawn = tuple(
            [draw(seed, trials=self.trials, site_index=one) for seed in self.seeds]
            for one in (site_index, plain)
        )
        plans = dict.fromkeys(p for way in self.drawn for each in way for p in each)
        self._plans = list(enumerate(plans, 1))
        self._skipper, view = prepare(baseline_context, self._settings, list(plans))
        try:
            self._run_trials(baseline_context)
        finally:
            if view is not None:
                view.close()

    def firsts(self) -> list[list[int | None]]:
        """Return, for each way and seed, the number of the first trial that convicts."""
        bad = {t.plan for t, said in self.done if said.verdict is Verdict.VIOLATED}
        return [
            [
                next((n for n, p in enumerate(plans, 1) if str(p) in bad), None)
                for plans in way
            ]
            for way in self.drawn
        ]


def is_shown_by_kills(row: Specimen) -> bool:
    """Tell whether a kill alone, and nothing else, can show the flaw of a row."""
    return bool(
        row.finding
        and row.verdict == "violated"
        and not (row.options or row.ranks or row.slow or row.existing or row.fresh)
        and "after-finish" not in row.plan
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--trials", type=int, default=MARKS[-1])
    parser.add_argument("--seeds", type=int, default=1)
    asked = parser.parse_args()
    table = read_table()
    rows = [table[name] for name in asked.names] or [
        row for row in table.values() if is_shown_by_kills(row)
    ]
    shared_baselines = SharedBaselines(ready=[SPECIMENS])
    found: list[tuple[list[int | None], list[int | None]]] = []
    try:
        for row in rows:
            with tempfile.TemporaryDirectory() as folder:
                command = tuple(
                    word.format(python=sys.executable, specimen=row.mutant)
                    for word in row.command.split()
                )
                settings = make_settings({}, command=command, folder=Path(folder))
                campaign = Compared(
                    settings, _ignore, SystemClock(), shared_baselines.layer
                )
                campaign.seeds, campaign.trials = range(asked.seeds), asked.trials
                outcome = campaign.run()
            if not campaign.drawn:
                print(f"{row.name:<28} {outcome.trouble}", flush=True)
                continue
            led, plain = campaign.firsts()
            found.append((led, plain))
            print(f"{row.name:<28} led {led}  plain {plain}", flush=True)
    finally:
        shared_baselines.close()
    of = sum(len(led) for led, _ in found)
    print(
        f"\n{len(found)} specimens, {asked.seeds} seeds each\n| trials | led | plain |"
    )
    for mark in (m for m in MARKS if m <= asked.trials):
        shares = [
            sum(n is not None and n <= mark for pair in found for n in pair[way])
            for way in (0, 1)
        ]
        print(f"| {mark} | {shares[0]} of {of} | {shares[1]} of {of} |")


def _ignore(_: Event) -> None:
    pass


if __name__ == "__main__":
    main()
