"""Exploring every state that a crash could leave on disk, each one resumed and judged.

One run is recorded with the bytes of its file ops. From its op log the states that a
kill or a power loss could leave are drawn; each distinct one is put into a view of its
own, and the program resumes from it. Then a resume is recorded in its turn, so that a
crash can also strike what a resume does itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from spotchaos.campaign.baseline import BaselineContext
from spotchaos.campaign.campaign import Campaign, Layer
from spotchaos.clock import Clock, SystemClock
from spotchaos.config.settings import Settings
from spotchaos.errors import HarnessError, PlanError, UsageError
from spotchaos.events import Listener, Outcome, PhaseStarted, TrialDone
from spotchaos.explore.crash_classes import (
    Case,
    Result,
    class_entry,
    groups,
    simplicity,
    strength,
    without_no_checkpoint,
)
from spotchaos.explore.early_ranks import RealKills
from spotchaos.explore.proved_saves import went_on_from, with_proved, with_the_same
from spotchaos.explore.recorder import Mechanism, Recorder
from spotchaos.explore.resuming import Resumes, Starter
from spotchaos.explore.root_op_search import before_failures, trace_back
from spotchaos.explore.state_selection import UNSEEN, Drawing, bases
from spotchaos.model import Finding, Note, Verdict
from spotchaos.persistence import oplog
from spotchaos.persistence.crash_states import CrashState, build
from spotchaos.persistence.materialise import Materialiser
from spotchaos.persistence.models import KILL
from spotchaos.persistence.tokens import StateToken, in_recording
from spotchaos.recording.recorded_run import Recorded
from spotchaos.trial.context import wanted_by

MOST_RESUMES = 2  # of those that are recorded in their turn
# Crash points before the chosen ones, where these begin with a failure.
MOST_BEFORE = 24
CONFIRMED = Note("confirmed-cold", "a fresh process showed this finding as well")


def explore(
    settings: Settings,
    listener: Listener,
    *,
    clock: Clock | None = None,
    layer: Layer | None = None,
) -> Outcome:
    """Resume from every state that a crash could leave, and return what was found.

    Args:
        settings: the program, the models and their bounds.
        listener: is told each event.
        clock: for durations and the budget.
        layer: lays the groundwork, if it is to be shared.

    Raises:
        UsageError: the command cannot be started at all, or it keeps its checkpoints in
            an object store.
    """
    if wanted_by(settings, settings.environment) is not None:
        raise UsageError(
            "crash states are those of a folder, and this program keeps its checkpoints"
            " in an object store",
            hint="`spotchaos run --kill-at upload-part:2` or `--fault s3-503:2`"
            " interrupts it there; explore it with a folder as its store",
        )
    return Exploration(settings, listener, clock or SystemClock(), layer=layer).run()


def replay(
    settings: Settings, listener: Listener, plan: str, *, clock: Clock | None = None
) -> Outcome:
    """Build one crash state again, resume from it, and return what was found.

    Args:
        settings: the program, and what must hold.
        listener: is told each event.
        plan: `DIGEST/STATE`, as the trial of an exploration carries it.
        clock: for durations and the budget.

    Raises:
        PlanError: the plan names no crash state.
    """
    found = in_recording(plan)
    if found is None:
        raise PlanError(f"{plan!r} names no crash state of a recording")
    only = found[0], StateToken.parse(found[1])
    return Exploration(settings, listener, clock or SystemClock(), only=only).run()


class Exploration(Campaign):
    """A campaign whose trials begin in crash states instead of at kill points.

    Args:
        settings: the program, the models and their bounds.
        listener: is told each event.
        clock: for durations and the budget.
        only: digest of the recording and the one state that is wanted of it.
        layer: lays the groundwork, if it is to be shared.
    """

    def __init__(
        self,
        settings: Settings,
        listener: Listener,
        clock: Clock,
        *,
        only: tuple[str, StateToken] | None = None,
        layer: Layer | None = None,
    ) -> None:
        super().__init__(settings, listener, clock, layer)
        self._only = only
        self._mechanism = Mechanism.NOTIFY
        self._drawing = Drawing(settings, ())
        self._resumes: Resumes | None = None
        self._starter: Starter | None = None
        self._cases: list[Case] = []
        self._results: dict[int, Result] = {}
        self._classes: list[dict[str, Any]] = []
        self._unconfirmed: list[str] = []
        self._writers = 0
        self._impossible = 0  # drawn, and refuted by real kills
        self._seen_cold: dict[str, bool] = {}  # finding -> whether it was seen again

    # --- the work ---

    def work(self, baseline_context: BaselineContext) -> None:
        """Record, draw, resume, and say what was found.

        Raises:
            HarnessError: nothing can record file ops here, a state cannot be put on
                disk, or not all that was drawn could be told.
        """
        self._starter = Starter(baseline_context.trial_context)
        recorder = Recorder(baseline_context, self._starter)
        self._mechanism = recorder.mechanism
        self._drawing = Drawing(self._settings, baseline_context.trial_context.patterns)
        if self._mechanism is Mechanism.PYTHON:
            self._drawing.models = [KILL]
        # All findings count while classes are formed; which of them matter is asked last.
        strict = replace(self._settings, fail_on=(), known=())
        resumes = self._resumes = Resumes(
            baseline_context,
            strict,
            self._starter,
            counts=self._settings.counts,
            observes=recorder.sees_reads,
        )
        try:
            self.emit(PhaseStarted("recorded run"))
            if recorder.is_large:
                self._spare_the_disk(baseline_context)
            record = recorder.run()
            self._drawing.left_out += recorder.left_out
            if self._only is not None:
                self._resume_only(baseline_context, resumes, record, *self._only)
                return
            writer = self._writer(baseline_context, record)
            size = baseline_context.baseline.world_size
            cases = self._drawing.of_run(record, writer, world_size=size)
            if recorder.is_large:
                writer.settle([case.state.layout for case in cases])
            self._resume_all(baseline_context, resumes, cases)
            if self._drawing.saves_unseen:
                record = self._report_saves(resumes, record)
            self._doubt_early_ranks(resumes, RealKills(self._starter, record))
            self._explore_resumes(baseline_context, recorder, resumes, record)
            self._look_before_failures(baseline_context, resumes)
            if self._drawing.saves_unseen:
                self._results.update(without_no_checkpoint(self._results))
            self._classify(resumes)
        except OSError as error:
            raise HarnessError(
                f"a crash state cannot be put on disk: {error.strerror or error}",
                hint="free some space, or set TMPDIR to another disk",
            ) from error
        self._demand_no_conflict(resumes)
        self._demand_all_resumed()

    def _writer(
        self, baseline_context: BaselineContext, record: Recorded
    ) -> Materialiser:
        """Return what puts the states of a recording on the disk of the views."""
        blobs = (
            baseline_context.trial_context.workspace.scratch / f"blobs-{self._writers}"
        )
        self._writers += 1
        blobs.mkdir()
        return Materialiser(record.history, blobs)

    def _spare_the_disk(self, baseline_context: BaselineContext) -> None:
        """Keep nothing large twice: one state at a time, and no finished run."""
        self._jobs = 1
        is_compared = baseline_context.trial_context.outputs is not None
        if baseline_context.trial_context.finished_view is not None and not is_compared:
            baseline_context.trial_context.finished_view.close()  # it serves trials after the finish only

    def _demand_no_conflict(self, resumes: Resumes) -> None:
        conflicts = len(resumes.memo.conflicts)
        if conflicts:
            raise HarnessError(
                f"{conflicts} of {resumes.memo.checked} spot checks led elsewhere than"
                " the equal state that was run",
                hint="run it again with --no-skip",
            )

    def _demand_all_resumed(self) -> None:
        """Let no exploration that was cut short say that every state holds."""
        if self._missed:
            raise HarnessError(
                f"{self._missed} of {len(self._cases)} crash states were not resumed"
                f" from before --budget ended",
                hint="give more --budget, or fewer --saves",
            )

    @property
    def _missed(self) -> int:
        return len(self._cases) - len(self._results) - self._impossible

    def _doubt_early_ranks(self, resumes: Resumes, kills: RealKills) -> None:
        """Call no state of an early rank wrong that no real kill of that rank leaves."""
        unknown = 0
        for number, result in sorted(self._results.items()):
            if result.finding is None or not result.token.early:
                continue
            self.emit(PhaseStarted("real kill", str(result.token)))
            if kills.confirm(result.token):
                continue
            case = self._cases[number]
            if not case.state.token.early:
                # The same folder is left without an early rank as well, and sooner.
                state = replace(case.state, latest=None)
                case = self._cases[number] = replace(case, state=state)
                self._results[number] = resumes.of(case, f"state-{number}")
                continue
            del self._results[number]
            self._impossible += 1
            unknown += any(one in kills.left_out for one in result.token.early)
        if unknown:
            self._drawing.left_out.append(
                f"{unknown} states of a rank that is killed earlier, which looked wrong"
                " and were not tried with real kills, there being too many"
            )

    def _report_saves(self, resumes: Resumes, record: Recorded) -> Recorded:
        """Judge again by the saves that nobody saw and resumes went on from."""
        told = with_proved(record, self._cases, self._results)
        if told is None:
            return record
        self._drawing.left_out.remove(UNSEEN)
        self._cases = [replace(case, record=told) for case in self._cases]
        for number, result in self._results.items():
            self._results[number] = resumes.again(self._cases[number], result)
        return told

    def _explore_resumes(
        self,
        baseline_context: BaselineContext,
        recorder: Recorder,
        resumes: Resumes,
        record: Recorded,
    ) -> None:
        """Record resumes in their turn, and explore what a kill in one could leave."""
        if not recorder.sees_reads or self._drawing.never_saves:
            return
        if recorder.is_large:
            self._drawing.left_out.append(
                "kills during a resume, the checkpoints being large"
            )
            return
        cases: list[Case] = []
        found = bases(record, self._cases, self._results)[:MOST_RESUMES]
        for number, base in enumerate(map(self._cases.__getitem__, found)):
            if self.is_out_of_budget():
                self._drawing.left_out.append("kills during a resume (--budget)")
                break
            self.emit(PhaseStarted("recorded resume", str(base.state.token)))
            again = recorder.resume(base, number)
            joined = went_on_from(self._results[found[number]])
            if self._drawing.saves_unseen and joined is not None:
                again = with_the_same(again, record, joined)
            writer = self._writer(baseline_context, again)
            cases += self._drawing.of_resume(again, writer)
        self._resume_all(baseline_context, resumes, cases)

    def _look_before_failures(
        self, baseline_context: BaselineContext, resumes: Resumes
    ) -> None:
        """Resume from states before the crash points too, to see where failures begin."""
        tally = self._drawing.tally
        for _ in range(MOST_BEFORE):
            cases = before_failures(self._cases, self._results)
            if not cases or self.is_out_of_budget():
                return
            self._drawing.counts[KILL.name] += len(cases)
            tally.drawn += len(cases)
            tally.by_recipe += len(cases)
            tally.by_content += len(cases)
            self._resume_all(baseline_context, resumes, cases)

    def _resume_all(
        self, baseline_context: BaselineContext, resumes: Resumes, cases: Sequence[Case]
    ) -> None:
        first = len(self._cases)
        self._cases += cases

        def resume(number: int, case: Case) -> None:
            if self.is_out_of_budget():
                return
            result = resumes.of(case, f"state-{number}")
            self._results[number] = result
            if result.was_run:
                self.emit(PhaseStarted(f"state {number + 1} of {len(self._cases)}"))

        with ThreadPoolExecutor(max_workers=self._jobs) as pool:
            tasks = [
                pool.submit(resume, number, case)
                for number, case in enumerate(cases, first)
            ]
            try:
                for task in tasks:
                    task.result()
            except BaseException:
                for task in tasks:
                    task.cancel()
                baseline_context.trial_context.workspace.end_all()
                raise

    def _resume_only(
        self,
        baseline_context: BaselineContext,
        resumes: Resumes,
        record: Recorded,
        digest: str,
        token: StateToken,
    ) -> None:
        found = oplog.digest(record.history.log)
        if found != digest:
            raise HarnessError(
                f"the program's file operations are not those that the token was made"
                f" from ({found}, not {digest}): the state cannot be built again",
                hint="explore again with the program as it is now",
            )
        state = CrashState(token, build(record.history, token))
        case = Case(record, self._writer(baseline_context, record), state)
        self._cases.append(case)
        self._results[0] = resumes.of(case, "state-0")
        tally = self._drawing.tally
        tally.drawn = tally.by_recipe = tally.by_content = 1
        self._drawing.counts[token.model.name] = 1
        self._classify(resumes)

    # --- what came of it ---

    def _classify(self, resumes: Resumes) -> None:
        self._results.update(
            trace_back(
                self._cases,
                self._results,
                always=resumes.always,
                counts=self._settings.counts,
            )
        )
        for index, numbers in enumerate(groups(self._cases, self._results), 1):
            self._add_class(resumes, index, numbers)
        if not self.done:
            self._show_one_that_held()

    def _add_class(self, resumes: Resumes, index: int, members: Sequence[int]) -> None:
        simplest = min(
            members, key=lambda n: simplicity(self._cases[n], self._results[n])
        )
        case, result = self._cases[simplest], self._results[simplest]
        result, confirmed = self._seen_again(resumes, index, case, result)
        finding = result.finding or self._results[simplest].finding
        assert finding is not None  # it is what makes the class
        shown = replace(result.trial, number=index)
        judged = replace(
            result.judgement,
            verdict=result.verdict,
            findings=(finding,),
            notes=(*result.judgement.notes, CONFIRMED),
        )
        if not confirmed:
            self._unconfirmed.append(finding.name)
            doubt = f"a forked process showed {finding.name}, a fresh one did not"
            judged = replace(
                judged,
                verdict=Verdict.UNKNOWN,
                findings=(Finding("not-repeatable", doubt),),
                notes=result.judgement.notes,
            )
        self.done.append((shown, judged))
        self._classes.append(
            class_entry(
                self._cases,
                self._results,
                [simplest, *(n for n in members if n != simplest)],
                shown=result,
                trial=index,
                confirmed=confirmed,
            )
        )
        self.emit(TrialDone(shown, judged))

    def _seen_again(
        self, resumes: Resumes, index: int, case: Case, result: Result
    ) -> tuple[Result, bool]:
        """Resume once more from the simplest state of a class, in a fresh process.

        Once for each finding: a fresh process costs as much as dozens of forked ones.
        """
        assert result.finding is not None  # it is what makes the class
        name = result.finding.name
        if result.was_run and result.trial.path == "cold":
            self._seen_cold[name] = True
        if name in self._seen_cold:
            return result, self._seen_cold[name]
        self.emit(PhaseStarted(f"class {index}", f"once more, cold: {result.token}"))
        again = resumes.cold(case, result, f"class-{index}")
        agrees = again.finding is not None and again.finding.name == name
        self._seen_cold[name] = agrees
        return again, agrees

    def _show_one_that_held(self) -> None:
        """Let the report show one resume, that which keeps the weakest promise."""
        held = [
            (strength(result.judgement), number)
            for number, result in self._results.items()
            if result.verdict is Verdict.HELD and result.was_run
        ]
        if held:
            result = self._results[min(held)[1]]
            self.done.append((replace(result.trial, number=1), result.judgement))

    def coverage(self) -> dict[str, object]:
        found = super().coverage()
        drawing, memo = self._drawing, self._resumes and self._resumes.memo
        why = list(drawing.left_out)
        if self._missed:
            why.append(f"{self._missed} states, for want of time (--budget)")
        found["crash_states"] = {
            "by_model": drawing.counts,
            "drawn": drawing.tally.drawn,
            "distinct_by_recipe": drawing.tally.by_recipe,
            "distinct": len(self._cases),
            "run": sum(result.was_run for result in self._results.values()),
            "held": self._count(Verdict.HELD),
            "violated": self._count(Verdict.VIOLATED),
            "unknown": self._count(Verdict.UNKNOWN),
            "skipped_by_readset": memo.skipped if memo else 0,
            "spot_checked": memo.checked if memo else 0,
            "spot_checks_that_differ": len(memo.conflicts) if memo else 0,
            "capped_points": drawing.tally.capped_points,
            "deviations": self._settings.deviations,
            "not_possible": self._impossible,
            "not_visited": self._missed,
            "why_not_visited": why,
            "mechanism": str(self._mechanism),
        }
        found["skipped_as_equal"] = memo.skipped if memo else 0
        return found

    def _count(self, verdict: Verdict) -> int:
        return sum(result.verdict is verdict for result in self._results.values())

    def extra(self) -> dict[str, Any]:
        return {"classes": self._classes}

    def verdicts(self) -> list[Verdict]:
        """Judge by all states: one that was not run to an end proves nothing."""
        found = [r.verdict for r in self._results.values()]
        if self._unconfirmed:
            # What was not seen a second time convicts nobody; nor does it acquit.
            names = {c["finding"] for c in self._classes if c["confirmed"]}
            found = [
                r.verdict
                for r in self._results.values()
                if r.finding is None or r.finding.name in names
            ]
            found.append(Verdict.UNKNOWN)
        return found

    def late_notes(self) -> list[Note]:
        lost = self._starter and self._starter.lost
        notes = super().late_notes()
        if lost and self._zygote_lost is None:
            notes.append(Note("cold-path", f"attempts were fresh from then on: {lost}"))
        if self._drawing.never_saves:
            notes.append(
                Note("no-save-explored", "the recorded run saved nothing to explore")
            )
        return notes
