"""No run twice: what a recorded run and earlier resumes already show of a plan.

A program that is killed at a step has left what the uninterrupted run had on disk at
that moment: the interrupted attempt need not be run. A resume from files that answer all
that an earlier resume asked is that earlier resume. Some plans are carried out anyway,
with real kills, and must come to the same.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from spotchaos.campaign.baseline import BaselineContext
from spotchaos.campaign.zygote_setup import unlike
from spotchaos.config.plan import KillPoint, Plan
from spotchaos.config.settings import Settings
from spotchaos.errors import HarnessError
from spotchaos.launch.attempt.spec import FileOrders
from spotchaos.launch.isolation.view import View
from spotchaos.launch.supervisor.notify_rules import FilePoint
from spotchaos.model import Attempt, Ended, RankTrace, Trial
from spotchaos.persistence import oplog
from spotchaos.persistence.crash_states import build
from spotchaos.persistence.history import Layout
from spotchaos.persistence.materialise import Materialiser
from spotchaos.persistence.readset import Memo, Question, asked_by
from spotchaos.persistence.tokens import StateToken
from spotchaos.recording.recorded_run import (
    Recorded,
    cut_attempt,
    linked_start,
    put,
    recorded_attempt,
    recorded_of,
)
from spotchaos.trial.trial import command_after, main_rank, run_attempt

# Of the plans that could be skipped, so many are carried out with real kills.
SPOT_CHECK = 0.05
# A recorded run costs as much as an attempt; fewer plans than this save less.
LEAST_PLANS = 6
# ... and what recorded resumes keep on disk is bounded; beyond it, chains are run.
MOST_KEPT_BYTES = 512 << 20
RECORDING = FileOrders(keep_data=True, real_fsync=False)
RESUMING = FileOrders(observe_reads=True)
RECORDING_ALL = FileOrders(keep_data=True, real_fsync=False, observe_reads=True)


@dataclass(frozen=True, slots=True)
class Moment:
    """What is known of an interruption without carrying it out."""

    attempt: Attempt  # as it would have been
    layout: Layout  # of the files that it left


@dataclass(frozen=True, slots=True)
class Ran:
    """A resume that was carried out to its end.

    Attributes:
        attempt: the resume.
        record: what it did to files; None: that does not tell what it had on disk.
    """

    attempt: Attempt
    record: Recorded | None


@dataclass
class Skipper:
    """Carries out plans from a recorded run, and each distinct resume once.

    Attributes:
        skipped: trials with an attempt that was not run.
        checked: trials run with real kills although they need not be.
    """

    baseline_context: BaselineContext
    record: Recorded
    rng: random.Random
    skipped: int = 0
    checked: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _memos: dict[tuple[str, ...], Memo[Ran]] = field(default_factory=dict)
    _kept_bytes: int = 0
    _views: int = 0

    def wants_check(self) -> bool:
        """Draw whether the next plan is carried out for real, as a check."""
        with self._lock:
            drawn = self.rng.random() < SPOT_CHECK
            self.checked += drawn
            return drawn

    def moment(self, plan: Plan) -> Moment | None:
        """Return what a plan's first interruption leaves; None if that is not known."""
        if not is_candidate(plan):
            return None
        return moment_in(self.record, plan.points[0])

    def carry_out(self, plan: Plan, moment: Moment, *, number: int) -> Trial:
        """Return the trial of a plan, with no attempt run that is known already."""
        phase = f"trial {number}"
        begun_s = self.baseline_context.trial_context.clock.monotonic()
        record, attempts = self.record, [moment.attempt]
        rest: list[KillPoint | None] = [*plan.points[1:], None]
        with self._lock:
            self.skipped += 1
        while rest:
            ran = self._resumed(record, moment.layout, attempts, phase=phase)
            if rest[0] is None or ran.attempt.trouble is not None:
                attempts.append(ran.attempt)
                break
            if ran.record is None or not is_shown(rest[0]):
                attempts += self._for_real(
                    record, moment.layout, attempts, rest, phase=phase
                )
                break
            later = moment_in(ran.record, rest[0])
            if later is None:  # it ended before it came there
                attempts.append(ran.attempt)
                break
            record, moment = ran.record, later
            attempts.append(replace(later.attempt, number=len(attempts) + 1))
            rest = rest[1:]
        missed = plan.points[len(attempts) - 1 :] if len(attempts) > 1 else ()
        return Trial(
            number=number,
            plan=str(plan),
            attempts=tuple(attempts),
            wall_s=self.baseline_context.trial_context.clock.monotonic() - begun_s,
            path="warm" if any(a.path == "warm" for a in attempts[1:]) else "cold",
            dropped=tuple(map(str, missed)) if plan.drawn else (),
        )

    def _resumed(
        self, record: Recorded, layout: Layout, earlier: list[Attempt], *, phase: str
    ) -> Ran:
        """Return the resume from a state, left alone; run unless its like is known."""
        trial_context = self.baseline_context.trial_context
        command = command_after(trial_context, earlier)
        with self._lock:
            memo = self._memos.setdefault(command, Memo(0.0, random.Random(0)))
            known = memo.known(record.history, layout)
        if known is None:
            with self._view() as view:
                ran, asked = self._recorded_resume(view, record, layout, earlier)
            if ran.attempt.trouble is None:
                with self._lock:
                    memo.add(record.history, layout, asked, ran)
            known = ran
            trial_context.on_attempt(phase, ran.attempt)
        else:
            known = replace(known, attempt=replace(known.attempt, cpu_s=0.0))
        return replace(known, attempt=replace(known.attempt, number=len(earlier) + 1))

    def _recorded_resume(
        self, view: View, record: Recorded, layout: Layout, earlier: list[Attempt]
    ) -> tuple[Ran, tuple[Question, ...]]:
        trial_context = self.baseline_context.trial_context
        writer = Materialiser(record.history)
        put(view, writer, record, layout)
        size = sum(t.content.size for t in layout.things.values() if t.content)
        keeps = self._claim(2 * size)
        before = set(_elsewhere(view)) if keeps else set()
        attempt, log = recorded_attempt(
            trial_context, view, earlier, files=RECORDING_ALL if keeps else RESUMING
        )
        if log is None:
            return Ran(attempt, None), ()
        asked = asked_by(log.ops)
        if not keeps or attempt.ended is not Ended.FINISHED:
            return Ran(attempt, None), asked
        if not shows_all(log, attempt):
            return Ran(attempt, None), asked
        if set(_elsewhere(view)) - before:
            return Ran(attempt, None), asked
        folder = trial_context.workspace.scratch / f"start-of-{view.name}"
        writer.write(layout, folder)
        recorded = recorded_of(attempt, log, folder, began_in=layout, own=record.own)
        return Ran(attempt, recorded), asked

    def _claim(self, size: int) -> bool:
        """Tell whether a recording of about so many bytes may be kept as well."""
        with self._lock:
            if self._kept_bytes + size > MOST_KEPT_BYTES:
                return False
            self._kept_bytes += size
            return True

    def _for_real(
        self,
        record: Recorded,
        layout: Layout,
        earlier: list[Attempt],
        rest: list[KillPoint | None],
        *,
        phase: str,
    ) -> list[Attempt]:
        """Carry out the rest of a plan, from a state on, with real kills."""
        done: list[Attempt] = []
        with self._view() as view:
            put(view, Materialiser(record.history), record, layout)
            for point in rest:
                attempt = run_attempt(
                    self.baseline_context.trial_context,
                    view,
                    point,
                    earlier=[*earlier, *done],
                )
                done.append(attempt)
                self.baseline_context.trial_context.on_attempt(phase, attempt)
                if point is not None and (
                    not attempt.reached or attempt.trouble is not None
                ):
                    break
        return done

    @contextmanager
    def _view(self) -> Iterator[View]:
        with self._lock:
            self._views += 1
            view = self.baseline_context.trial_context.new_view(
                f"resumed-{self._views}"
            )
        try:
            yield view
        finally:
            view.close()


def moment_in(record: Recorded, point: KillPoint) -> Moment | None:
    """Return what a kill in a recorded run leaves; None if it does not come there."""
    if point.is_file_site:
        return _moment_at_op(record, point)
    moment_s = moment_of(record.attempt, point)
    if moment_s is None:
        return None
    at_s = moment_s - record.began_s
    later = (o.number for o in record.history.ops if o.number and o.at_s > at_s)
    number = next(later, record.history.log.last + 1)
    return _moment(record, point, moment_s, StateToken(letter="K", number=number))


def _moment_at_op(record: Recorded, point: KillPoint) -> Moment | None:
    number = point.occurrence
    op = next((o for o in record.history.log.ops if o.number == number), None)
    if op is None:
        return None
    where = FilePoint.parse(str(point))
    through = None if op.error or op.kind != "write" else where.cut(op.length)
    token = StateToken(letter="K", number=number, through=through or 0)
    if where.part == "after":
        token = StateToken(letter="K", number=number + 1)
    return _moment(record, point, record.began_s + op.at_s, token)


def _moment(
    record: Recorded, point: KillPoint, moment_s: float, token: StateToken
) -> Moment:
    before = cut_attempt(record.attempt, moment_s)
    # Each rank holds at its own kill point, a little earlier or later.
    ranks = dict(before.trace.ranks)
    for number, rank in record.attempt.trace.ranks.items():
        own_s = None if point.is_file_site else _reached_at(rank, point)
        if own_s is not None:
            ranks[number] = cut_attempt(record.attempt, own_s).trace.ranks[number]
    before = replace(
        before,
        trace=replace(before.trace, ranks=ranks),
        kill_point=str(point),
        cpu_s=0.0,
    )
    return Moment(before, build(record.history, token))


def is_candidate(plan: Plan) -> bool:
    """Tell whether a plan's first attempt is a prefix of the uninterrupted run."""
    if not plan.points or plan.after_finish:
        return False
    return is_shown(plan.points[0])


def is_shown(point: KillPoint) -> bool:
    """Tell whether a recording shows when a kill point is reached."""
    if point.is_file_site:
        return point.site == "file-op" and point.over_all
    return point.site is not None and point.rank is None


def may_skip(settings: Settings) -> bool:
    """Tell whether nothing happens but a kill of everything, as on a lost process."""
    return not (
        settings.no_skip
        or settings.fault
        or settings.notice
        or settings.signal != "KILL"
        or settings.to != "all"
        or settings.lose != "process"
        or settings.halt != "freeze"
        or settings.slow_rank is not None
        or settings.allow_network
    )


def moment_of(attempt: Attempt, point: KillPoint) -> float | None:
    """Return when an attempt reached a kill point (CLOCK_MONOTONIC seconds), or None."""
    rank = main_rank(attempt)
    return None if rank is None else _reached_at(rank, point)


def _reached_at(rank: RankTrace, point: KillPoint) -> float | None:
    if point.site == "step-end":
        found = (s.t_s for s in rank.steps if s.step == point.occurrence)
        return next(found, None)
    marks = (t for name, n, _, t in rank.sites if (name, n) == _place(point))
    return next(marks, None)


def _place(point: KillPoint) -> tuple[str | None, int]:
    return point.site, point.occurrence


def prepare(
    baseline_context: BaselineContext, settings: Settings, plans: list[Plan]
) -> tuple[Skipper | None, View | None]:
    """Record a run for the plans that can be taken from it.

    Returns:
        A skipper and the view of its run, which the caller closes at the end; None and
        None where nothing can be skipped, or where that would not be sound.
    """
    wanted = sum(map(is_candidate, plans))
    if not may_skip(settings) or wanted < LEAST_PLANS:
        return None, None
    if baseline_context.site_index.file_ops is None:
        return None, None
    if baseline_context.trial_context.store_wanted is not None:
        return None, None  # files alone do not tell what a resume finds
    view = baseline_context.trial_context.new_view("recorded")
    try:
        record = _recorded(baseline_context, view)
    except (HarnessError, OSError):
        record = None
    if record is None:
        view.close()
        return None, None
    return Skipper(baseline_context, record, random.Random(settings.seed)), view


def _recorded(baseline_context: BaselineContext, view: View) -> Recorded | None:
    """Record a run; None if it is not the baseline's, or does not show all that it did."""
    trial_context = baseline_context.trial_context
    before = set(_elsewhere(view))
    attempt, log = recorded_attempt(trial_context, view, (), files=RECORDING)
    if attempt.ended is not Ended.FINISHED or log is None:
        return None
    if unlike(baseline_context.baseline.first, attempt) is not None:
        return None
    if not shows_all(log, attempt) or set(_elsewhere(view)) - before:
        return None
    folder = linked_start(trial_context, "start-of-recorded", out=view.out)
    return recorded_of(attempt, log, folder)


def shows_all(log: oplog.OpLog, attempt: Attempt) -> bool:
    """Tell whether what was on disk at each step follows from a log.

    It does not where a thread or process in the background writes, which a kill may
    overtake, nor where a rank writes whose steps are not those that are counted.
    """
    writers = {(op.pid, op.tid) for op in log.ops if op.number}
    if len(writers) > 1:
        return False
    rank = main_rank(attempt)
    is_alone = attempt.trace.world_size == 1
    return is_alone or rank is None or all(pid == rank.pid for pid, _ in writers)


def _elsewhere(view: View) -> Iterator[str]:
    """Yield files of a view outside the folders whose file ops are recorded."""
    if not view.is_overlay:
        return
    watched = {str(view.fill_at("")), str(view.fill_at("{out}/"))}
    places = [view.place, view.workspace.shared_memory_for(view.place)]
    for place in places:
        for path, names, files in os.walk(place):
            if place == view.place and path == str(place):
                names[:] = [n for n in names if n.startswith("u")]
            names[:] = [n for n in names if f"{path}/{n}" not in watched]
            names[:] = [n for n in names if n != "__pycache__"]
            for name in files:
                file = Path(path, name)
                status = file.lstat()
                yield f"{file} {status.st_size} {status.st_mtime_ns}"
