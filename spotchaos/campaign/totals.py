"""What the trials of a campaign come to together."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence

from spotchaos import __version__
from spotchaos.campaign.baseline import BaselineContext
from spotchaos.config.settings import Settings
from spotchaos.findings import PROMISES
from spotchaos.launch.isolation.mechanisms import Mechanisms
from spotchaos.launch.isolation.program import Program
from spotchaos.model import Trial


def environment_of(
    baseline_context: BaselineContext | None, settings: Settings, mechanisms: Mechanisms
) -> dict[str, object]:
    """Return what a verdict may depend on: versions, threads, the machine."""
    rank = baseline_context.first_rank if baseline_context is not None else None
    return {
        "spotchaos": __version__,
        "python": (rank and rank.python) or platform.python_version(),
        "torch": rank.torch if rank is not None else None,
        "algorithm": rank.algorithm if rank is not None else None,
        "threads": settings.threads,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "packages_sha": baseline_context.packages_sha
        if baseline_context is not None
        else None,
        "mechanisms": mechanisms.as_report(),
        "limits": baseline_context.trial_context.workspace.limits
        if baseline_context is not None
        else [],
        "removed_variables": Program.from_settings(settings).removed,
    }


def gather(pairs: Iterable[tuple[Trial, str]]) -> list[tuple[str, tuple[int, ...]]]:
    """Group names with the numbers of the trials that carry them, in order."""
    found: dict[str, list[int]] = {}
    for trial, name in pairs:
        numbers = found.setdefault(name, [])
        if trial.number not in numbers:
            numbers.append(trial.number)
    return [(name, tuple(numbers)) for name, numbers in found.items()]


def weakest_of(promises: Sequence[str | None]) -> str | None:
    """Return the strongest promise that every trial keeps, or None."""
    if not promises or None in promises:
        return None
    ranks = [PROMISES.index(p) for p in promises if p is not None]
    return PROMISES[min(ranks)]
