"""Published traces of spot machines: how many could be had at each tick."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from spotchaos.cost.units import HOUR_US, us
from spotchaos.errors import UsageError

# A year of ticks of a second, which is more than anybody has published.
MOST_TICKS = 40_000_000
FORM = '{"metadata": {"gap_seconds": 195}, "data": [1, 1, 0, ...]}'


@dataclass(frozen=True, slots=True)
class Trace:
    """How many machines of one zone could be had, over time, as runs of equal counts.

    Attributes:
        name: of the zone.
        gap_us: of a tick.
        counts: runs in order: machines, ticks.
    """

    name: str
    gap_us: int
    counts: tuple[tuple[int, int], ...]

    @classmethod
    def from_ticks(cls, name: str, data: Iterable[int], *, gap_s: float) -> Trace:
        """Return the trace of a list of counts, one for each tick of `gap_s` seconds."""
        runs = tuple((count, len(list(same))) for count, same in groupby(data))
        return cls(name, us(gap_s), runs)

    @property
    def length_us(self) -> int:
        return self.gap_us * sum(ticks for _, ticks in self.counts)

    @property
    def most(self) -> int:
        """The most machines that could be had at once."""
        return max(count for count, _ in self.counts)

    def windows(self, nodes: int) -> list[tuple[int, int]]:
        """Return when that many machines could be had: from and to, microseconds."""
        found: list[tuple[int, int]] = []
        at = 0
        for count, ticks in self.counts:
            end = at + ticks * self.gap_us
            if count >= nodes:
                if found and found[-1][1] == at:
                    found[-1] = (found[-1][0], end)
                else:
                    found.append((at, end))
            at = end
        return found

    def levels(self, nodes: int) -> list[tuple[int, int, int]]:
        """Return from, to and how many machines, at most `nodes`; none is left out."""
        found: list[tuple[int, int, int]] = []
        at = 0
        for count, ticks in self.counts:
            end, had = at + ticks * self.gap_us, min(count, nodes)
            if had and found and found[-1][1] == at and found[-1][2] == had:
                found[-1] = (found[-1][0], end, had)
            elif had:
                found.append((at, end, had))
            at = end
        return found

    def availability(self, nodes: int) -> float:
        """Return the share of time in which that many could be had."""
        return sum(e - s for s, e in self.windows(nodes)) / self.length_us

    def mean_window_us(self, nodes: int, *, is_elastic: bool = False) -> float:
        """Return the mean time from getting that many until one is taken; 0: never.

        Of an elastic gang: until there are more or fewer.
        """
        windows = [(s, e) for s, e, _ in self.levels(nodes)]
        if not is_elastic:
            windows = self.windows(nodes)
        return sum(e - s for s, e in windows) / len(windows) if windows else 0.0


def read_traces(paths: Iterable[Path]) -> tuple[Trace, ...]:
    """Read traces; of a folder, every `.json` in it, in order of names.

    Raises:
        UsageError: one is not there, or is no trace.
    """
    files: list[Path] = []
    for path in paths:
        inside = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not inside:
            raise UsageError(f"no trace (*.json) is in the folder {str(path)!r}")
        files += inside
    return tuple(_read(path) for path in files)


def _read(path: Path) -> Trace:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise _no_trace(path, "it is no JSON") from None
    metadata = content.get("metadata") if isinstance(content, dict) else None
    gap = metadata.get("gap_seconds") if isinstance(metadata, dict) else None
    if gap is None or not _is_number(gap) or not 0 < gap < HOUR_US:
        raise _no_trace(path, "metadata.gap_seconds is no number of seconds")
    data = content.get("data")
    if not isinstance(data, list) or not 0 < len(data) <= MOST_TICKS:
        raise _no_trace(path, "data is no list of counts")
    if not all(_is_number(x) and x >= 0 and x == int(x) for x in data):
        raise _no_trace(path, "data has an entry that is no count of machines")
    name = path.name.removesuffix(".json")
    return Trace.from_ticks(name, (int(x) for x in data), gap_s=gap)


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and value == value and abs(value) < float("inf")


def _no_trace(path: Path, why: str) -> UsageError:
    return UsageError(f"{str(path)!r} is no trace: {why}", hint=f"the form is {FORM}")
