"""Exploring every state that a crash could leave on disk, each one resumed and judged.

One run is recorded with the bytes of its file ops. From its op log the states that a
kill or a power loss could leave are drawn; each distinct one is put into a view of its
own, and the program resumes from it. States that answer alike everything that a resume
asked are not run again, but for a few per cent. Then a resume is recorded in its turn,
so that a crash can also strike what a resume does itself.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from spotchaos.baseline import Groundwork
from spotchaos.campaign import Campaign, Layer, judge_trial
from spotchaos.clock import Clock, SystemClock
from spotchaos.crash_classes import (
    Case,
    Result,
    Resumed,
    class_entry,
    groups,
    plan_of,
    simplicity,
    strength,
    went,
)
from spotchaos.errors import HarnessError, PlanError
from spotchaos.events import Listener, Outcome, PhaseStarted, TrialDone
from spotchaos.launch.spec import FileOrders
from spotchaos.launch.strace import strace_available
from spotchaos.launch.view import View
from spotchaos.model import (
    Attempt,
    Ended,
    Finding,
    Note,
    Trial,
    Verdict,
)
from spotchaos.oracles.durability import durability
from spotchaos.persistence import oplog
from spotchaos.persistence.crash_states import (
    Bounds,
    CrashState,
    Tally,
    build,
    distinct,
    enumerate_states,
)
from spotchaos.persistence.history import History
from spotchaos.persistence.materialise import Materialiser
from spotchaos.persistence.models import EXT4, KILL, POSIX, PersistenceModel
from spotchaos.persistence.rank_cuts import early_tokens
from spotchaos.persistence.readset import Memo, Question, asked_by
from spotchaos.persistence.tokens import StateToken, in_recording
from spotchaos.plan import Plan
from spotchaos.recorded import (
    MOST_POINTS,
    Recorded,
    barriers,
    crash_points,
    cut_of,
    put,
    spread,
    without_untouched,
)
from spotchaos.settings import Settings
from spotchaos.traced import not_seen, traced_run
from spotchaos.trial import Stage, run_attempt

# Of the states whose result is known from what they answer, so many are run anyway.
SPOT_CHECK = 0.05
# Crash points within one recorded resume, and resumes that are recorded.
MOST_RESUME_POINTS, MOST_RESUMES = 60, 2
CONFIRMED = Note("confirmed-cold", "a fresh process showed this finding as well")
RECORDING = FileOrders(keep_data=True, real_fsync=False)
RESUMING = FileOrders(observe_reads=True)


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
        UsageError: the command cannot be started at all.
    """
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
        # All findings count while classes are formed; which of them matter is asked last.
        self._strict = replace(settings, fail_on=(), known=())
        self._memo: Memo[Resumed] = Memo(SPOT_CHECK, random.Random(settings.seed))
        self._lock_memo = threading.Lock()
        self._tally = Tally()
        self._cases: list[Case] = []
        self._results: dict[int, Result] = {}
        self._classes: list[dict[str, Any]] = []
        self._counts: dict[str, int] = {}
        self._not_visited: list[str] = []
        self._unconfirmed: list[str] = []
        self._seen_cold: dict[str, bool] = {}  # finding -> whether it was seen again
        self._always: frozenset[str] = frozenset()  # what a clean stop shows as well
        self._never_saves = False
        self._traced = False  # recorded by strace: resumes are not observed

    # --- the work ---

    def work(self, ground: Groundwork) -> None:
        """Record, draw, resume, and say what was found."""
        self._traced = ground.landscape.file_ops is None
        if self._traced and not strace_available()[0]:
            reasons = [n.message for n in ground.notes if "left-out" in n.name]
            raise HarnessError(
                "no crash state can be explored: "
                + (reasons[0] if reasons else "file operations cannot be recorded")
                + f"; {strace_available()[1]}",
                hint="`spotchaos run --kill-at save-begin:2` interrupts around a save",
            )
        if ground.baseline.control is not None:
            clean = judge_trial(self._strict, ground, ground.baseline.control, Plan(()))
            self._always = frozenset(f.name for f in clean.findings)
        view = ground.stage.new_view("recorded")
        views = [view]
        try:
            record = self._recorded(ground, view)
            if self._only is not None:
                self._resume_only(ground, record, *self._only)
                return
            first = self._drawn(ground, record)
            self._resume_all(ground, first)
            second: list[Case] = []
            for number, base in enumerate(() if self._traced else self._bases(record)):
                views.append(ground.stage.new_view(f"resume-{number}"))
                second += self._drawn_in_resume(ground, base, views[-1], number)
            self._resume_all(ground, second)
            self._classify(ground)
            self._demand_no_conflict()
        except OSError as error:
            raise HarnessError(
                f"a crash state cannot be put on disk: {error.strerror or error}",
                hint="free some space, or set TMPDIR to another disk",
            ) from error
        finally:
            for one in views:
                one.close()

    def _demand_no_conflict(self) -> None:
        if self._memo.conflicts:
            raise HarnessError(
                f"{len(self._memo.conflicts)} of {self._memo.checked} spot checks led"
                " elsewhere than the equal state that was run",
                hint="run it again with --no-skip",
            )

    def _recorded(self, ground: Groundwork, view: View) -> Recorded:
        self.tell(PhaseStarted("recorded run"))
        if self._traced:
            attempt, log = traced_run(ground.stage, view)
            self._not_visited.append(not_seen())
        else:
            attempt, log = self._record(ground, view, ())
        if attempt.ended is not Ended.FINISHED:
            raise HarnessError(
                f"the recorded run ended with status {attempt.exit_code}",
                hint="run it under `spotchaos run --kill-at file-op:1` to see why",
            )
        log = without_untouched(log)
        history = History(log, start_folder=self._start_folder(ground, view))
        own = frozenset(entry.path for entry in log.start if entry.path)
        return Recorded(attempt, history, float(log.header.get("began_s", 0.0)), own)

    def _record(
        self, ground: Groundwork, view: View, earlier: Sequence[Attempt]
    ) -> tuple[Attempt, oplog.OpLog]:
        logs: list[oplog.OpLog] = []
        attempt = run_attempt(
            ground.stage,
            view,
            None,
            earlier=earlier,
            files=RECORDING,
            oplog=lambda path: logs.append(oplog.read(path)),
        )
        if not logs or not logs[0].complete:
            raise HarnessError("the recording of file operations broke off")
        return attempt, logs[0]

    def _start_folder(self, ground: Groundwork, view: View) -> Path:
        """Return a folder that leads to the watched ones as they were before the run."""
        folder = ground.stage.workspace.scratch / "start"
        folder.mkdir(exist_ok=True)
        for name, target in (("0", ground.stage.program.folder), ("1", view.out)):
            if not (folder / name).is_symlink():
                (folder / name).symlink_to(target)
        return folder

    def _drawn(self, ground: Groundwork, record: Recorded) -> list[Case]:
        points = crash_points(record, ground.stage.patterns, saves=self._settings.saves)
        last = record.history.log.last
        if not points:
            self._never_saves = True
            points = [last + 1]
        if len(points) < last + 1:
            self._not_visited.append(
                f"{last + 1 - len(points)} of {last + 1} crash points, left out by --saves and our bounds"
            )
        # What is acknowledged differs with the model that leaves a folder, so that equal
        # folders are one state within a model only; the memo spares their resumes.
        drawn: dict[str, list[CrashState]] = {}
        for model in _models(self._settings.power_loss):
            bounds = Bounds(deviations=self._settings.deviations, points=points)
            states = list(enumerate_states(record.history, model, bounds, self._tally))
            self._counts[model.name] = len(states)
            drawn[model.letter] = states
        if ground.baseline.world_size > 1:
            wanted = set(points)
            early = [
                token
                for token in early_tokens(record.history, barriers(record))
                if token.number in wanted
            ]
            kept = [early[i] for i in spread(range(len(early)), MOST_POINTS)]
            self._counts["early ranks"] = len(kept)
            if len(kept) < len(early):
                self._not_visited.append(
                    f"{len(early) - len(kept)} of {len(early)} ways in which one rank"
                    " is killed earlier"
                )
            drawn[KILL.letter] += [
                CrashState(t, build(record.history, t)) for t in kept
            ]
        if self._tally.capped_points:
            self._not_visited.append(
                f"states beyond the first 64 at {self._tally.capped_points} points"
            )
        return self._distinct(record, drawn.values())

    def _distinct(
        self, record: Recorded, drawn: Iterable[Sequence[CrashState]]
    ) -> list[Case]:
        writer = Materialiser(record.history)
        cases: list[Case] = []
        for states in drawn:
            tally = Tally()
            found = distinct(record.history, states, tally)
            cases += [Case(record, writer, state) for state in found]
            self._tally.drawn += tally.drawn
            self._tally.by_recipe += tally.by_recipe
            self._tally.by_content += tally.by_content
        return cases

    def _bases(self, record: Recorded) -> list[Case]:
        """Return states whose resume is worth a recording: those with most left over."""
        held = [
            self._cases[n]
            for n, result in sorted(self._results.items())
            if result.verdict is Verdict.HELD
            and self._cases[n].record is record
            and record.plan_of(self._cases[n].state.token) is not None
        ]
        held = [c for c in held if any(s.ended_at_s for s in _saves_before(c))]
        held.sort(key=lambda c: (-len(c.state.layout.things), c.state.token.number))
        return held[:MOST_RESUMES] if not self._never_saves else []

    def _drawn_in_resume(
        self, ground: Groundwork, base: Case, view: View, number: int
    ) -> list[Case]:
        """Record a resume, and draw the kill states that its own ops can leave."""
        self.tell(PhaseStarted("recorded resume", str(base.state.token)))
        before = base.record.cut((base.state.latest or base.state.token).number)
        put(view, base.writer, base.record, base.state.layout)
        folder = ground.stage.workspace.scratch / f"start-{number}"
        Materialiser(base.record.history).write(base.state.layout, folder)
        attempt, log = self._record(ground, view, before)
        log = without_untouched(log, base.state.layout.things)
        record = Recorded(
            attempt,
            History(log, start_folder=folder),
            float(log.header.get("began_s", 0.0)),
            base.record.own,
            before,
            base.record.plan_of(base.state.token) or "",
        )
        points = crash_points(record, ground.stage.patterns, saves=1)
        points = spread(points, MOST_RESUME_POINTS)
        if not points:
            return []
        drawn = list(enumerate_states(record.history, KILL, Bounds(points=points)))
        key = "kill during a resume"
        self._counts[key] = self._counts.get(key, 0) + len(drawn)
        return self._distinct(record, [drawn])

    def _resume_all(self, ground: Groundwork, cases: Sequence[Case]) -> None:
        first = len(self._cases)
        self._cases += cases
        with ThreadPoolExecutor(max_workers=self._jobs) as pool:
            tasks = [
                pool.submit(self._resume, ground, number, case)
                for number, case in enumerate(cases, first)
            ]
            try:
                for task in tasks:
                    task.result()
            except BaseException:
                for task in tasks:
                    task.cancel()
                ground.stage.workspace.end_all()
                raise

    def _resume(self, ground: Groundwork, number: int, case: Case) -> None:
        if self.is_out_of_budget():
            with self._lock_memo:
                self._counts["not_run"] = self._counts.get("not_run", 0) + 1
            return
        known = None
        history, layout = case.record.history, case.state.layout
        if not self._settings.no_skip:
            with self._lock_memo:
                known = self._memo.known(history, layout)
        if known is not None:
            self._results[number] = self._judge_state(
                ground, case, known.attempt, was_run=False
            )
            return
        files = None if self._traced else RESUMING
        name = f"state-{number}"
        attempt, asked = self._resume_once(ground.stage, case, name, files=files)
        if files is not None:
            with self._lock_memo:
                self._memo.add(history, layout, asked, Resumed(attempt, went(attempt)))
        self._results[number] = self._judge_state(ground, case, attempt, was_run=True)
        self.tell(PhaseStarted(f"state {number + 1} of {len(self._cases)}"))

    def _resume_once(
        self,
        stage: Stage,
        case: Case,
        name: str,
        *,
        files: FileOrders | None = RESUMING,
    ) -> tuple[Attempt, tuple[Question, ...]]:
        """Put one state into a view of its own, and resume from it."""
        before = case.record.cut(case.state.token.number)
        view = stage.new_view(name)
        asked: list[Question] = []
        try:
            put(view, case.writer, case.record, case.state.layout)
            attempt = run_attempt(
                stage,
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

    def _judge_state(
        self, ground: Groundwork, case: Case, attempt: Attempt, *, was_run: bool
    ) -> Result:
        """Judge a resume at the simplest crash that leaves its state, and at the latest.

        More had been acknowledged at the later one; a resume may be right at one crash
        and too old at the other.
        """
        state = case.state
        result = self._judge_at(ground, case, state.token, attempt, was_run=was_run)
        if result.finding is None and state.latest not in (None, state.token):
            assert state.latest is not None  # as just asked
            late = self._judge_at(ground, case, state.latest, attempt, was_run=was_run)
            if late.verdict is not Verdict.HELD or late.finding is not None:
                return late
        return result

    def _judge_at(
        self,
        ground: Groundwork,
        case: Case,
        token: StateToken,
        attempt: Attempt,
        *,
        was_run: bool,
    ) -> Result:
        before = case.record.cut(token.number)
        attempt = replace(attempt, number=len(before) + 1)
        trial = Trial(
            number=0,
            plan=plan_of(case.record, token),
            attempts=(*before, attempt),
            wall_s=attempt.wall_s,
            path=attempt.path,
        )
        judgement = judge_trial(self._strict, ground, trial, Plan(()))
        cut = cut_of(case.record, token)
        finding = None
        verdict = judgement.verdict
        if verdict is Verdict.VIOLATED:
            finding = durability(judgement, attempt, cut, always=self._always)
            assert finding is not None  # it is violated
            if not self._settings.counts(finding.name):
                verdict = Verdict.HELD
        return Result(token, verdict, trial, judgement, finding, cut, was_run)

    def _resume_only(
        self, ground: Groundwork, record: Recorded, digest: str, token: StateToken
    ) -> None:
        found = oplog.digest(record.history.log)
        if found != digest:
            raise HarnessError(
                f"the program's file operations are not those that the token was made"
                f" from ({found}, not {digest}): the state cannot be built again",
                hint="explore again with the program as it is now",
            )
        state = CrashState(token, build(record.history, token))
        case = Case(record, Materialiser(record.history), state)
        self._resume_all(ground, [case])
        self._tally.drawn = self._tally.by_recipe = self._tally.by_content = 1
        self._counts[token.model.name] = 1
        self._classify(ground)

    # --- what came of it ---

    def _classify(self, ground: Groundwork) -> None:
        for index, numbers in enumerate(groups(self._cases, self._results), 1):
            self._add_class(ground, index, numbers)
        if not self.done:
            self._show_one_that_held()

    def _add_class(
        self, ground: Groundwork, index: int, members: Sequence[int]
    ) -> None:
        simplest = min(
            members, key=lambda n: simplicity(self._cases[n], self._results[n])
        )
        case, result = self._cases[simplest], self._results[simplest]
        result, confirmed = self._seen_again(ground, index, case, result)
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
        self.tell(TrialDone(shown, judged))

    def _seen_again(
        self, ground: Groundwork, index: int, case: Case, result: Result
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
        cold = replace(ground.stage, zygote=None)
        self.tell(PhaseStarted(f"class {index}", f"once more, cold: {result.token}"))
        # Unobserved: to see a fresh process look for its modules would take long.
        attempt, _ = self._resume_once(cold, case, f"class-{index}", files=None)
        again = self._judge_at(ground, case, result.token, attempt, was_run=True)
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
        missed = self._counts.get("not_run", 0)
        why = list(self._not_visited)
        if missed:
            why.append(f"{missed} states, for want of time (--budget)")
        models = {k: v for k, v in self._counts.items() if k != "not_run"}
        found["crash_states"] = {
            "by_model": models,
            "drawn": self._tally.drawn,
            "distinct_by_recipe": self._tally.by_recipe,
            "distinct": len(self._cases),
            "run": sum(result.was_run for result in self._results.values()),
            "held": self._count(Verdict.HELD),
            "violated": self._count(Verdict.VIOLATED),
            "unknown": self._count(Verdict.UNKNOWN),
            "skipped_by_readset": self._memo.skipped,
            "spot_checked": self._memo.checked,
            "spot_checks_that_differ": len(self._memo.conflicts),
            "capped_points": self._tally.capped_points,
            "deviations": self._settings.deviations,
            "not_visited": missed,
            "why_not_visited": why,
            "mechanism": "strace" if self._traced else "seccomp-notify",
        }
        found["skipped_as_equal"] = self._memo.skipped
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
        if self._never_saves:
            return [
                Note("no-save-explored", "the recorded run saved nothing to explore")
            ]
        return []


# --- pure parts -----------------------------------------------------------------------


def _saves_before(case: Case) -> list[Any]:
    cut = case.record.cut(case.state.token.number)[-1]
    return [save for rank in cut.trace.ranks.values() for save in rank.saves]


def _models(power_loss: str | None) -> list[PersistenceModel]:
    more = {None: [], "ext4": [EXT4], "posix": [POSIX], "all": [EXT4, POSIX]}
    return [KILL, *more[power_loss]]
