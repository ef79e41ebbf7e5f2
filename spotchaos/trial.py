"""One trial: a plan carried out on a program, attempt after attempt.

It interrupts and records; it never judges. Everything that it learns goes into the
frozen records of `spotchaos.model`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from spotchaos.clock import Clock, SystemClock
from spotchaos.errors import HarnessError
from spotchaos.launch.attempt import Exited, Halted, RunningAttempt, launch
from spotchaos.launch.program import Program
from spotchaos.launch.spec import FileOrders
from spotchaos.launch.workspace import View, Workspace
from spotchaos.launch.zygote import Warm, Zygote, start_of
from spotchaos.model import Attempt, Ended, RankTrace, Trial
from spotchaos.plan import KillPoint, Plan
from spotchaos.settings import Settings
from spotchaos.trace.reading import read_attempt

# How long other ranks may take to reach their own kill point, or to block, once the
# first has halted. Collectives time out after minutes, a step takes far less.
SETTLE_S = 10.0
# Writes are quiet when no file changed for this long; a background writer of a toy
# finishes in milliseconds, one of gigabytes changes its file's size all the time.
QUIET_S = 0.3
QUIET_BOUND_S = 60.0
DEFAULT_GRACE_S = 30.0
OPLOG_BOUND_S = 10.0


@dataclass(frozen=True, slots=True)
class Stage:
    """What all trials of a campaign share."""

    settings: Settings
    program: Program
    workspace: Workspace
    orders: Mapping[str, Any] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()  # checkpoints that lay in the folder
    patterns: tuple[str, ...] = ()  # of resume points; empty: any save is one
    hang_s: float = 600.0  # an attempt that takes longer hangs
    finished_view: View | None = None  # of the baseline, for a start after the finish
    finished_attempt: Attempt | None = None
    on_attempt: Callable[[str, Attempt], None] = lambda phase, attempt: None
    zygote: Zygote | None = None  # None: every attempt is started fresh
    clock: Clock = field(default_factory=SystemClock)

    def warm(self, command: Sequence[str]) -> Warm | None:
        """Return how the zygote serves a command; None for the cold path."""
        if self.zygote is None or self.program.pty:
            return None
        start = start_of(command, self.program.environment, self.program.folder)
        if start is None or not self.zygote.serves(start):
            return None
        if start.ranks is not None and (
            self.settings.signal != "KILL" or self.settings.to != "all"
        ):
            return None  # what a launcher does with a signal is its own
        return Warm(self.zygote, start)

    def new_view(self, name: str) -> View:
        """Return a private copy-on-write view of the program's folder."""
        view = self.workspace.view(name)
        if self.hidden:
            view.hide(self.hidden)
        return view


def pattern_of(path: str) -> str:
    """Return a path with each run of digits replaced by `#`, so that steps do not matter."""
    return re.sub(r"\d+", "#", path)


def is_resume_point(paths: Sequence[str], patterns: Sequence[str]) -> bool:
    """Tell whether a save of these paths wrote what the control's resume read."""
    return bool(paths) and (
        not patterns or any(pattern_of(path) in patterns for path in paths)
    )


def run_trial(stage: Stage, plan: Plan, *, number: int, name: str = "") -> Trial:
    """Carry out one plan in a view of its own.

    Args:
        stage: the campaign's program, settings and workspace.
        plan: kill points, one for each attempt; a last attempt is left alone.
        number: of the trial, from 1; it names the view.
        name: of the phase in events; `trial N` if empty.

    Returns:
        What happened, with every attempt's trace read. An attempt that the harness
        could not carry out has `trouble`, and the trial ends with it.
    """
    phase = name or f"trial {number}"
    begun_s = stage.clock.monotonic()
    if plan.after_finish and stage.finished_view is not None:
        view = stage.finished_view.copy(f"trial-{number}")
        assert stage.finished_attempt is not None
        attempts = [stage.finished_attempt]
        points: list[KillPoint | None] = [None]
    else:
        view = stage.new_view(f"trial-{number}" if not name else name.replace(" ", "-"))
        attempts = []
        points = [*plan.points, None]
        if plan.after_finish:
            points = [None, None]
    dropped: list[str] = []
    try:
        for point in points:
            attempt = run_attempt(stage, view, point, earlier=attempts)
            attempts.append(attempt)
            stage.on_attempt(phase, attempt)
            if point is not None and not attempt.reached:
                if plan.drawn and len(attempts) > 1:
                    dropped += [str(p) for p in points[len(attempts) - 1 : -1]]
                break
            if point is not None and attempt.trouble is not None:
                break
    finally:
        view.close()
    return Trial(
        number=number,
        plan=str(plan),
        attempts=tuple(attempts),
        wall_s=stage.clock.monotonic() - begun_s,
        dropped=tuple(dropped),
        path="warm" if any(a.path == "warm" for a in attempts) else "cold",
    )


def run_attempt(
    stage: Stage,
    view: View,
    point: KillPoint | None,
    *,
    earlier: Sequence[Attempt] = (),
    orders: Mapping[str, Any] | None = None,
    quiet: bool = False,
    files: FileOrders | None = None,
    oplog: Callable[[Path], None] | None = None,
) -> Attempt:
    """Launch the program once, interrupt it at `point`, and read what it left.

    Args:
        stage: the campaign's program, settings and workspace.
        view: where it runs.
        point: where it is interrupted; None leaves it alone.
        earlier: attempts of this trial, oldest first.
        orders: for the probe, over those of the stage.
        quiet: wait until writes are quiet before it is killed (the control).
        files: has its file ops supervised; a kill point at a file site does so anyway.
        oplog: is given the path of the op log, before it goes.
    """
    number = len(earlier) + 1
    command = _command(stage, earlier)
    wanted = {**stage.orders, **(orders or {})}
    if point is not None and point.is_file_site:
        files = replace(files or FileOrders(), points=(str(point),))
        if stage.settings.halt == "run":
            files = replace(files, others="run")
    elif point is not None and point.site is not None:
        wanted["kill"] = str(point)
    begun_s = stage.clock.monotonic()
    warm = stage.warm(command)
    running = launch(
        stage.program,
        view,
        number=number,
        orders=wanted,
        command=command,
        warm=warm,
        files=files,
    )
    try:
        course = _Course(stage, running, view, point, quiet=quiet, begun_s=begun_s)
        course.follow()
        trace = read_attempt(running.trace_folder)
        if oplog is not None:
            _await_end_of(running.oplog, stage.clock)
            oplog(running.oplog)
        return Attempt(
            number=number,
            command=tuple(command),
            ended=course.ended(trace.completed),
            exit_code=running.exit_code,
            trace=trace,
            wall_s=running.wall_s,
            cpu_s=running.cpu_s,
            kill_point=course.landed,
            reached=point is None or course.fired,
            signal=course.signal,
            signalled_step=course.signalled_step,
            started_at_s=begun_s,
            reclaimed_at_s=course.reclaimed_at_s,
            output_tail=running.output_tail,
            stacks=course.stacks,
            survivors=tuple(running.survivors),
            trouble=course.trouble,
            refused_write=running.refused_write,
            path="cold" if warm is None else "warm",
        )
    finally:
        running.close()


def _await_end_of(oplog: Path, clock: Clock) -> None:
    """Wait until the supervisor has written its last line; it notices the end itself."""
    deadline_s = clock.monotonic() + OPLOG_BOUND_S
    while clock.monotonic() < deadline_s:
        with oplog.open("rb") as file:
            file.seek(max(0, oplog.stat().st_size - 4096))
            if b'"op":"end"' in file.read():
                return
        clock.sleep(0.02)
    raise HarnessError("the supervisor of file ops did not end with the program")


def _command(stage: Stage, earlier: Sequence[Attempt]) -> tuple[str, ...]:
    """Choose the first command, or the resume command once there is a resume point."""
    resume = stage.program.resume_command
    if resume is None or not any(has_resume_point(a, stage.patterns) for a in earlier):
        return stage.program.command
    return resume


def has_resume_point(attempt: Attempt, patterns: Sequence[str]) -> bool:
    """Tell whether any rank of the attempt completed a save that can be resumed from."""
    return any(
        save.ended_at_s is not None and is_resume_point(save.paths, patterns)
        for rank in attempt.trace.ranks.values()
        for save in rank.saves
    )


class _Course:
    """The course of one attempt: wait, halt, fire, and how it ended."""

    def __init__(
        self,
        stage: Stage,
        running: RunningAttempt,
        view: View,
        point: KillPoint | None,
        *,
        quiet: bool,
        begun_s: float,
    ) -> None:
        self._stage = stage
        self._running = running
        self._view = view
        self._point = point
        self._quiet = quiet
        self._begun_s = begun_s
        self.fired = False
        self.landed: str | None = None
        self.signal: str | None = None
        self.signalled_step: int | None = None
        self.reclaimed_at_s: float | None = None
        self.stacks = ""
        self.trouble: str | None = None
        self._hung = False

    def follow(self) -> None:
        """Return when the attempt has ended, by itself or by us."""
        if self._point is not None and self._point.after_s is not None:
            self._follow_clock(self._point.after_s)
            return
        event = self._wait(self._remaining_s())
        if isinstance(event, Halted):
            self._fire(event)
        elif event is None:
            self._hang()

    def _follow_clock(self, after_s: float) -> None:
        event = self._wait(after_s)
        if event is not None:
            return
        self._running.freeze()
        steps = {r: steps for r, (steps, _) in self._running.progress().items()}
        done = min(steps.values(), default=0)
        self.landed = f"step-end:{done}" if done else "start:1"
        self._strike()

    def ended(self, completed: int) -> Ended:
        """Say how it ended, from who ended it and with which status."""
        if self._hung:
            return Ended.HUNG
        if self.reclaimed_at_s is not None:
            return Ended.RECLAIMED
        if self._running.exit_code == 0:
            # A signal that a program answers with status 0 did not let it finish; how
            # many steps are missing is the oracle's business.
            return Ended.EXITED if self.signal is not None else Ended.FINISHED
        if self.signal is not None:
            return Ended.EXITED
        return Ended.FAILED

    def _wait(self, timeout_s: float) -> Halted | Exited | None:
        return self._running.wait(max(0.0, timeout_s))

    def _remaining_s(self) -> float:
        return self._begun_s + self._stage.hang_s - self._stage.clock.monotonic()

    def _fire(self, halted: Halted) -> None:
        """Freeze what is to be interrupted, then interrupt it."""
        # The user's own spelling says more than the site (a part, all processes).
        self.landed = str(self._point) if self._point else halted.kill_point
        self._running.settle(halted.kill_point, SETTLE_S)
        if self._quiet:
            self._wait_for_quiet()
        elif self._stage.settings.halt == "freeze":
            self._running.freeze()
        self._strike()

    def _strike(self) -> None:
        settings = self._stage.settings
        self.fired = True
        if settings.signal == "KILL" or self._quiet:
            self._kill("all" if self._quiet else settings.to)
        else:
            self._send()

    def _kill(self, whom: str) -> None:
        self.signal = "KILL" if whom != "all" else None
        self._running.reclaim(whom)
        if whom == "all":
            self.reclaimed_at_s = self._stage.clock.monotonic()
            return
        # The rest of the attempt lives on, as after the loss of one process; it has the
        # grace window to notice.
        self._running.thaw()
        self._running.go_on()
        self._await_end(self._grace_s())

    def _send(self) -> None:
        settings = self._stage.settings
        self.signal = settings.signal
        steps = [steps for steps, _ in self._running.progress().values()]
        self.signalled_step = min(steps, default=0)
        self._running.signal(settings.signal, settings.to)
        self._running.thaw()
        self._running.go_on()
        self._await_end(self._grace_s())

    def _grace_s(self) -> float:
        grace_s = self._stage.settings.grace_s
        return DEFAULT_GRACE_S if grace_s is None else grace_s

    def _await_end(self, grace_s: float) -> None:
        """Wait for the end; when the grace window closes, the machine is gone."""
        deadline_s = self._stage.clock.monotonic() + grace_s
        grace_steps = self._stage.settings.grace_steps
        while True:
            left_s = deadline_s - self._stage.clock.monotonic()
            event = self._wait(min(left_s, 0.2) if grace_steps is not None else left_s)
            if isinstance(event, Exited):
                return
            if isinstance(event, Halted):
                self._running.go_on(event.rank)
            out_of_steps = (
                grace_steps is not None
                and self._steps() >= (self.signalled_step or 0) + grace_steps
            )
            if out_of_steps or self._stage.clock.monotonic() >= deadline_s:
                self._running.reclaim("all")
                self.reclaimed_at_s = self._stage.clock.monotonic()
                return

    def _steps(self) -> int:
        return min((s for s, _ in self._running.progress().values()), default=0)

    def _hang(self) -> None:
        self._hung = True
        self.stacks = self._running.stacks()
        self._running.reclaim("all")

    def _wait_for_quiet(self) -> None:
        """Let background writers finish: no file changes for a while, or the bound."""
        clock = self._stage.clock
        deadline_s = clock.monotonic() + QUIET_BOUND_S
        seen, since_s = None, clock.monotonic()
        while clock.monotonic() < deadline_s:
            now = sorted(self._view.changed())
            if now != seen:
                seen, since_s = now, clock.monotonic()
            elif clock.monotonic() - since_s >= QUIET_S:
                return
            clock.sleep(QUIET_S / 3)
        raise HarnessError(
            f"files below the folder still change {QUIET_BOUND_S:g} s after a save",
            hint="a program that writes for ever has no quiet moment; see --halt run",
        )


def main_rank(attempt: Attempt) -> RankTrace | None:
    """Return the trace of the lowest rank that trained, or None."""
    ranks = attempt.trace.ranks
    return ranks[min(ranks)] if ranks else None
