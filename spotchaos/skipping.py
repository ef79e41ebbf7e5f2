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
from dataclasses import dataclass, field, replace
from pathlib import Path

from spotchaos.baseline import Groundwork, unlike
from spotchaos.errors import HarnessError
from spotchaos.launch.spec import FileOrders
from spotchaos.launch.view import View
from spotchaos.model import Attempt, Ended, Trial
from spotchaos.persistence import oplog
from spotchaos.persistence.crash_states import build
from spotchaos.persistence.history import History, Layout
from spotchaos.persistence.materialise import Materialiser
from spotchaos.persistence.readset import Memo, Question, asked_by
from spotchaos.persistence.tokens import StateToken
from spotchaos.plan import KillPoint, Plan
from spotchaos.recorded import Recorded, cut_attempt, put, without_untouched
from spotchaos.settings import Settings
from spotchaos.trial import main_rank, run_attempt

# Of the plans that could be skipped, so many are carried out with real kills.
SPOT_CHECK = 0.05
# A recorded run costs as much as an attempt; fewer plans than this save less.
LEAST_PLANS = 6
RECORDING = FileOrders(keep_data=True, real_fsync=False)
RESUMING = FileOrders(observe_reads=True)


@dataclass(frozen=True, slots=True)
class Moment:
    """What is known of an interruption without carrying it out."""

    attempt: Attempt  # as it would have been
    layout: Layout  # of the files that it left


@dataclass
class Skipper:
    """Carries out plans from a recorded run, and each distinct resume once.

    Attributes:
        skipped: trials with an attempt that was not run.
        checked: trials run with real kills although they need not be.
    """

    ground: Groundwork
    record: Recorded
    rng: random.Random
    skipped: int = 0
    checked: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _memos: dict[str, Memo[tuple[Attempt, ...]]] = field(default_factory=dict)

    def wants_check(self) -> bool:
        """Draw whether the next plan is carried out for real, as a check."""
        with self._lock:
            drawn = self.rng.random() < SPOT_CHECK
            self.checked += drawn
            return drawn

    def moment(self, plan: Plan) -> Moment | None:
        """Return what a plan's first interruption leaves; None if that is not known."""
        if not is_candidate(self.ground, plan):
            return None
        moment_s = moment_of(self.record.attempt, plan.points[0])
        if moment_s is None:
            return None
        at_s = moment_s - self.record.began_s
        later = (
            o.number for o in self.record.history.ops if o.number and o.at_s > at_s
        )
        number = next(later, self.record.history.log.last + 1)
        layout = build(self.record.history, StateToken(letter="K", number=number))
        before = cut_attempt(self.record.attempt, moment_s)
        return Moment(replace(before, kill_point=str(plan.points[0])), layout)

    def carry_out(self, plan: Plan, moment: Moment, *, number: int) -> Trial:
        """Return the trial of a plan, with no attempt run that is known already."""
        begun_s = self.ground.stage.clock.monotonic()
        rest = plan.points[1:]
        history = self.record.history
        with self._lock:
            memo = self._memos.setdefault(
                ",".join(map(str, rest)), Memo(0.0, random.Random(0))
            )
            known = memo.known(history, moment.layout)
            self.skipped += 1
        if known is None:
            known, asked = self._resumed(plan, moment, number)
            # What a whole chain of attempts asks is not known; a single one is.
            if not rest and known[-1].trouble is None:
                with self._lock:
                    memo.add(history, moment.layout, asked, known)
        points = [*rest, None]
        short = len(known) < len(points)
        return Trial(
            number=number,
            plan=str(plan),
            attempts=(moment.attempt, *known),
            wall_s=self.ground.stage.clock.monotonic() - begun_s,
            path="warm" if any(a.path == "warm" for a in known) else "cold",
            dropped=tuple(map(str, rest[len(known) - 1 :]))
            if short and plan.drawn
            else (),
        )

    def _resumed(
        self, plan: Plan, moment: Moment, number: int
    ) -> tuple[tuple[Attempt, ...], tuple[Question, ...]]:
        stage = self.ground.stage
        rest: list[KillPoint | None] = [*plan.points[1:], None]
        asked: list[Question] = []
        done: list[Attempt] = []
        view = stage.new_view(f"trial-{number}")
        try:
            put(view, Materialiser(self.record.history), self.record, moment.layout)
            for point in rest:
                attempt = run_attempt(
                    stage,
                    view,
                    point,
                    earlier=[moment.attempt, *done],
                    files=RESUMING if len(rest) == 1 else None,
                    oplog=(lambda p: asked.extend(asked_by(oplog.read(p).ops)))
                    if len(rest) == 1
                    else None,
                )
                done.append(attempt)
                stage.on_attempt(f"trial {number}", attempt)
                if point is not None and (
                    not attempt.reached or attempt.trouble is not None
                ):
                    break
        finally:
            view.close()
        return tuple(done), tuple(asked)


def is_candidate(ground: Groundwork, plan: Plan) -> bool:
    """Tell whether a plan's first attempt is a prefix of the uninterrupted run."""
    if not plan.points or plan.after_finish:
        return False
    point = plan.points[0]
    if point.site is None or point.is_file_site:
        return False
    return point.rank is None and ground.baseline.world_size == 1


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
        or settings.allow_network
    )


def moment_of(attempt: Attempt, point: KillPoint) -> float | None:
    """Return when an attempt reached a kill point (CLOCK_MONOTONIC seconds), or None."""
    rank = main_rank(attempt)
    if rank is None:
        return None
    if point.site == "step-end":
        found = (s.t_s for s in rank.steps if s.step == point.occurrence)
        return next(found, None)
    marks = (t for name, n, _, t in rank.sites if (name, n) == _place(point))
    return next(marks, None)


def _place(point: KillPoint) -> tuple[str | None, int]:
    return point.site, point.occurrence


def prepare(
    ground: Groundwork, settings: Settings, plans: list[Plan]
) -> tuple[Skipper | None, View | None]:
    """Record a run for the plans that can be taken from it.

    Returns:
        A skipper and the view of its run, which the caller closes at the end; None and
        None where nothing can be skipped, or where that would not be sound.
    """
    wanted = sum(is_candidate(ground, plan) for plan in plans)
    if not may_skip(settings) or wanted < LEAST_PLANS:
        return None, None
    if ground.landscape.file_ops is None or ground.baseline.world_size > 1:
        return None, None
    if ground.stage.store_wanted is not None:
        return None, None  # files alone do not tell what a resume finds
    view = ground.stage.new_view("recorded")
    try:
        record = _recorded(ground, view)
    except (HarnessError, OSError):
        record = None
    if record is None:
        view.close()
        return None, None
    return Skipper(ground, record, random.Random(settings.seed)), view


def _recorded(ground: Groundwork, view: View) -> Recorded | None:
    """Record a run; None if it is not the baseline's, or does not show all that it did."""
    stage = ground.stage
    logs: list[oplog.OpLog] = []
    before = set(_elsewhere(view))
    attempt = run_attempt(
        stage,
        view,
        None,
        files=RECORDING,
        oplog=lambda path: logs.append(oplog.read(path)),
    )
    if attempt.ended is not Ended.FINISHED or not logs or not logs[0].complete:
        return None
    if unlike(ground.baseline.first, attempt) is not None:
        return None
    log = logs[0]
    own_thread = {(op.pid, op.tid) for op in log.ops if op.number}
    if len(own_thread) > 1 or set(_elsewhere(view)) - before:
        # A writer in the background, or files that no log shows.
        return None
    folder = stage.workspace.scratch / "start-of-recorded"
    folder.mkdir(exist_ok=True)
    for name, target in (("0", stage.program.folder), ("1", view.out)):
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(target)
    # What no op concerns is in every state: it is neither put into a view nor hidden.
    log = without_untouched(log)
    history = History(log, start_folder=folder)
    own = frozenset(entry.path for entry in log.start if entry.path)
    return Recorded(attempt, history, float(log.header.get("began_s", 0.0)), own)


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
