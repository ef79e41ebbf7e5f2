"""One trial: a plan carried out on a program, attempt after attempt.

It interrupts and records; it never judges. Everything that it learns goes into the
frozen records of `spotchaos.model`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from spotchaos.config.plan import KillPoint, Plan
from spotchaos.errors import HarnessError
from spotchaos.injectors.disks import (
    damage_at_rest,
    seen_in,
)
from spotchaos.injectors.leftovers import left_in
from spotchaos.injectors.program_store import (
    ProgramStore,
    with_uploads,
)
from spotchaos.injectors.python_faults import PythonRule, seen_by_probe
from spotchaos.launch.attempt.attempt import RunningAttempt
from spotchaos.launch.attempt.spec import FileOrders
from spotchaos.launch.attempt.starting import launch
from spotchaos.launch.isolation.shortages import shortage
from spotchaos.launch.isolation.workspace import View
from spotchaos.launch.supervisor.notify_rules import Rule
from spotchaos.model import Attempt, Ended, Injected, RankTrace, Trial
from spotchaos.oracles.faults import is_ended_by_fault
from spotchaos.trace.reading import read_attempt, read_restarts
from spotchaos.trial.context import RuledFault, TrialContext, is_resume_point
from spotchaos.trial.controller import AttemptController
from spotchaos.trial.split_restarts import split_at_restarts

OPLOG_BOUND_S = 10.0
# Between two starts of a program that failed by itself.
REQUEUE_DELAY_S = 0.2


def run_trial(
    trial_context: TrialContext, plan: Plan, *, number: int, name: str = ""
) -> Trial:
    """Carry out one plan in a view of its own.

    Args:
        trial_context: the campaign's program, settings and workspace.
        plan: kill points, one for each attempt; a last attempt is left alone.
        number: of the trial, from 1; it names the view.
        name: of the phase in events; `trial N` if empty.

    Returns:
        What happened, with every attempt's trace read. An attempt that the harness
        could not carry out has `trouble`, and the trial ends with it.
    """
    phase = name or f"trial {number}"
    begun_s = trial_context.clock.monotonic()
    # Of the baseline's run there are the files, and not what it stored elsewhere.
    runs_all = (
        bool(trial_context.settings.fault) or trial_context.store_wanted is not None
    )
    if plan.after_finish and trial_context.finished_view is not None and not runs_all:
        view = trial_context.finished_view.copy(f"trial-{number}")
        assert trial_context.finished_attempt is not None
        attempts = [trial_context.finished_attempt]
        points: list[KillPoint | None] = [None]
    else:
        view = trial_context.new_view(
            f"trial-{number}" if not name else name.replace(" ", "-")
        )
        attempts = []
        points = [*plan.points, None]
        if plan.after_finish:
            points = [None, None]
    dropped: list[str] = []
    store: ProgramStore | None = None
    with ExitStack() as resources:
        resources.callback(view.close)
        store = resources.enter_context(
            trial_context.new_store(points[0], with_faults=True)
        )
        for place, point in enumerate(points):
            if attempts:
                _await_next_start(trial_context, view, least_s=0.0)
            attempt = run_attempt(
                trial_context,
                view,
                point,
                earlier=attempts,
                faults=() if attempts else trial_context.faults(point),
                store=store,
            )
            parts = split_at_restarts(attempt)
            attempts += parts
            for part in parts:
                trial_context.on_attempt(phase, part)
            if len(parts) > 1 and parts[-1].ended is Ended.FINISHED:
                # Its launcher has brought it to its end: there is nothing to resume.
                left = [str(p) for p in points[place + 1 : -1]]
                if left and plan.drawn:
                    dropped += left
                elif left:
                    attempts[-1] = replace(parts[-1], reached=False)
                break
            if point is not None and not attempt.reached:
                if plan.drawn and len(attempts) > 1:
                    dropped += [str(p) for p in points[place:-1]]
                break
            if point is not None and attempt.trouble is not None:
                break
        else:
            most = len(points) + trial_context.settings.requeue
            while len(attempts) < most and is_requeued(attempts, plan=plan):
                _await_next_start(trial_context, view, least_s=REQUEUE_DELAY_S)
                attempts.append(
                    run_attempt(
                        trial_context, view, None, earlier=attempts, store=store
                    )
                )
                trial_context.on_attempt(phase, attempts[-1])
        if store is not None:
            last = attempts[-1]
            attempts[-1] = replace(last, injected=(*last.injected, *store.not_fired()))
    return Trial(
        number=number,
        plan=str(plan),
        attempts=tuple(attempts),
        wall_s=trial_context.clock.monotonic() - begun_s,
        dropped=tuple(dropped),
        path="warm" if any(a.path == "warm" for a in attempts) else "cold",
    )


def _await_next_start(
    trial_context: TrialContext, view: View, *, least_s: float
) -> None:
    """Wait as a scheduler does, `least_s` seconds if nothing is said; on a new machine."""
    settings = trial_context.settings
    wait_s = settings.requeue_delay_s
    trial_context.clock.sleep(least_s if wait_s is None else wait_s)
    if settings.lose == "machine":
        view.lose_machine(_durable(trial_context, view), move=settings.move)


def is_requeued(attempts: Sequence[Attempt], *, plan: Plan) -> bool:
    """Tell whether a scheduler would start the program once more.

    It failed by itself although it had trained, or since a fault struck it: the next start
    may get further. A program that cannot even begin is not started again, which would
    tell nothing new.
    """
    last = attempts[-1]
    return (
        last.ended is Ended.FAILED
        and (last.trace.completed > 0 or is_ended_by_fault(last))
        and last.trouble is None
        and last.refused_write is None
        and not plan.after_finish
    )


def _durable(trial_context: TrialContext, view: View) -> list[Path] | None:
    """Return the folders that outlive the machine; None: the usual ones."""
    durable = trial_context.settings.durable
    if durable is None:
        return None
    if "://" in durable:
        return []
    return [Path(durable.replace("{out}", str(view.out)))]


def run_attempt(
    trial_context: TrialContext,
    view: View,
    point: KillPoint | None,
    *,
    earlier: Sequence[Attempt] = (),
    orders: Mapping[str, Any] | None = None,
    quiet: bool = False,
    files: FileOrders | None = None,
    oplog: Callable[[Path], None] | None = None,
    faults: Sequence[RuledFault] = (),
    store: ProgramStore | None = None,
) -> Attempt:
    """Launch the program once, interrupt it at `point`, and read what it left.

    Args:
        trial_context: the campaign's program, settings and workspace.
        view: where it runs.
        point: where it is interrupted; None leaves it alone.
        earlier: attempts of this trial, oldest first.
        orders: for the probe, over those of the stage.
        quiet: wait until writes are quiet before it is killed (the control).
        files: has its file ops supervised; a kill point at a file site does so anyway.
        oplog: is given the path of the op log, before it goes.
        faults: of the disk, with their rules.
        store: of the trial's objects; None: one of its own, if it needs any.
    """
    if store is None and trial_context.store_wanted is not None:
        with trial_context.new_store() as alone:
            return run_attempt(
                trial_context,
                view,
                point,
                earlier=earlier,
                orders=orders,
                quiet=quiet,
                files=files,
                oplog=oplog,
                faults=faults,
                store=alone,
            )
    number = len(earlier) + 1
    command = command_after(trial_context, earlier)
    wanted = {**trial_context.orders, **(orders or {})}
    if earlier:
        wanted.setdefault("tensors", "first")
    wanted["store"] = store is not None
    follow_ups = (
        trial_context.settings.follow_ups if point is not None and not quiet else ()
    )
    later = [f.point for f in follow_ups if f.point.site is not None]
    wanted["then"] = [str(p) for p in later if not p.is_file_site]
    held = [f"+{p}" for p in later if p.is_file_site]
    is_slow = (bool(earlier) or point is not None) and not quiet
    if is_slow:
        wanted["slow"] = trial_context.settings.slow_rank
    rules = [(fault, rule) for fault, rule in faults if isinstance(rule, Rule)]
    by_python = [(f, rule) for f, rule in faults if isinstance(rule, PythonRule)]
    if by_python:
        wanted["faults"] = [rule.order() for _, rule in by_python]
    if rules:
        files = replace(
            files or FileOrders(), rules=tuple(str(rule) for _, rule in rules)
        )
    if point is not None and point.is_file_site:
        held.append(str(point))
    elif point is not None and point.site is not None:
        wanted["kill"] = str(point)
    if held:
        files = replace(files or FileOrders(), points=tuple(held))
        if trial_context.settings.halt == "run":
            files = replace(files, others="run")
    if trial_context.outputs is not None:
        files = trial_context.outputs.orders(files)
    begun_s = trial_context.clock.monotonic()
    warm = trial_context.warm(command, view)
    with trial_context.attempt_environment(store) as around:
        if around.redirect:
            wanted["redirect"] = {**wanted.get("redirect", {}), **around.redirect}
        running = launch(
            trial_context.program,
            view,
            number=number,
            orders=wanted,
            command=command,
            environment=around.environment,
            addresses=around.addresses,
            hosts=around.hosts,
            listen=around.places,
            warm=warm,
            files=files,
        )
        try:
            around.serve(running.listeners, running.folder)
            course = AttemptController(
                trial_context.settings,
                running,
                view,
                point,
                attempt_environment=around,
                clock=trial_context.clock,
                hang_s=trial_context.hang_s
                + (_slowed_s(trial_context) if is_slow else 0.0),
                quiet=quiet,
                begun_s=begun_s,
                pace=trial_context.pace_of("cold" if warm is None else "warm"),
                done_before=sum(a.trace.completed for a in earlier),
                follow_ups=follow_ups,
            )
            course.follow()
            attempt = _record(
                running,
                course,
                number,
                command,
                warm=warm is not None,
                is_disk_full=any(f.name in ("enospc", "edquot") for f, _ in faults),
            )
            if attempt.trouble is not None:
                return attempt  # the supervisor's log may have broken off as well
            was_ended = attempt.ended in (Ended.RECLAIMED, Ended.HUNG)
            if (oplog is not None or rules) and not was_ended:
                # Of a reclaimed machine the supervisor went with the program.
                _await_log(running)
            around.learn(attempt)
            if oplog is not None:
                oplog(running.oplog)
            injected = seen_in(running.oplog, rules) if rules else []
            injected += seen_by_probe(running.trace_folder, by_python)
        finally:
            running.close()
    for fault, rule in faults:
        if rule is None:
            injected.append(
                damage_at_rest(fault, view, attempt, patterns=trial_context.patterns)
            )
    attempt = replace(attempt, left=replace(left_in(view), ports=running.ports))
    if trial_context.outputs is not None:
        is_over = attempt.ended in (Ended.FINISHED, Ended.EXITED)
        seen = trial_context.outputs.look(view, running.oplog, is_over=is_over)
        attempt = replace(attempt, outputs=seen)
    if store is not None:
        stored, by_store = store.end_attempt()
        attempt = with_uploads(replace(attempt, stored=stored))
        injected += by_store
    # What it cost is known only when nothing of it lives any more.
    return _with_faults(replace(attempt, cpu_s=running.cpu_s), injected)


def _slowed_s(trial_context: TrialContext) -> float:
    """Return how many seconds a slow rank adds to the uninterrupted run."""
    slow, whole = trial_context.settings.slow_rank, trial_context.finished_attempt
    if slow is None or whole is None:
        return 0.0
    return slow[1] * max(
        (r.completed + len(r.saves) for r in whole.trace.ranks.values()), default=0
    )


def _record(
    running: RunningAttempt,
    course: AttemptController,
    number: int,
    command: Sequence[str],
    *,
    warm: bool,
    is_disk_full: bool,
) -> Attempt:
    """Write down what happened to an attempt that has ended."""
    return Attempt(
        number=number,
        command=tuple(command),
        ended=course.ended(),
        exit_code=running.exit_code,
        trace=read_attempt(running.trace_folder),
        restarts=()
        if course.signalled_at_s is None
        else read_restarts(running.trace_folder, injected_at_s=course.signalled_at_s),
        wall_s=running.wall_s,
        cpu_s=running.cpu_s,
        delayed_s=running.fair_clock.delayed_s,
        kill_point=course.landed,
        reached=course.was_injected,
        signal=course.signal,
        signalled_step=course.signalled_step,
        target=course.target,
        sent=tuple(course.sent),
        unsent=course.unsent,
        notified_rank=running.notified_rank,
        is_deaf=running.is_deaf,
        started_at_s=course.begun_s,
        over_at_s=running.over_at_s,
        notice_at_s=course.notice_at_s,
        reclaimed_at_s=course.reclaimed_at_s,
        output_tail=running.output_tail,
        stacks=course.stacks,
        survivors=tuple(running.survivors),
        trouble=course.trouble
        or shortage(
            running.view.workspace.scratch,
            running.trace_folder,
            running.output_tail,
            is_injected=is_disk_full,
        ),
        refused_write=running.refused_write,
        path="warm" if warm else "cold",
        notice=course.notice,
        stuck=course.stuck,
    )


def _with_faults(attempt: Attempt, injected: Sequence[Injected]) -> Attempt:
    """Add what faults did; an error that ended the attempt stands for its kill point."""
    ended_it = attempt.ended in (Ended.FAILED, Ended.EXITED) and any(
        one.kind in ("error", "store") and one.times for one in injected
    )
    return replace(
        attempt, injected=tuple(injected), reached=attempt.reached or ended_it
    )


def _await_log(running: RunningAttempt) -> None:
    """Wait until the supervisor has written its last line; it notices the end itself.

    That is the end of the last process it serves, a daemon of the program's included.
    """
    oplog = running.oplog
    if not oplog.exists():
        raise HarnessError("the supervisor of file ops did not come up")
    clock = running.fair_clock
    deadline_s = clock.monotonic() + OPLOG_BOUND_S
    while clock.monotonic() < deadline_s:
        running.end_leftovers()
        with oplog.open("rb") as file:
            file.seek(max(0, oplog.stat().st_size - 4096))
            if b'"op":"end"' in file.read():
                return
        clock.sleep(0.02)
    raise HarnessError("the supervisor of file ops did not end with the program")


def command_after(
    trial_context: TrialContext, earlier: Sequence[Attempt]
) -> tuple[str, ...]:
    """Return the first command, or the resume command once there is a resume point."""
    resume = trial_context.program.resume_command
    if resume is None or not any(
        has_resume_point(a, trial_context.patterns) for a in earlier
    ):
        return trial_context.program.command
    return resume


def has_resume_point(attempt: Attempt, patterns: Sequence[str]) -> bool:
    """Tell whether any rank of the attempt completed a save that can be resumed from."""
    return any(
        save.ended_at_s is not None and is_resume_point(save.paths, patterns)
        for rank in attempt.trace.ranks.values()
        for save in rank.saves
    )


def main_rank(attempt: Attempt) -> RankTrace | None:
    """Return the trace of the lowest rank that trained, or None."""
    ranks = attempt.trace.ranks
    return ranks[min(ranks)] if ranks else None
