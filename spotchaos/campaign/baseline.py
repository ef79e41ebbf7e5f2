"""The groundwork of a campaign: uninterrupted runs, the light run and the control.

Rules 3 and 4 of judgement live here: what a resume point is, which checkpoints are
hidden, what repeats and what does not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spotchaos.campaign.baseline_failures import failure_of, kept_from
from spotchaos.campaign.counting import other_way_to_count
from spotchaos.campaign.site_index import (
    control_step,
    existing_checkpoints,
    resume_patterns,
    site_index_of,
    written_patterns,
)
from spotchaos.campaign.zygote_setup import ZygoteSetup, unlike
from spotchaos.clock import Clock
from spotchaos.config.plan import KillPoint, Plan
from spotchaos.config.settings import Settings
from spotchaos.errors import HarnessError
from spotchaos.events import AttemptEnded, BaselineDone, Event, PhaseStarted
from spotchaos.injectors.disks import DiskFault
from spotchaos.injectors.program_store import is_storage_fault
from spotchaos.launch.attempt.spec import FileOrders
from spotchaos.launch.isolation.program import Program, wants_terminal
from spotchaos.launch.isolation.workspace import View, Workspace
from spotchaos.launch.supervisor.supervisor import supervisor_available
from spotchaos.launch.zygote.zygote import Zygote
from spotchaos.model import Attempt, Baseline, Ended, Finding, Note, RankTrace, Trial
from spotchaos.oracles import judge_baselines
from spotchaos.outputs.baseline_outputs import (
    Grounded,
    LeftByRuns,
    is_untrained,
    may_be_judged_by_outputs,
    nothing_at_all,
    stands_in,
)
from spotchaos.outputs.plans import Places
from spotchaos.persistence import oplog
from spotchaos.planning.edges import SiteIndex
from spotchaos.trial.context import TrialContext
from spotchaos.trial.trial import main_rank, run_attempt

# An attempt hangs when it takes this many times as long as the uninterrupted run, and
# this many seconds more: a loaded machine slows one run, not by this much.
HANG_FACTOR = 6.0
HANG_EXTRA_S = 60.0

LIGHT = {"fingerprint": "light"}
RECORDED = FileOrders()

Emit = Callable[[Event], None]


class BaselineFailed(Exception):  # noqa: N818 - it carries a finding, it is no error
    """The groundwork cannot be laid; carries the finding that says why.

    `baseline` holds the uninterrupted runs, if there are some that ended well.
    """

    def __init__(self, finding: Finding, baseline: Baseline | None = None) -> None:
        super().__init__(finding.message)
        self.finding = finding
        self.baseline = baseline


@dataclass(frozen=True, slots=True)
class BaselineContext:
    """What trials are compared with, and where they can be interrupted."""

    trial_context: TrialContext
    baseline: Baseline
    site_index: SiteIndex
    notes: tuple[Note, ...]
    first_rank: RankTrace | None  # None: no process of it loaded the probe
    packages_sha: str
    cpu_s: float
    places: Places | None = None  # of a program that is judged by its outputs alone


def prepare_baseline(
    settings: Settings,
    program: Program,
    workspace: Workspace,
    emit: Emit,
    *,
    clock: Clock,
    zygote: Zygote | None = None,
) -> BaselineContext:
    """Run the program without interruption, twice, once lightly, and once resumed.

    Args:
        settings: the program, and how it is started.
        program: the same, as a program.
        workspace: where its views are made.
        emit: is told each event.
        clock: for durations.
        zygote: a ready one, whose owner answers for it: then no run is a fresh process.

    Raises:
        BaselineFailed: it fails by itself, trains nothing that we see, does not repeat,
            or changes no weight.
        HarnessError: we could not do our part.
    """
    trial_context = TrialContext(
        settings,
        program,
        workspace,
        orders=_orders(settings),
        hang_s=settings.timeout_s,
        on_attempt=lambda phase, attempt: emit(AttemptEnded(phase, attempt)),
        zygote=zygote,
        clock=clock,
    )
    builder = _Builder(trial_context, emit)
    try:
        return builder.build()
    except BaseException:
        builder.end_zygotes(but=zygote)
        raise


def run_lightly(
    settings: Settings,
    program: Program,
    workspace: Workspace,
    emit: Emit,
    *,
    clock: Clock,
) -> TrialContext:
    """Run the program once, fresh and with few fingerprints, for its times alone.

    Returns:
        What further runs share, with that run and its view, which is the caller's.

    Raises:
        BaselineFailed: it fails by itself, or trains nothing that we see.
        HarnessError: we could not do our part.
    """
    trial_context = TrialContext(
        settings,
        program,
        workspace,
        orders={**_orders(settings), **LIGHT},
        hang_s=settings.timeout_s,
        on_attempt=lambda phase, attempt: emit(AttemptEnded(phase, attempt)),
        clock=clock,
    )
    return _Builder(trial_context, emit).lightly()


class _Builder:
    def __init__(self, trial_context: TrialContext, emit: Emit) -> None:
        self._trial_context = trial_context
        self._emit = emit
        self._notes: list[Note] = []
        self._cpu_s = 0.0
        self._log: oplog.OpLog | None = None
        self._zygote_setup = ZygoteSetup()
        self._left: LeftByRuns | None = None  # None: what runs leave is not wanted
        self._grounded: Grounded | Finding | None = None

    def end_zygotes(self, *, but: Zygote | None) -> None:
        """End the zygotes that were raised here, if nobody will come to own them."""
        self._zygote_setup.close()
        zygote = self._trial_context.zygote
        if zygote is not None and zygote is not but:
            zygote.close()

    def lightly(self) -> TrialContext:
        attempt, view = self._first_run()
        if not attempt.trace.completed:
            raise BaselineFailed(
                Finding("not-observed", "no training step was seen, so none was timed")
            )
        return replace(
            self._trial_context,
            finished_view=view,
            finished_attempt=attempt,
            patterns=written_patterns(attempt),
        )

    def build(self) -> BaselineContext:
        first, view = self._first_run()
        if may_be_judged_by_outputs(first, self._trial_context.settings):
            self._left = LeftByRuns(view)
        self._trial_context = replace(
            self._trial_context,
            finished_view=view,
            finished_attempt=first,
            hang_s=min(
                self._trial_context.settings.timeout_s,
                first.wall_s * HANG_FACTOR + HANG_EXTRA_S,
            ),
        )
        second = self._second_run(first)
        self._demand_finished(second)
        self._trial_context = replace(self._trial_context, timed=(first, second))
        if is_untrained(first):
            orders = {**self._trial_context.orders, "inference": True}
            self._trial_context = replace(self._trial_context, orders=orders)
        light = self._light_run(first)
        self._demand_finished(light)
        facts = judge_baselines((first, second), light)
        finding = facts.finding
        is_alone = stands_in(first, finding)
        if self._left is not None:
            self._grounded = self._left.baseline_context(
                self._trial_context.settings,
                self._log,
                [first.stored, second.stored],
                is_alone=is_alone,
                trainings=len(first.trace.in_turn),
                is_blind=not first.trace.processes,
            )
        if isinstance(self._grounded, Finding):
            raise BaselineFailed(self._grounded, facts.baseline)
        if is_alone and self._grounded is not None:
            return self._without_training(facts.baseline, light, self._grounded)
        if is_alone and finding is None:
            finding = nothing_at_all()
        if finding is not None:
            raise BaselineFailed(finding, facts.baseline)
        baseline = replace(
            facts.baseline, patterns=written_patterns(first), light=light
        )
        rank = main_rank(first)
        assert rank is not None  # or judge_baselines had said `not-observed`
        baseline = self._with_outputs(baseline)
        control = self._control(baseline, rank)
        patterns = resume_patterns(first, control)
        baseline = replace(baseline, control=control, patterns=patterns)
        self._trial_context = replace(
            self._trial_context, patterns=patterns, log=self._log, recorded=light
        )
        self._notes += facts.notes
        self._emit(BaselineDone(baseline, tuple(self._notes)))
        return BaselineContext(
            trial_context=self._trial_context,
            baseline=baseline,
            site_index=site_index_of(rank, patterns, light, self._log),
            notes=tuple(self._notes),
            first_rank=rank,
            packages_sha=_packages_sha(rank),
            cpu_s=self._cpu_s,
        )

    def _run(
        self,
        name: str,
        *,
        orders: Mapping[str, Any] | None = None,
        files: FileOrders | None = None,
    ) -> Attempt:
        return self._run_in_view(name, orders=orders, files=files)[0]

    def _run_in_view(
        self,
        name: str,
        *,
        orders: Mapping[str, Any] | None = None,
        keep: bool = False,
        files: FileOrders | None = None,
    ) -> tuple[Attempt, View]:
        self._emit(PhaseStarted(name))
        if self._left is not None:
            self._left.forget(name.replace(" ", "-"))
        view = self._trial_context.new_view(name.replace(" ", "-"))
        if keep:
            self._zygote_setup.begin(self._trial_context)
        try:
            attempt = run_attempt(
                self._trial_context,
                view,
                None,
                orders=orders,
                files=files,
                oplog=None if files is None else self._keep_log,
            )
        finally:
            if not keep:
                view.close() if self._left is None else self._left.add(view)
        self._cpu_s += attempt.cpu_s
        self._emit(AttemptEnded(name, attempt))
        return attempt, view

    def _with_outputs(self, baseline: Baseline) -> Baseline:
        found = self._grounded
        if not isinstance(found, Grounded):
            return baseline
        self._trial_context = replace(self._trial_context, outputs=found.watch)
        self._notes.append(found.note)
        return replace(baseline, outputs=found.found)

    def _without_training(
        self, baseline: Baseline, light: Attempt, found: Grounded
    ) -> BaselineContext:
        """Return the groundwork of a program that is judged by what it leaves."""
        # How steps are counted is of no interest where none is judged.
        self._notes = [n for n in self._notes if n.name != "counted-otherwise"]
        baseline = self._with_outputs(
            replace(baseline, light=light, repeatable=True, differs_at=None)
        )
        self._trial_context = replace(
            self._trial_context, log=self._log, recorded=light
        )
        places = Places(light, self._log, found.watch)
        self._emit(BaselineDone(baseline, tuple(self._notes)))
        rank = main_rank(baseline.first)
        return BaselineContext(
            trial_context=self._trial_context,
            baseline=baseline,
            site_index=places.site_index(None if self._log is None else self._log.last),
            notes=tuple(self._notes),
            first_rank=rank,
            packages_sha="" if rank is None else _packages_sha(rank),
            cpu_s=self._cpu_s,
            places=places,
        )

    def _light_run(self, first: Attempt) -> Attempt:
        """Run with few fingerprints, and with file ops recorded where they can be.

        It must be the run that the others are: what it shows is that neither probe nor
        supervisor changes anything.
        """
        available, reason = supervisor_available()
        if not available:
            self._notes.append(
                Note(
                    "inside-save-left-out",
                    f"file sites are off: {reason}{self._by_python()}",
                )
            )
            return self._run("light run", orders=LIGHT)
        light = self._run("light run", orders=LIGHT, files=RECORDED)
        if light.ended is Ended.FINISHED and self._log is not None:
            return light
        self._log = None
        program = self._trial_context.program
        why = kept_from(
            light, allow_network=program.allow_network, removed=program.removed
        )
        self._notes.append(
            Note(
                "inside-save-left-out",
                "file sites are off: the program does not end well when its file"
                f" operations are recorded (status {light.exit_code})"
                + (f": {why}" if why else "")
                + self._by_python(),
            )
        )
        return self._run("light run", orders=LIGHT)

    def _by_python(self) -> str:
        """Say where faults strike instead, if there are any."""
        faults = [
            f for f in self._trial_context.settings.fault if not is_storage_fault(f)
        ]
        if not any(DiskFault.parse(text).is_supervised for text in faults):
            return ""
        return (
            "; faults strike where Python opens, renames, links or syncs a checkpoint, and"
            " count that: what compiled code writes by itself goes through"
        )

    def _keep_log(self, path: Path) -> None:
        """Read the op log while its files are there."""
        try:
            self._log = oplog.read(path)
        except (HarnessError, OSError):
            self._log = None

    def _second_run(self, first: Attempt) -> Attempt:
        """Run again, from a zygote if there can be one; it must equal the first run."""
        if self._trial_context.zygote is not None:
            return self._run("baseline 2")
        try:
            zygote = self._zygote_setup.complete(self._trial_context, first)
        except (HarnessError, OSError) as error:
            self._notes.append(Note("cold-path", f"every run is fresh: {error}"))
            zygote = None
        if zygote is None:
            return self._run("baseline 2")
        self._trial_context = replace(self._trial_context, zygote=zygote)
        second = self._run("baseline 2")
        reason = unlike(first, second)
        if reason is None:
            return second
        zygote.close()
        self._trial_context = replace(self._trial_context, zygote=None)
        fresh = self._run("baseline 2")
        own = unlike(first, fresh)
        said = f"a forked run was not the fresh one: {reason}"
        if own is not None:
            said = (
                f"its fresh runs are not alike, so that no forked one is trusted: {own}"
            )
        self._notes.append(Note("cold-path", said))
        return fresh

    def _first_run(self) -> tuple[Attempt, View]:
        """Run once; settle terminal, existing checkpoints and what counts a step."""
        attempt, view = self._fresh_run()
        if attempt.ended is not Ended.FINISHED and wants_terminal(attempt.output_tail):
            program = replace(self._trial_context.program, pty=True)
            self._trial_context = replace(self._trial_context, program=program)
            attempt, view = self._again(view)
        attempt, view = self._hide_existing(attempt, view)
        self._demand_finished(attempt)
        counting = other_way_to_count(attempt)
        if counting is not None:
            message, orders = counting
            self._notes.append(Note("counted-otherwise", message))
            self._trial_context = replace(
                self._trial_context, orders={**self._trial_context.orders, **orders}
            )
            attempt, view = self._again(view)
            self._demand_finished(attempt)
        return attempt, view

    def _again(self, view: View) -> tuple[Attempt, View]:
        view.close()
        return self._fresh_run()

    def _fresh_run(self) -> tuple[Attempt, View]:
        wanted = {"modules": self._trial_context.settings.warm}
        return self._run_in_view("baseline 1", orders=wanted, keep=True)

    def _hide_existing(self, attempt: Attempt, view: View) -> tuple[Attempt, View]:
        """Hide the checkpoints that lie in the folder, and run again without them."""
        if self._trial_context.settings.keep_existing:
            return attempt, view
        existing = existing_checkpoints(attempt, self._trial_context.program.folder)
        if not existing:
            return attempt, view
        stage_before = self._trial_context
        self._trial_context = replace(self._trial_context, hidden=tuple(existing))
        again, new_view = self._again(view)
        if again.ended is not Ended.FINISHED and attempt.ended is Ended.FINISHED:
            # What it read is no checkpoint of its own but something that it needs.
            self._trial_context = stage_before
            return self._again(new_view)
        names = ", ".join(existing[:4]) + (" ..." if len(existing) > 4 else "")
        self._notes.append(
            Note(
                "existing-hidden",
                f"checkpoints that lay in the folder were hidden from the runs: {names}",
            )
        )
        return again, new_view

    def _demand_finished(self, attempt: Attempt) -> None:
        if attempt.trouble is not None:
            raise HarnessError(attempt.trouble)
        if attempt.ended is Ended.FINISHED:
            return
        raise BaselineFailed(
            failure_of(
                attempt,
                self._trial_context.hang_s,
                allow_network=self._trial_context.program.allow_network,
                removed=self._trial_context.program.removed,
                notice=self._trial_context.settings.notice,
            )
        )

    def _control(self, baseline: Baseline, rank: RankTrace) -> Trial | None:
        """Stop once, cleanly, after a middle save, and resume (rules.md 3)."""
        step = control_step(rank, baseline.horizon)
        if step is None:
            return None
        self._emit(PhaseStarted("control", f"step-end:{step}"))
        view = self._trial_context.new_view("control")
        attempts: list[Attempt] = []
        with ExitStack() as resources:
            resources.callback(view.close)
            store = resources.enter_context(self._trial_context.new_store())
            for point in (KillPoint(site="step-end", occurrence=step), None):
                attempt = run_attempt(
                    self._trial_context,
                    view,
                    point,
                    earlier=attempts,
                    # What only a resume imports, it depends on as well.
                    orders={"modules": self._trial_context.settings.warm},
                    quiet=point is not None,
                    store=store,
                )
                attempts.append(attempt)
                self._cpu_s += attempt.cpu_s
                self._emit(AttemptEnded("control", attempt))
                if not attempt.reached:
                    break
        plan = Plan((KillPoint(site="step-end", occurrence=step),))
        return Trial(
            number=0,
            plan=str(plan),
            attempts=tuple(attempts),
            wall_s=sum(a.wall_s for a in attempts),
        )


def _orders(settings: Settings) -> dict[str, Any]:
    return {
        "fingerprint": settings.fingerprint,
        "seed_program": settings.seed_program,
        "deterministic": settings.deterministic,
        "threads": settings.threads,
        "allow_network": settings.allow_network,
    }


def _packages_sha(rank: RankTrace) -> str:
    """Return 12 hex digits that name interpreter and torch of the program."""
    text = f"{rank.python}|{rank.torch}|{rank.algorithm}"
    return hashlib.sha256(text.encode()).hexdigest()[:12]
