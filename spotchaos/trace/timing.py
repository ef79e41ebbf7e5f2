"""The times of one program, as the section `timing` of a report has them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Measured:
    """One quantity: its median, how far it spreads, and how often it was measured."""

    median: float
    p10: float
    p90: float
    n: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Measured | None:
        """Return the quantiles of values; None if there are none."""
        known = sorted(values)
        if not known:
            return None
        low, middle, high = (_quantile(known, share) for share in (0.1, 0.5, 0.9))
        return cls(middle, low, high, len(known))

    def as_report(self) -> dict[str, float | int]:
        """Return the entry of a report, in whole microseconds or bytes."""
        return {
            "median": round(self.median, 6),
            "p10": round(self.p10, 6),
            "p90": round(self.p90, 6),
            "n": self.n,
        }


def _quantile(known: list[float], share: float) -> float:
    """Interpolate between the two nearest of sorted values."""
    at = share * (len(known) - 1)
    low = math.floor(at)
    high = min(low + 1, len(known) - 1)
    return known[low] + (at - low) * (known[high] - known[low])


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What was measured on a program; None: not measured.

    Attributes:
        step_s: seconds of a step without a save.
        save_stall_s: seconds by which a save delays training.
        save_end_s: seconds from the beginning of a save until it is whole.
        save_bytes: bytes that a save leaves.
        cold_start_s: seconds from the start of the program to its first step.
        resumed_start_s: the same, of a start that finds a checkpoint.
        lost_steps: steps that a resume did again.
        notice_s: seconds from a notice or signal until its save was whole.
        save_every: steps from one save to the next.
    """

    step_s: Measured | None = None
    save_stall_s: Measured | None = None
    save_end_s: Measured | None = None
    save_bytes: Measured | None = None
    cold_start_s: Measured | None = None
    resumed_start_s: Measured | None = None
    lost_steps: Measured | None = None
    notice_s: Measured | None = None
    save_every: Measured | None = None

    def as_report(self) -> dict[str, Any]:
        """Return the section of a report; what was not measured is null."""
        return {
            field.name: None if found is None else found.as_report()
            for field in fields(self)
            for found in [getattr(self, field.name)]
        }

    @classmethod
    def from_report(cls, section: Any) -> Timing:
        """Read the section of a report; an entry that makes no sense is left out."""
        if not isinstance(section, Mapping):
            return cls()
        names = [field.name for field in fields(cls)]
        found = {name: _measured(section.get(name)) for name in names}
        return cls(**found)


def _measured(entry: Any) -> Measured | None:
    if not isinstance(entry, Mapping):
        return None
    values = [entry.get(key) for key in ("median", "p10", "p90", "n")]
    if not all(
        isinstance(v, int | float) and math.isfinite(v) and v >= 0 for v in values
    ):
        return None
    median, low, high, count = (float(v) for v in values if v is not None)
    return Measured(median, low, high, int(count)) if count else None
