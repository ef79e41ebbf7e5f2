"""Where machines come from: each source says when the next ones can be had, for how long.

A source is a cursor over one run: it is asked with times that never go back.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np

from spotchaos.cost.failures import Failures
from spotchaos.cost.traces import Trace

# Lives drawn at once; a run that needs more draws again.
_DRAWN = 64


class Window(NamedTuple):
    """Machines that can be had from `start` until they are gone, in microseconds."""

    start: int
    end: int | None  # None: they stay
    nodes: int
    zone: str
    is_planned: bool = False  # it ends because more machines come: none is lost


class Source(Protocol):
    """Where the machines of one run come from."""

    @property
    def period(self) -> int | None:
        """After so long all begins again; None: it never does."""

    def next(self, at: int) -> Window | None:
        """Return the first window that ends after `at`; None: there never is one."""

    def repeats(self, at: int) -> int:
        """Return how often what it was made from had begun again by then."""


class Endless:
    """On-demand machines: there at once, and they stay."""

    period: int | None = None

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes

    def next(self, at: int) -> Window:
        return Window(at, None, self._nodes, "")

    def repeats(self, at: int) -> int:
        return 0


class FailureCapacity:
    """Machines that can always be had and live for a time that is drawn."""

    period: int | None = None

    def __init__(
        self, failures: Failures, nodes: int, seed: int | Sequence[int]
    ) -> None:
        self._failures = failures
        self._nodes = nodes
        self._generator = np.random.default_rng(seed)
        self._lives: list[int] = []

    def next(self, at: int) -> Window:
        if not self._lives:
            lives = self._failures.draw(self._generator, self._nodes, _DRAWN)
            self._lives = lives[::-1]
        return Window(at, at + self._lives.pop(), self._nodes, "")

    def repeats(self, at: int) -> int:
        return 0


class TraceCapacity:
    """Machines as a trace has them, from some moment of it on; at its end it begins again.

    Args:
        trace: of one zone.
        nodes: how many are wanted.
        begins: the moment of the trace at which the run begins, in microseconds.
        is_elastic: fewer machines than wanted are windows too.
        delay: so long after more machines can be had, an elastic run can use them.
    """

    def __init__(
        self,
        trace: Trace,
        nodes: int,
        *,
        begins: int = 0,
        is_elastic: bool = False,
        delay: int = 0,
    ) -> None:
        self.period: int = trace.length_us
        self._zone = trace.name
        self._begins = begins
        self._levels = _levels(trace, nodes, delay if is_elastic else None)
        self._ends = [end for _, end, _ in self._levels]
        self._is_elastic = is_elastic

    def next(self, at: int) -> Window | None:
        levels = self._levels
        if not levels:
            return None
        turn, moment = divmod(at + self._begins, self.period)
        # What lies over the trace's end begins before it and ends in the next turn.
        over = self._ends[-1] - self.period
        if over > moment:
            turn, moment = turn - 1, moment + self.period
        number = bisect_right(self._ends, moment)
        if number == len(levels):
            number, turn = 0, turn + 1
        base = turn * self.period - self._begins
        start, end, nodes = levels[number]
        if nodes and end - start >= self.period:
            return Window(at, None, nodes, self._zone)
        after = levels[(number + 1) % len(levels)]
        is_next = after[0] == end or after[0] + self.period == end
        planned = self._is_elastic and is_next and after[2] > nodes
        return Window(max(at, base + start), base + end, nodes, self._zone, planned)

    def repeats(self, at: int) -> int:
        return (at + self._begins) // self.period


@lru_cache(maxsize=64)
def _levels(trace: Trace, nodes: int, delay: int | None) -> list[tuple[int, int, int]]:
    """Return from, to and machines; with a delay, fewer machines count as well."""
    if delay is None:
        levels = [(s, e, nodes) for s, e in trace.windows(nodes)]
    else:
        levels = _delayed(trace.levels(nodes), delay)
    return _joined(levels, trace.length_us)


def _joined(
    levels: list[tuple[int, int, int]], period: int
) -> list[tuple[int, int, int]]:
    """Join what ends with the trace to what begins with it, if it is the same."""
    if len(levels) < 2:
        return levels
    first, last = levels[0], levels[-1]
    if first[0] == 0 and last[1] == period and first[2] == last[2]:
        return [*levels[1:-1], (last[0], period + first[1], last[2])]
    return levels


def _delayed(
    levels: list[tuple[int, int, int]], delay: int
) -> list[tuple[int, int, int]]:
    """Have each machine more begin `delay` later, as it has to boot and start first.

    A window that begins after none begins when it can be had: its start is paid there.
    """
    moved: list[tuple[int, int, int]] = []
    for start, end, nodes in levels:
        if moved and moved[-1][1] == start and moved[-1][2] < nodes:
            low_start, _, low = moved[-1]
            use_from = min(start + delay, end)
            moved[-1] = (low_start, use_from, low)
            start = use_from
        if start < end:
            if moved and moved[-1][1] == start and moved[-1][2] == nodes:
                moved[-1] = (moved[-1][0], end, nodes)
            else:
                moved.append((start, end, nodes))
    return moved


class Zones:
    """Machines of several zones: stays in one until it is lost, then takes any other."""

    def __init__(self, sources: Sequence[TraceCapacity]) -> None:
        self._sources = sources
        self.period = max(source.period for source in sources)

    def next(self, at: int) -> Window | None:
        found = [w for w in (s.next(at) for s in self._sources) if w is not None]
        if not found:
            return None
        # Of those that can be had first, the one that was named first.
        return min(found, key=lambda window: window.start)

    def repeats(self, at: int) -> int:
        return max(source.repeats(at) for source in self._sources)
