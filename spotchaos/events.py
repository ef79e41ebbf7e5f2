"""What a campaign announces while it runs; reports and screens are its listeners.

The campaign does not know who listens. An event is never a line of a trace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spotchaos.config.settings import Settings
from spotchaos.model import Attempt, Baseline, Judgement, Note, Trial, Verdict
from spotchaos.trace.timing import Timing


@dataclass(frozen=True, slots=True)
class Started:
    """The campaign begins."""

    settings: Settings
    unprotected: tuple[str, ...]  # sentences: what this machine cannot isolate


@dataclass(frozen=True, slots=True)
class PhaseStarted:
    """A phase begins: "baseline 1", "control", "trial 3"; with its plan if it has one."""

    name: str
    plan: str | None = None


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """One attempt of the named phase came to its end."""

    phase: str
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class BaselineDone:
    """All uninterrupted runs and the control are done and compared."""

    baseline: Baseline
    notes: tuple[Note, ...]


@dataclass(frozen=True, slots=True)
class TrialDone:
    """One trial was carried out and judged."""

    trial: Trial
    judgement: Judgement


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that a campaign found; the last event, and the source of every report."""

    settings: Settings
    verdict: Verdict
    holds_up_to: str | None
    baseline: Baseline | None
    trials: tuple[tuple[Trial, Judgement], ...]
    findings: tuple[tuple[str, tuple[int, ...]], ...]  # name, numbers of trials
    notes: tuple[tuple[str, tuple[int, ...]], ...]
    coverage: Mapping[str, Any]
    environment: Mapping[str, Any]
    trouble: str | None = None  # why the verdict is unknown, in one sentence
    hint: str | None = None
    unprotected: tuple[str, ...] = ()
    wall_s: float = 0.0
    cpu_s: float = 0.0
    interrupted: bool = False  # Ctrl-C: what was done so far
    extra: Mapping[str, Any] = field(default_factory=dict)  # crash-state classes
    late_notes: tuple[Note, ...] = ()  # on the campaign as a whole, told by no event
    timing: Timing | None = None  # None: it did not get that far


Event = Started | PhaseStarted | AttemptEnded | BaselineDone | TrialDone | Outcome
Listener = Callable[[Event], None]
