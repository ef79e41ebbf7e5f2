"""Recording a run or a resume with the bytes of its file ops, by what is offered here."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from spotchaos.campaign.baseline import BaselineContext
from spotchaos.campaign.baseline_failures import kept_from
from spotchaos.config.plan import KillPoint
from spotchaos.errors import HarnessError
from spotchaos.explore.crash_classes import Case
from spotchaos.explore.resuming import Starter
from spotchaos.launch.attempt.spec import FileOrders
from spotchaos.launch.isolation.view import View
from spotchaos.launch.supervisor.strace import strace_available
from spotchaos.model import Attempt, Ended
from spotchaos.oracles.wording import ending_of
from spotchaos.persistence import oplog
from spotchaos.persistence.materialise import Materialiser
from spotchaos.recording.python_recorder import not_announced, python_recorded_run
from spotchaos.recording.recorded_run import (
    Recorded,
    linked_start,
    put,
    recorded_attempt,
    recorded_of,
    with_own_data,
)
from spotchaos.recording.strace_recorder import not_seen, strace_run
from spotchaos.trial.context import TrialContext
from spotchaos.trial.trial import run_attempt

# Checkpoints whose recordings are larger are recorded once, and only the first saves.
LARGE_BYTES, MOST_BYTES = 512 << 20, 5 << 29
FIRST_SAVES = 2
RECORDING = FileOrders(keep_data=True, real_fsync=False)


class Mechanism(StrEnum):
    """What records the file ops of a program."""

    NOTIFY = "seccomp-notify"
    STRACE = "strace"
    PYTHON = "python"


class Recorder:
    """Records runs of one exploration.

    Attributes:
        mechanism: by which it does.
        left_out: clauses on what such a recording cannot show.

    Raises:
        HarnessError: nothing here can record what this program does.
    """

    def __init__(self, baseline_context: BaselineContext, starter: Starter) -> None:
        self._baseline_context = baseline_context
        self._starter = starter
        self.left_out: list[str] = []
        self.mechanism = Mechanism.NOTIFY
        if baseline_context.site_index.file_ops is not None:
            return
        self.mechanism = Mechanism.STRACE
        available, why = strace_available()
        if available:
            return
        self.mechanism = Mechanism.PYTHON
        if baseline_context.baseline.world_size > 1:
            reasons = [
                n.message for n in baseline_context.notes if "left-out" in n.name
            ]
            raise HarnessError(
                "no crash state of several ranks can be explored: "
                + (reasons[0] if reasons else "file operations cannot be recorded")
                + f"; {why}",
                hint="`spotchaos run --kill-at save-begin:2` interrupts around a save",
            )

    @property
    def sees_reads(self) -> bool:
        """Whether resumes can be observed and recorded as well."""
        return self.mechanism is Mechanism.NOTIFY

    @property
    def written_bytes(self) -> int:
        """How much the uninterrupted program writes, as far as that is known."""
        log = self._baseline_context.trial_context.log
        ops = () if log is None else log.ops
        return sum(op.length for op in ops if op.kind == "write" and op.error is None)

    @property
    def is_large(self) -> bool:
        """Whether what the program writes should not lie on the disk several times."""
        return self.written_bytes > LARGE_BYTES

    def run(self) -> Recorded:
        """Record the program from its beginning, to its end unless that is too much."""
        if self.mechanism is Mechanism.NOTIFY:
            return self._starter.carry_out(self._run)
        view = self._baseline_context.trial_context.new_view("recorded")
        try:
            if self.mechanism is Mechanism.STRACE:
                attempt, log = strace_run(self._baseline_context.trial_context, view)
                self.left_out.append(not_seen())
            else:
                attempt, log = python_recorded_run(self._starter.cold, view)
                self.left_out.append(not_announced())
            return self._taken(attempt, log, view)
        finally:
            view.close()

    def _run(self, trial_context: TrialContext) -> Recorded:
        view = trial_context.new_view("recorded")
        try:
            if self.written_bytes > MOST_BYTES:
                saves = trial_context.settings.saves or FIRST_SAVES
                attempt, log = _first_saves(trial_context, view, saves)
                self.left_out.append(
                    f"what follows the first {saves} saves, the checkpoints being large"
                )
            else:
                attempt, log = _supervised(trial_context, view, ())
            return self._taken(attempt, log, view)
        finally:
            view.close()

    def _taken(self, attempt: Attempt, log: oplog.OpLog, view: View) -> Recorded:
        if attempt.ended is not Ended.FINISHED and attempt.kill_point is None:
            program = self._baseline_context.trial_context.program
            raise HarnessError(
                f"the recorded run ended with {ending_of(attempt)}",
                hint=kept_from(
                    attempt,
                    allow_network=program.allow_network,
                    removed=program.removed,
                )
                or "run it under `spotchaos run --kill-at file-op:1` to see why",
            )
        _demand_no_path_of(view, log)
        return recorded_of(
            attempt, log, linked_start(self._baseline_context.trial_context, "start")
        )

    def resume(self, base: Case, number: int) -> Recorded:
        """Record a resume from a crash state."""
        folder = (
            self._baseline_context.trial_context.workspace.scratch / f"start-{number}"
        )
        Materialiser(base.record.history).write(base.state.layout, folder)
        before = base.record.cut((base.state.latest or base.state.token).number)

        def run(trial_context: TrialContext) -> tuple[Attempt, oplog.OpLog]:
            view = trial_context.new_view(f"resume-{number}")
            try:
                put(view, base.writer, base.record, base.state.layout)
                return _supervised(trial_context, view, before)
            finally:
                view.close()

        attempt, log = self._starter.carry_out(run)
        return recorded_of(
            attempt,
            log,
            folder,
            began_in=base.state.layout,
            own=base.record.own,
            earlier=before,
            plan=base.record.plan_of(base.state.token) or "",
        )


def _supervised(
    trial_context: TrialContext, view: View, earlier: Sequence[Attempt]
) -> tuple[Attempt, oplog.OpLog]:
    attempt, log = recorded_attempt(trial_context, view, earlier, files=RECORDING)
    if log is None:
        raise HarnessError("the recording of file operations broke off")
    return attempt, log


def _first_saves(
    trial_context: TrialContext, view: View, saves: int
) -> tuple[Attempt, oplog.OpLog]:
    """Record a run up to the beginning of the save after the first ones."""
    logs: list[oplog.OpLog] = []
    attempt = run_attempt(
        trial_context,
        view,
        KillPoint(site="save-begin", occurrence=saves + 1),
        files=RECORDING,
        oplog=lambda path: logs.append(
            with_own_data(oplog.read(path), trial_context, view)
        ),
    )
    if not logs or (not attempt.reached and not logs[0].complete):
        raise HarnessError("the recording of file operations broke off")
    return attempt, logs[0]


def _demand_no_path_of(view: View, log: oplog.OpLog) -> None:
    """Refuse a recording that holds the path of a view, where each view has its own.

    A program that finds its checkpoint by such a path would look into the wrong view.

    Raises:
        HarnessError: the program has written the path of its folder.
    """
    if view.workspace.mechanisms.mount_namespace:
        return
    needle = str(view.place).encode()
    content = log.blob if log.data is None else log.data.read_bytes()
    if needle in content:
        raise HarnessError(
            "the program writes the path of its folder into its files, and without mount"
            " namespaces that is another in every run: no crash state can be resumed from",
            hint="`spotchaos doctor` says what this machine lacks; `spotchaos run` works",
        )
