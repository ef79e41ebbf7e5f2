"""Exploring every state that a crash could leave on disk, each one resumed and judged.

One run is recorded with the bytes of its file ops. From its op log the states that a
kill or a power loss could leave are drawn; each distinct one is put into a view of its
own, and the program resumes from it. States that answer alike everything that a resume
asked are not run again, but for a few per cent.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spotchaos.baseline import Groundwork
from spotchaos.campaign import Campaign, judge_trial
from spotchaos.clock import Clock, SystemClock
from spotchaos.errors import HarnessError
from spotchaos.events import Listener, Outcome, PhaseStarted, TrialDone
from spotchaos.launch.spec import FileOrders
from spotchaos.launch.view import View
from spotchaos.model import (
    Attempt,
    Ended,
    Finding,
    Judgement,
    Note,
    RankTrace,
    Trial,
    Verdict,
)
from spotchaos.oracles.durability import Cut, durability
from spotchaos.persistence import oplog
from spotchaos.persistence.crash_states import (
    Bounds,
    CrashState,
    Tally,
    build,
    distinct,
    enumerate_states,
)
from spotchaos.persistence.history import History, Layout
from spotchaos.persistence.materialise import Materialiser
from spotchaos.persistence.models import EXT4, KILL, POSIX, PersistenceModel
from spotchaos.persistence.oplog import FileOp
from spotchaos.persistence.rank_cuts import Barrier, early_tokens
from spotchaos.persistence.readset import Asked, Memo, Question
from spotchaos.plan import KillPoint, Plan
from spotchaos.settings import Settings
from spotchaos.trial import is_resume_point, main_rank, run_attempt

# Of the states whose result is known from what they answer, so many are run anyway.
SPOT_CHECK = 0.05
# Crash points of one exploration; those of the first saves come first.
MOST_POINTS = 400
RECORDING = FileOrders(keep_data=True, real_fsync=False)
RESUMING = FileOrders(observe_reads=True)


def explore(
    settings: Settings, listener: Listener, *, clock: Clock | None = None
) -> Outcome:
    """Resume from every state that a crash could leave, and return what was found.

    Raises:
        UsageError: the command cannot be started at all.
    """
    return _Exploration(settings, listener, clock or SystemClock()).run()


@dataclass(frozen=True, slots=True)
class Recorded:
    """One run whose file ops were recorded, with their bytes."""

    attempt: Attempt
    history: History
    began_s: float  # of the log, CLOCK_MONOTONIC

    def cut(self, number: int) -> Attempt:
        """Return the attempt as it was when it had not made op `number` yet."""
        op = next((o for o in self.history.ops if (o.number or 0) >= number), None)
        if op is None:
            return replace(self.attempt, ended=Ended.RECLAIMED, exit_code=None)
        return cut_attempt(self.attempt, self.began_s + op.at_s)


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a resume from one crash state; equal results are one class."""

    names: tuple[str, ...]  # of the judgement's findings, as judged
    exception: tuple[str, str] | None  # type, and place in the program
    verdict: Verdict


class _Exploration(Campaign):
    """A campaign whose trials begin in crash states instead of at kill points."""

    def __init__(self, settings: Settings, listener: Listener, clock: Clock) -> None:
        super().__init__(settings, listener, clock)
        self._memo: Memo[Result] = Memo(SPOT_CHECK, random.Random(settings.seed))
        self._memo_lock = threading.Lock()
        self._tally = Tally()
        self._states: list[CrashState] = []
        self._outcomes: dict[int, tuple[Result, Trial | None, Judgement | None]] = {}
        self._classes: list[dict[str, Any]] = []
        self._record: Recorded | None = None
        self._counts: dict[str, int] = {}

    # --- the work ---

    def work(self, ground: Groundwork) -> None:
        if ground.landscape.file_ops is None:
            raise HarnessError(
                "no crash state can be explored: file ops cannot be recorded here",
                hint="ask `spotchaos doctor` why",
            )
        view = ground.stage.new_view("recorded")
        try:
            self._record = self._recorded(ground, view)
            self._states = self._drawn(ground, self._record)
            self._resume_all(ground, self._record)
            self._classify(ground, self._record)
        finally:
            view.close()

    def _recorded(self, ground: Groundwork, view: View) -> Recorded:
        self.tell(PhaseStarted("recorded run"))
        logs: list[oplog.OpLog] = []
        attempt = run_attempt(
            ground.stage,
            view,
            None,
            files=RECORDING,
            oplog=lambda path: logs.append(oplog.read(path)),
        )
        if attempt.ended is not Ended.FINISHED or not logs:
            raise HarnessError(
                f"the recorded run ended with status {attempt.exit_code}",
                hint="does it run under `--kill-at rename:1`?",
            )
        log = without_untouched(logs[0])
        history = History(log, start_folder=self._start_folder(ground, view))
        return Recorded(attempt, history, float(log.header.get("began_s", 0.0)))

    def _start_folder(self, ground: Groundwork, view: View) -> Path:
        """Return a folder that leads to the watched ones as they were before the run."""
        folder = ground.stage.workspace.scratch / "start"
        folder.mkdir(exist_ok=True)
        for name, target in (("0", ground.stage.program.folder), ("1", view.out)):
            if not (folder / name).is_symlink():
                (folder / name).symlink_to(target)
        return folder

    def _drawn(self, ground: Groundwork, record: Recorded) -> list[CrashState]:
        points = crash_points(record, ground.stage.patterns, saves=self._settings.saves)
        if not points:
            return []
        drawn: list[CrashState] = []
        for model in _models(self._settings.power_loss):
            bounds = Bounds(deviations=self._settings.deviations, points=points)
            found = list(enumerate_states(record.history, model, bounds, self._tally))
            self._counts[model.name] = len(found)
            drawn += found
        if ground.baseline.world_size > 1:
            early = list(early_tokens(record.history, barriers(record)))[:MOST_POINTS]
            kept = [t for t in early if t.number in set(points)]
            self._counts["early ranks"] = len(kept)
            drawn += [CrashState(t, build(record.history, t)) for t in kept]
        return distinct(record.history, drawn, self._tally)

    def _resume_all(self, ground: Groundwork, record: Recorded) -> None:
        writer = Materialiser(record.history)
        with ThreadPoolExecutor(max_workers=self._settings.jobs) as pool:
            tasks = [
                pool.submit(self._resume, ground, record, writer, number, state)
                for number, state in enumerate(self._states)
            ]
            try:
                for task in tasks:
                    task.result()
            except BaseException:
                for task in tasks:
                    task.cancel()
                ground.stage.workspace.end_all()
                raise

    def _resume(
        self,
        ground: Groundwork,
        record: Recorded,
        writer: Materialiser,
        number: int,
        state: CrashState,
    ) -> None:
        if self.is_out_of_budget():
            self._counts["not_run"] = self._counts.get("not_run", 0) + 1
            return
        if not self._settings.no_skip:
            with self._memo_lock:
                known = self._memo.known(record.history, state.layout)
            if known is not None:
                self._outcomes[number] = (known, None, None)
                return
        trial, judgement, asked = self._carry_out(
            ground, record, writer, state, f"state-{number}"
        )
        result = _result(trial, judgement)
        with self._memo_lock:
            self._memo.add(record.history, state.layout, asked, result)
        self._outcomes[number] = (result, trial, judgement)
        self.tell(PhaseStarted(f"state {number + 1} of {len(self._states)}"))

    def _carry_out(
        self,
        ground: Groundwork,
        record: Recorded,
        writer: Materialiser,
        state: CrashState,
        name: str,
    ) -> tuple[Trial, Judgement, tuple[Question, ...]]:
        """Resume from one state, and judge it."""
        before = record.cut((state.latest or state.token).number)
        view = ground.stage.new_view(name)
        asked: list[Question] = []
        try:
            put(view, writer, record.history, state.layout)
            after = run_attempt(
                ground.stage,
                view,
                None,
                earlier=[before],
                files=RESUMING,
                oplog=lambda path: asked.extend(_asked(oplog.read(path).ops)),
            )
        finally:
            view.close()
        trial = Trial(
            number=0, plan=str(state.token), attempts=(before, after), path=after.path
        )
        judgement = judge_trial(self._settings, ground, trial, Plan(()))
        return trial, judgement, tuple(asked)

    # --- what came of it ---

    def _classify(self, ground: Groundwork, record: Recorded) -> None:
        groups: dict[tuple[object, ...], list[int]] = {}
        findings: dict[tuple[object, ...], Finding] = {}
        for number in sorted(self._outcomes):
            result, trial, judgement = self._outcomes[number]
            if result.verdict is not Verdict.VIOLATED:
                continue
            state = self._states[number]
            cut = self._cut(record, ground.stage.patterns, number)
            if trial is None or judgement is None:
                twin = self._run_twin(result)
                if twin is None:
                    continue
                trial, judgement = twin
            finding = durability(judgement, trial.attempts[-1], cut)
            if finding is None:
                continue
            key: tuple[object, ...] = (
                finding.name,
                result.exception,
                cut.kind,
                state.token.letter,
            )
            groups.setdefault(key, []).append(number)
            findings.setdefault(key, finding)
        for index, (key, numbers) in enumerate(groups.items(), 1):
            self._add_class(ground, record, index, findings[key], numbers)

    def _run_twin(self, result: Result) -> tuple[Trial, Judgement] | None:
        for other, trial, judgement in self._outcomes.values():
            if other == result and trial is not None and judgement is not None:
                return trial, judgement
        return None

    def _add_class(
        self,
        ground: Groundwork,
        record: Recorded,
        number: int,
        finding: Finding,
        members: Sequence[int],
    ) -> None:
        simplest = min(members, key=lambda n: self._states[n].token.simplicity)
        state = self._states[simplest]
        _, trial, judgement = self._outcomes[simplest]
        if trial is None or judgement is None:
            trial, judgement, _ = self._carry_out(
                ground, record, Materialiser(record.history), state, f"class-{number}"
            )
        plan = kill_plan(state)
        shown = replace(trial, number=number, plan=plan or str(state.token))
        judged = replace(judgement, findings=(finding,))
        self.done.append((shown, judged))
        cut = self._cut(record, ground.stage.patterns, simplest)
        self._classes.append(
            {
                "finding": finding.name,
                "severity": "power loss" if cut.is_power_loss else "kill",
                "states": len(members),
                "state": str(state.token),
                "model": state.token.model.name,
                "trial": number,
                "operation": _operation(cut),
                "where": cut.where,
                "message": finding.message,
                "hint": finding.hint,
                "on_disk": self._difference(record, simplest),
                "tokens": [str(self._states[n].token) for n in members[:20]],
            }
        )
        self.tell(TrialDone(shown, judged))

    def _cut(self, record: Recorded, patterns: Sequence[str], number: int) -> Cut:
        """Find the op that made the difference: the last that the state holds."""
        token = self._states[number].token
        op = record.history.op(token.number if token.through else token.number - 1)
        if token.model.is_power_loss:
            op = record.history.op(token.number - 1) or op
        path = None if op is None else op.path
        inner = None if path is None else path.partition("/")[2]
        return Cut(
            kind=None if op is None else op.kind,
            path=inner,
            to=None if op is None or op.to is None else op.to.partition("/")[2],
            where=None if op is None else op.where,
            is_power_loss=token.model.is_power_loss,
            is_pointer=op is not None and _is_pointer(op, patterns),
        )

    def _difference(self, record: Recorded, number: int) -> list[str]:
        """Return what is on disk against the nearest earlier kill state that works."""
        state = self._states[number]
        near: CrashState | None = None
        for other, (result, _, _) in self._outcomes.items():
            candidate = self._states[other]
            if (
                result.verdict is Verdict.HELD
                and candidate.token.letter == "K"
                and candidate.token.number <= state.token.number
                and (near is None or candidate.token.number >= near.token.number)
            ):
                near = candidate
        if near is None:
            return []
        lines = [f"against {near.token}, which works:"]
        ours, theirs = state.layout.things, near.layout.things
        for path in sorted(set(ours) | set(theirs)):
            mine, its = _described(ours.get(path)), _described(theirs.get(path))
            if ours.get(path) != theirs.get(path):
                lines.append(f"{path.partition('/')[2]}: {mine} (works with: {its})")
        return lines[:12]

    def coverage(self) -> dict[str, object]:
        found = super().coverage()
        run = sum(trial is not None for _, trial, _ in self._outcomes.values())
        found["crash_states"] = {
            "by_model": dict(self._counts),
            "drawn": self._tally.drawn,
            "distinct_by_recipe": self._tally.by_recipe,
            "distinct": len(self._states),
            "run": run,
            "skipped_by_readset": self._memo.skipped,
            "spot_checked": self._memo.checked,
            "spot_checks_that_differ": len(self._memo.conflicts),
            "capped_points": self._tally.capped_points,
            "deviations": self._settings.deviations,
            "not_visited": self._counts.get("not_run", 0),
        }
        found["skipped_as_equal"] = self._memo.skipped
        return found

    def extra(self) -> dict[str, Any]:
        return {"classes": self._classes}

    def verdicts(self) -> list[Verdict]:
        """Judge by all states: one that was not run to an end proves nothing."""
        found = [result.verdict for result, _, _ in self._outcomes.values()]
        if self._memo.conflicts:
            found.append(Verdict.UNKNOWN)
        return found

    def late_notes(self) -> list[Note]:
        if self._groundwork is not None and not self._states and not self.done:
            return [Note("no-save-explored", "the program saved nothing to explore")]
        return []


# --- pure parts -----------------------------------------------------------------------


def cut_attempt(attempt: Attempt, moment_s: float) -> Attempt:
    """Return an attempt as its traces stood at a moment (CLOCK_MONOTONIC seconds)."""
    ranks = {n: _cut_rank(rank, moment_s) for n, rank in attempt.trace.ranks.items()}
    trace = replace(attempt.trace, ranks=ranks)
    return replace(
        attempt,
        trace=trace,
        ended=Ended.RECLAIMED,
        exit_code=None,
        kill_point="file-op",
        reached=True,
    )


def _cut_rank(rank: RankTrace, moment_s: float) -> RankTrace:
    steps = tuple(s for s in rank.steps if s.t_s <= moment_s)
    last = steps[-1].step if steps else 0
    saves = tuple(
        replace(s, ended_at_s=None)
        if s.ended_at_s is not None and s.ended_at_s > moment_s
        else s
        for s in rank.saves
        if s.begun_at_s <= moment_s
    )
    return replace(
        rank,
        steps=steps,
        states={k: s for k, s in rank.states.items() if k <= last},
        saves=saves,
        finish=None,
        said_bye=False,
        exception=None,
        loads=tuple(load for load in rank.loads if load.t_s <= moment_s),
        counts={**rank.counts, "step-end": last},
    )


def without_untouched(log: oplog.OpLog) -> oplog.OpLog:
    """Leave out files of before the run that no op concerns: every state has them."""
    nodes = {op.node for op in log.ops} | {op.over for op in log.ops}
    paths = {p for op in log.ops for p in (op.path, op.to) if p is not None}
    kept = tuple(
        entry
        for entry in log.start
        if entry.kind == "dir" or entry.node in nodes or entry.path in paths
    )
    return replace(log, start=kept)


def crash_points(
    record: Recorded, patterns: Sequence[str], *, saves: int | None
) -> list[int]:
    """Return the op numbers before which to crash: around saves, the first ones first.

    Each save counts from its begin to the begin of the next, so that what is deleted
    after it belongs to it. Without `saves`, the first two, the first that deletes
    something, and the last are taken: they hold nearly all distinct behaviour.
    """
    rank = main_rank(record.attempt)
    if rank is None:
        return []
    begins = [
        s.begun_at_s - record.began_s
        for s in rank.saves
        if is_resume_point(s.paths, patterns)
    ]
    ops = [op for op in record.history.ops if op.number]
    windows: list[list[FileOp]] = []
    for index, begin_s in enumerate(begins):
        end_s = begins[index + 1] if index + 1 < len(begins) else float("inf")
        windows.append([op for op in ops if begin_s - 0.001 <= op.at_s < end_s - 0.001])
    windows = [window for window in windows if window]
    chosen: list[int] = []
    for index in _chosen_windows(windows, saves):
        numbers = [op.number or 0 for op in windows[index]]
        chosen += [*numbers, max(numbers) + 1]
    unique = list(dict.fromkeys(chosen))
    if len(unique) > MOST_POINTS:
        stride = len(unique) / MOST_POINTS
        unique = [unique[int(i * stride)] for i in range(MOST_POINTS)]
    return sorted(unique)


def _chosen_windows(
    windows: Sequence[Sequence[FileOp]], saves: int | None
) -> list[int]:
    count = len(windows)
    if saves is not None:
        if saves >= count:
            return list(range(count))
        return sorted(
            {round(i * (count - 1) / max(1, saves - 1)) for i in range(saves)}
        )
    deleting = next(
        (
            i
            for i, window in enumerate(windows)
            if i > 1 and any(op.kind in ("unlink", "rmdir") for op in window)
        ),
        None,
    )
    chosen = [0, 1, deleting, count - 1]
    return sorted({i for i in chosen if i is not None and 0 <= i < count})


def barriers(record: Recorded) -> list[Barrier]:
    """Return the ends of steps, which no rank of a collective program passes alone."""
    found = []
    ranks = record.attempt.trace.ranks
    steps = min((len(rank.steps) for rank in ranks.values()), default=0)
    for index in range(steps):
        reached = []
        for number, rank in ranks.items():
            moment_s = rank.steps[index].t_s - record.began_s
            later = next(
                (
                    op.number
                    for op in record.history.ops
                    if op.number and op.rank == number and op.at_s >= moment_s
                ),
                None,
            )
            if later is not None:
                reached.append((number, later))
        found.append(Barrier(tuple(reached)))
    return found


def kill_plan(state: CrashState) -> str | None:
    """Return the plan whose real kill leaves this state; None for other models."""
    token = state.token
    if token.letter != "K" or token.early:
        return None
    cut = str(token.through) if token.through else None
    return str(
        KillPoint(site="file-op", occurrence=token.number, over_all=True, cut=cut)
    )


def put(view: View, writer: Materialiser, history: History, layout: Layout) -> None:
    """Make a new view hold a crash state: what differs from the user's own folder."""
    own = {entry.path for entry in history.log.start}
    for root, prefix in (("0", ""), ("1", "{out}/")):
        things = {
            path: thing
            for path, thing in layout.things.items()
            if path.startswith(root + "/") and path not in own
        }
        if things:
            inner = {path[2:]: thing for path, thing in things.items()}
            writer.write(Layout(inner), view.fill_at(prefix))
    gone = [p for p in own if p not in layout.things and p.startswith("0/")]
    if gone:
        view.hide([path[2:] for path in gone])


def _asked(ops: Iterable[FileOp]) -> Iterable[Question]:
    """Yield what a whole run asked of paths that it had not changed itself.

    A save that makes a folder or a file asks whether it is there: a leftover may block
    it. So the ops count as well as the look-ups, and not only those before the first.
    """
    seen: set[Question] = set()
    touched: set[str] = set()
    for op in ops:
        paths = [p for p in (op.path, op.to) if p is not None]
        if op.kind == "question" and op.path is not None:
            asked = [Question(Asked(op.text or "look"), op.path)]
        else:
            asked = [Question(Asked.LOOK, path) for path in paths]
        for question in asked:
            below = any(
                question.path == t or question.path.startswith(t + "/") for t in touched
            )
            is_listing = question.asked is Asked.LIST
            if question not in seen and (is_listing or not below):
                seen.add(question)
                yield question
        if op.kind != "question":
            touched.update(paths)


def _result(trial: Trial, judgement: Judgement) -> Result:
    exception = next(
        (
            (r.exception.type, f"{r.exception.file}:{r.exception.line}")
            for r in trial.attempts[-1].trace.ranks.values()
            if r.exception is not None
        ),
        None,
    )
    names = tuple(finding.name for finding in judgement.findings)
    return Result(names, exception, judgement.verdict)


def _is_pointer(op: FileOp, patterns: Sequence[str]) -> bool:
    """Tell whether an op made a name that leads to a checkpoint and is none itself."""
    if op.kind == "symlink":
        return True
    target = (op.to or op.path or "").partition("/")[2]
    return op.length < 256 and any(
        word in target.lower() for word in ("latest", "last_checkpoint", "pointer")
    )


def _models(power_loss: str | None) -> list[PersistenceModel]:
    more = {None: [], "ext4": [EXT4], "posix": [POSIX], "all": [EXT4, POSIX]}
    return [KILL, *more[power_loss]]


def _operation(cut: Cut) -> str | None:
    if cut.kind is None:
        return None
    return f"{cut.kind} {cut.path or ''}" + (f" -> {cut.to}" if cut.to else "")


def _described(thing: Any) -> str:
    if thing is None:
        return "not there"
    if thing.kind == "file":
        return f"{thing.content.size if thing.content else 0} bytes"
    return f"{thing.kind} to {thing.target}" if thing.target else str(thing.kind)
