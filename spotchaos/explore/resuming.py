"""Resuming from crash states: each put into a view of its own, resumed from and judged.

States that answer alike everything that a resume asked are not run again, but for a few
per cent. Attempts are forked while the zygote lives, and fresh processes from then on.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from spotchaos.campaign.baseline import BaselineContext
from spotchaos.campaign.judgement import judge_trial
from spotchaos.config.plan import Plan
from spotchaos.config.settings import Settings
from spotchaos.explore.crash_classes import Case, Result, Resumed, plan_of, went
from spotchaos.launch.attempt.spec import FileOrders
from spotchaos.launch.zygote.zygote import ZygoteGoneError
from spotchaos.model import Attempt, Trial, Verdict
from spotchaos.oracles import acquitted
from spotchaos.oracles.durability import Cut, durability
from spotchaos.persistence import oplog
from spotchaos.persistence.readset import Memo, Question, asked_by
from spotchaos.persistence.tokens import StateToken
from spotchaos.recording.recorded_run import cut_of, put
from spotchaos.trial.context import TrialContext
from spotchaos.trial.trial import run_attempt

# Of the states whose result is known from what they answer, so many are run anyway.
SPOT_CHECK = 0.05
OBSERVED = FileOrders(observe_reads=True)

T = TypeVar("T")


class Starter:
    """Carries out runs on a stage, in fresh processes once the zygote is gone.

    Attributes:
        lost: why the zygote is gone; None while it lives.
    """

    def __init__(self, trial_context: TrialContext) -> None:
        self._trial_context = trial_context
        self.lost: str | None = None

    @property
    def cold(self) -> TrialContext:
        """The stage on which every attempt is a fresh process."""
        return replace(self._trial_context, zygote=None)

    def carry_out(self, run: Callable[[TrialContext], T]) -> T:
        """Return what `run` returns; it is called again if the zygote goes meanwhile.

        Args:
            run: must begin anew each time, in a view that it makes itself.
        """
        if self.lost is None:
            try:
                return run(self._trial_context)
            except ZygoteGoneError as error:
                self.lost = error.message
        return run(self.cold)


class Resumes:
    """Resumes from the crash states of one exploration, and what is known of them.

    Args:
        baseline_context: baselines and stage.
        settings: with every finding counted; which matter is asked of `counts`.
        starter: of attempts.
        observes: file ops of resumes are supervised, so that equal states are known.
    """

    def __init__(
        self,
        baseline_context: BaselineContext,
        settings: Settings,
        starter: Starter,
        *,
        counts: Callable[[str], bool],
        observes: bool,
    ) -> None:
        self._baseline_context = baseline_context
        self._settings = settings
        self._starter = starter
        self._counts = counts
        self._files = OBSERVED if observes else None
        self._lock = threading.Lock()
        self.memo: Memo[Resumed] = Memo(SPOT_CHECK, random.Random(settings.seed))
        # What a clean stop shows as well is not the crash's doing.
        self.always: frozenset[str] = frozenset()
        control = baseline_context.baseline.control
        if control is not None:
            clean = judge_trial(settings, baseline_context, control, Plan(()))
            self.always = frozenset(f.name for f in clean.findings)

    def of(self, case: Case, name: str) -> Result:
        """Resume from a state, or from what is known of an equal one, and judge."""
        history, layout = case.record.history, case.state.layout
        if not self._settings.no_skip:
            with self._lock:
                known = self.memo.known(history, layout)
            if known is not None:
                return self._judged(case, known.attempt, was_run=False)
        attempt, asked = self._starter.carry_out(
            lambda trial_context: self._once(
                trial_context, case, name, files=self._files
            )
        )
        if self._files is not None:
            with self._lock:
                self.memo.add(history, layout, asked, Resumed(attempt, went(attempt)))
        return self._judged(case, attempt, was_run=True)

    def again(self, case: Case, result: Result) -> Result:
        """Judge a resume once more, by a recording that tells more of what was saved."""
        attempt = result.trial.attempts[-1]
        return self._judged(case, attempt, was_run=result.was_run)

    def cold(self, case: Case, result: Result, name: str) -> Result:
        """Resume once more, in fresh processes, for the op that is blamed already.

        Unobserved: to see a fresh process look for its modules would take long. Where a
        state is large it is supervised all the same, so that it need not be copied.
        """
        large = self._files is not None and case.writer.is_large(case.state.layout)
        files = FileOrders() if large else None
        attempt, _ = self._once(self._starter.cold, case, name, files=files)
        return self._judged_at(
            case, result.token, attempt, was_run=True, cut=result.cut
        )

    def _once(
        self,
        trial_context: TrialContext,
        case: Case,
        name: str,
        *,
        files: FileOrders | None,
    ) -> tuple[Attempt, tuple[Question, ...]]:
        """Put one state into a view of its own, and resume from it."""
        token = case.state.token
        before = case.record.cut(token.number, token.early)
        layout = case.state.layout
        # A large file is not copied for each state, where nobody can write through.
        links = files is not None and case.writer.is_large(layout)
        if files is not None and links:
            files = replace(files, break_links=True)
        view = trial_context.new_view(name)
        asked: list[Question] = []
        try:
            put(view, case.writer, case.record, layout, links=links)
            attempt = run_attempt(
                trial_context,
                view,
                None,
                earlier=before,
                files=files,
                oplog=None
                if files is None
                else lambda path: asked.extend(asked_by(oplog.read(path).ops)),
            )
        finally:
            view.close()
        return attempt, tuple(asked)

    def _judged(self, case: Case, attempt: Attempt, *, was_run: bool) -> Result:
        """Judge a resume at the simplest crash that leaves its state, and at the latest.

        More had been acknowledged at the later one; a resume may be right at one crash
        and too old at the other.
        """
        state = case.state
        result = self._judged_at(case, state.token, attempt, was_run=was_run)
        if result.finding is None and state.latest not in (None, state.token):
            assert state.latest is not None  # as just asked
            late = self._judged_at(case, state.latest, attempt, was_run=was_run)
            if late.verdict is not Verdict.HELD or late.finding is not None:
                return late
        return result

    def _judged_at(
        self,
        case: Case,
        token: StateToken,
        attempt: Attempt,
        *,
        was_run: bool,
        cut: Cut | None = None,
    ) -> Result:
        before = case.record.cut(token.number, token.early)
        attempt = replace(attempt, number=len(before) + 1)
        trial = Trial(
            number=0,
            plan=plan_of(case.record, token),
            attempts=(*before, attempt),
            wall_s=attempt.wall_s,
            path=attempt.path,
        )
        judgement = judge_trial(self._settings, self._baseline_context, trial, Plan(()))
        cut = cut or cut_of(case.record, token)
        finding = None
        verdict = judgement.verdict
        if verdict is Verdict.VIOLATED:
            finding = durability(judgement, attempt, cut, always=self.always)
            assert finding is not None  # it is violated
            if not self._counts(finding.name):
                verdict = acquitted(judgement.findings)
        return Result(token, verdict, trial, judgement, finding, cut, was_run)
