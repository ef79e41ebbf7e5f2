"""How a program comes to the warm path: a zygote, trusted once its run is the fresh one."""

from __future__ import annotations

import os
from contextlib import suppress

from spotchaos.errors import HarnessError
from spotchaos.launch.zygote.forkable import start_of
from spotchaos.launch.zygote.import_scan import imports_of_script
from spotchaos.launch.zygote.zygote import (
    INDISPENSABLE,
    ImportsDrewError,
    Zygote,
    preloadable,
    raised_for,
)
from spotchaos.model import Attempt, Note, RankTrace, Trial
from spotchaos.oracles.resume_points import pattern_of
from spotchaos.trial.context import TrialContext
from spotchaos.trial.trial import main_rank

UNSEEDED = ("rng.python", "rng.numpy", "rng.own")


class ZygoteSetup:
    """Raises the zygote of a program that is being run for the first time."""

    def __init__(self) -> None:
        self._forecast: Zygote | None = None  # imports while the first run goes on

    def begin(self, trial_context: TrialContext) -> None:
        """Let a zygote import what the script says, beside the first run: on its core."""
        program = trial_context.program
        if self._forecast is not None or trial_context.zygote is not None:
            return
        if not trial_context.settings.warm or len(os.sched_getaffinity(0)) < 2:
            return
        start = start_of(program.command, program.environment, program.folder)
        modules = [] if start is None else imports_of_script(start, program.folder)
        if start is None or not modules:
            return
        with suppress(HarnessError, OSError):
            self._forecast = raised_for(
                program, start, trial_context.workspace, modules, is_forecast=True
            )

    def complete(self, trial_context: TrialContext, first: Attempt) -> Zygote | None:
        """Return a zygote that has imported what the first run did.

        Returns:
            None where every run is to be fresh.

        Raises:
            HarnessError: it did not come up, nothing may be forked from it, or nothing
                that is forked can stand for the command.
        """
        if not trial_context.settings.warm:
            return None
        program, rank = trial_context.program, main_rank(first)
        start = start_of(program.command, program.environment, program.folder)
        modules: list[str] = []
        seen: set[str] = set()
        if rank is not None:
            seen = {name for name, _ in rank.modules}
            modules = preloadable(rank.modules, program.folder)
        zygote, self._forecast = self._forecast, None
        if zygote is not None and not zygote.forecast <= seen:
            zygote.close()  # it has imported what the program does not
            zygote = None
        why = None
        if start is None:
            why = "only a script, -m, or a torchrun that just starts ranks is forked"
        elif not modules:
            why = "nobody saw what the first run imported"
        elif program.pty:
            why = "the program wants a terminal"
        if start is None or why is not None:
            if zygote is not None:
                zygote.close()
            raise HarnessError(f"no warm path: {why}")
        left: frozenset[str] = frozenset()
        if zygote is not None:
            try:
                zygote.complete(modules)
            except ImportsDrewError as error:
                if INDISPENSABLE in error.packages:
                    raise
                left = error.packages
            else:
                return zygote
        return raised_for(
            program, start, trial_context.workspace, modules, without=left
        )

    def close(self) -> None:
        """End a zygote that was begun and not completed."""
        if self._forecast is not None:
            self._forecast.close()


def fresh_by_need(trial_context: TrialContext, trial: Trial) -> Note | None:
    """Return a note on attempts that were fresh although others can be forked."""
    for attempt in trial.attempts:
        is_moved = trial_context.settings.move and attempt.number > 1
        why = trial_context.why_fresh(attempt.command, is_moved=is_moved)
        if why is not None and attempt.path == "cold":
            whole = all(a.path == "cold" for a in trial.attempts)
            what = "every attempt" if whole else f"attempt {attempt.number}"
            return Note("cold-path", f"{what} was fresh: {why}")
    return None


def unlike(first: Attempt, second: Attempt) -> str | None:
    """Return where a forked run is not the fresh one; None if it is, in every mark.

    Streams that no program need seed (Python's, numpy's, those of its own generators)
    differ between fresh runs too.
    """
    if first.ended is not second.ended or first.exit_code != second.exit_code:
        return f"it {second.ended} with status {second.exit_code}"
    for number, ours in first.trace.ranks.items():
        theirs = second.trace.ranks.get(number)
        if theirs is None:
            return f"rank {number} was not seen"
        for site in ("step-end", "epoch-end", "forward"):
            if ours.counts.get(site) != theirs.counts.get(site):
                return f"rank {number} reached {site} another number of times"
        # A program that saves by the clock saves another number of times in every run.
        if _files_of(ours) != _files_of(theirs):
            return f"rank {number} was seen to save or load other files"
        for mine, other in zip(ours.steps, theirs.steps, strict=True):
            if mine.components != other.components or mine.samples != other.samples:
                return f"rank {number} did something else in step {mine.step}"
        for step, state in ours.states.items():
            if step not in theirs.states:
                return f"rank {number} has no state of step {step}"
            found = theirs.states[step].components
            for name, value in state.components.items():
                if found.get(name) != value and name not in UNSEEDED:
                    return f"rank {number} had other {name} at step {step}"
    return None


def _files_of(rank: RankTrace) -> tuple[set[str], set[str]]:
    """Return the patterns of what a rank was seen to save, and to load.

    What a package reads while it is imported, a forked run need not read again: of the
    files that were only opened, those count that the program writes.
    """
    saved = {pattern_of(path) for save in rank.saves for path in save.paths}
    loaded = {(pattern_of(load.path), load.via) for load in rank.loads}
    return saved, {path for path, via in loaded if via != "read" or path in saved}
