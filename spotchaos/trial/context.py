"""What all trials of a campaign share, and what is asked of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from spotchaos.clock import Clock, SystemClock
from spotchaos.config.plan import KillPoint, Plan
from spotchaos.config.settings import Settings
from spotchaos.errors import HarnessError
from spotchaos.injectors.attempt_environment import AttemptEnvironment, Pace
from spotchaos.injectors.disks import (
    DiskFault,
    injected_step,
    rule_of,
)
from spotchaos.injectors.polling import Polls
from spotchaos.injectors.program_store import (
    ProgramStore,
    StoreWanted,
    injected_step_by,
    is_storage_fault,
    on_last_save,
    store_wanted,
)
from spotchaos.injectors.python_faults import (
    PythonRule,
    injected_step_in_python,
    python_rule_of,
)
from spotchaos.injectors.storage_faults import StorageFault
from spotchaos.launch.isolation.program import Program
from spotchaos.launch.isolation.workspace import View, Workspace
from spotchaos.launch.supervisor.notify_rules import Rule
from spotchaos.launch.zygote.forkable import Start, start_of
from spotchaos.launch.zygote.zygote import Warm, Zygote
from spotchaos.model import Attempt, SaveMark
from spotchaos.oracles.resume_points import pattern_of
from spotchaos.outputs.watching import Watch
from spotchaos.persistence.oplog import OpLog
from spotchaos.planning.edges import SiteIndex
from spotchaos.providers.stories import Story, story

# A fault of the disk, with the rule by which it strikes a run; None: it strikes at rest.
RuledFault = tuple[DiskFault, Rule | PythonRule | None]


@dataclass(frozen=True, slots=True)
class TrialContext:
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
    timed: tuple[Attempt, ...] = ()  # uninterrupted runs by which windows are sized
    on_attempt: Callable[[str, Attempt], None] = lambda phase, attempt: None
    zygote: Zygote | None = None  # None: every attempt is started fresh
    log: OpLog | None = None  # file ops of a run that was left alone ...
    recorded: Attempt | None = None  # ... and that run
    outputs: Watch | None = None  # None: what is left behind is not judged
    clock: Clock = field(default_factory=SystemClock)
    polls: Polls = field(default_factory=Polls)

    def warm(self, command: Sequence[str], view: View) -> Warm | None:
        """Return how the zygote serves a command; None for the cold path."""
        is_moved = view.folder != view.workspace.folder
        filled = [word.replace("{out}", str(view.out)) for word in command]
        start = start_of(filled, self.program.environment, self.program.folder)
        if self.zygote is None or self._why_fresh(start, is_moved=is_moved):
            return None
        assert start is not None  # or there were a reason
        return Warm(self.zygote, start)

    def why_fresh(self, command: Sequence[str], *, is_moved: bool) -> str | None:
        """Say why a command is started fresh although there is a zygote; None: it is not.

        Args:
            command: what is started.
            is_moved: the folder has another path than when the zygote was raised.
        """
        start = start_of(command, self.program.environment, self.program.folder)
        return (
            None if self.zygote is None else self._why_fresh(start, is_moved=is_moved)
        )

    def _why_fresh(self, start: Start | None, *, is_moved: bool) -> str | None:
        settings = self.settings
        if self.program.pty:
            return "the program wants a terminal"
        if is_moved:
            return "what can be forked knows the folder by its old path"
        if start is None:
            return "only a script, -m, or a torchrun that just starts ranks is forked"
        if self.zygote is not None and not self.zygote.serves(start):
            return "it names another interpreter, or other options of it"
        if start.ranks is not None and (
            settings.signal != "KILL" or settings.to != "all" or settings.notice
        ):
            return "what a launcher does with a signal is its own"
        return None

    def pace_of(self, path: str) -> Pace | None:
        """Return how fast the uninterrupted program is, once that is known.

        Args:
            path: "warm" or "cold", as the attempts are that will be struck: a fresh
                process does its first steps more slowly than a forked one.
        """
        same = [run for run in self.timed if run.path == path]
        known = [*self.timed[-1:], *same[-1:]]
        return Pace.of(known[-1]) if known else None

    @property
    def story(self) -> Story | None:
        """What its provider does to each machine of a trial; None: no notice comes."""
        settings = self.settings
        if settings.notice is None:
            return None
        grace_s = settings.grace_s
        pace = self.pace_of("cold")
        if settings.grace_steps is not None and pace is not None:
            grace_s = settings.grace_steps * pace.step_s
        return story(settings.notice, grace_s=grace_s)

    @property
    def time_scale(self) -> float | None:
        """Cloud seconds per real second; None: chosen when the notice comes."""
        # A window in steps is one of real seconds already.
        return (
            1.0 if self.settings.grace_steps is not None else self.settings.time_scale
        )

    @property
    def store_wanted(self) -> StoreWanted | None:
        """Which object store the program finds; None: it needs none."""
        return wanted_by(self.settings, self.program.environment)

    def new_store(
        self, point: KillPoint | None = None, *, with_faults: bool = False
    ) -> AbstractContextManager[ProgramStore | None]:
        """Return an empty store for the attempts of one trial, if there is to be one.

        Args:
            point: where the first attempt is interrupted; it says which save is its last.
            with_faults: faults strike what the attempts do with it.
        """
        wanted = self.store_wanted
        if wanted is None:
            return nullcontext()
        return ProgramStore(wanted, self.store_faults(point) if with_faults else None)

    def store_faults(self, point: KillPoint | None) -> dict[str, StorageFault]:
        """Return the faults of the object store, by how they were asked for."""
        recorded = self.finished_attempt
        found = {}
        for text in filter(is_storage_fault, self.settings.fault):
            fault = StorageFault.parse(text)
            if recorded is not None:
                saves = sorted(
                    (s for r in recorded.trace.ranks.values() for s in r.saves),
                    key=lambda save: save.begun_at_s,
                )
                if point is not None and point.site == "step-end":
                    saves = [s for s in saves if s.step < point.occurrence] or saves
                fault = on_last_save(fault, recorded, saves)
            found[text] = fault
        return found

    def attempt_environment(self, store: ProgramStore | None) -> AttemptEnvironment:
        """Return what one attempt finds around it."""
        names = self.workspace.mechanisms.namespaces
        isolated = "network" in names and not self.program.allow_network
        if self.settings.netns and not isolated:
            raise HarnessError(
                "--netns needs a network namespace, and there is none",
                hint="leave out --allow-network; `spotchaos doctor` says what this"
                " machine can do",
            )
        return AttemptEnvironment(
            self.story,
            isolated=isolated,
            time_scale=self.time_scale,
            real_addresses=self.settings.netns,
            store=store,
            own=self.program.environment,
            polls=self.polls,
            clock=self.clock,
        )

    def faults(self, point: KillPoint | None) -> list[RuledFault]:
        """Return the faults of the disk, with the rule of each that strikes a run."""
        found: list[RuledFault] = []
        for text in self.settings.fault:
            if is_storage_fault(text):
                continue
            fault = DiskFault.parse(text)
            if not fault.is_supervised:
                found.append((fault, None))
                continue
            before = None
            if point is not None and point.site == "step-end":
                before = point.occurrence
            if self.log is None or self.recorded is None:
                by_python = python_rule_of(fault, self._saves(), before=before)
                found.append((fault, by_python))
                continue
            rule = rule_of(
                fault, self.log, self.recorded, patterns=self.patterns, before=before
            )
            found.append((fault, rule))
        return found

    def _saves(self) -> list[SaveMark]:
        """Return the saves of the uninterrupted run, of its first rank."""
        whole = self.finished_attempt
        ranks = {} if whole is None else whole.trace.ranks
        return list(ranks[min(ranks)].saves) if ranks else []

    def injected_step(self, rule: Rule | PythonRule) -> int | None:
        """Return after how many steps a fault would first strike; None: never."""
        if isinstance(rule, PythonRule):
            return injected_step_in_python(rule, self._saves())
        if self.log is None or self.recorded is None:
            return None
        return injected_step(rule, self.log, self.recorded)

    def new_view(self, name: str) -> View:
        """Return a private copy-on-write view of the program's folder."""
        view = self.workspace.view(name)
        if self.hidden:
            view.hide(self.hidden)
        return view


def check_asked(settings: Settings) -> None:
    """Raise UsageError for a notice or fault that does not exist, before anything runs."""
    if settings.notice is not None:
        story(settings.notice, grace_s=settings.grace_s)
    for text in settings.fault:
        if not is_storage_fault(text):
            DiskFault.parse(text)
    wanted_by(settings, settings.environment)


def wanted_by(settings: Settings, environment: Mapping[str, str]) -> StoreWanted | None:
    """Return which object store a program needs; None: none."""
    return store_wanted(
        durable=settings.durable,
        faults=settings.fault,
        command=(*settings.command, *(settings.resume_cmd or ())),
        environment=environment,
        allow_network=settings.allow_network,
    )


def plan_of_faults(trial_context: TrialContext, site_index: SiteIndex) -> Plan:
    """Return where a run is interrupted so that its faults show: soon after they struck.

    An error shows at the first step after it, damage once the newest checkpoint of a run
    in the middle is loaded, and a clock that was wrong when two machines have saved.
    """
    saves = [step for step, _ in site_index.saves if 0 < step < site_index.horizon]
    steps: list[int] = []
    for fault, rule in trial_context.faults(None):
        if rule is not None:
            injected = trial_context.injected_step(rule)
            steps.append(site_index.horizon if injected is None else injected + 1)
        elif fault.name == "clock-skew" and len(saves) > 1:
            second = KillPoint(site="step-end", occurrence=saves[1] - saves[0] + 1)
            return Plan((KillPoint(site="step-end", occurrence=saves[0] + 1), second))
        elif saves:
            steps.append(saves[len(saves) // 2] + 1)
    for one in trial_context.store_faults(None).values():
        recorded = trial_context.finished_attempt
        injected = None if recorded is None else injected_step_by(one, recorded)
        if injected is not None:
            steps.append(injected + 1)
        elif saves:  # what only a resume does, which comes after a save
            steps.append(saves[len(saves) // 2] + 1)
    step = max(steps, default=site_index.horizon)
    if step >= site_index.horizon:
        return Plan((), after_finish=True)
    return Plan((KillPoint(site="step-end", occurrence=step),))


def is_resume_point(paths: Sequence[str], patterns: Sequence[str]) -> bool:
    """Tell whether a save of these paths wrote what the control's resume read."""
    return bool(paths) and (
        not patterns or any(pattern_of(path) in patterns for path in paths)
    )
