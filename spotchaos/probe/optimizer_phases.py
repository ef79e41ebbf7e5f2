"""Which optimizers step when: one that has stepped its last is no part of the state.

A teacher is trained, a rate is searched for, and the optimizer that did it lives on. A
resume needs none of it. Whether an optimizer steps again is only known when the run is
over, so that the probe writes what the state is with such optimizers and without them,
and the reader, who has seen all steps, decides.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# Every choice of idle ones among so many; of more, the oldest.
_MOST_CHOSEN = 3
_MOST_SETS = 8


class Turns:
    """At which turns, counted over all optimizers, each stepped first and last."""

    def __init__(self) -> None:
        self._spans: dict[int, list[int]] = {}
        self._window: dict[int, list[int]] = {}
        self._taken = (0, 0)  # turns at the last two calls of `take_window`

    def note(self, indices: Iterable[int], turn: int) -> None:
        """Note that these optimizers stepped, one through another."""
        for spans in (self._spans, self._window):
            for index in indices:
                spans.setdefault(index, [turn, turn])[1] = turn

    @property
    def has_window(self) -> bool:
        """Whether any stepped since the last `take_window`."""
        return bool(self._window)

    def take_window(self) -> dict[int, list[int]]:
        """Return who stepped since the last call: index -> first and last turn."""
        window, self._window = self._window, {}
        newest = max((last for _, last in self._spans.values()), default=0)
        self._taken = (self._taken[1], newest)
        return window

    def is_at_work(self, index: int) -> bool:
        """Tell whether an optimizer stepped since the last step but one was counted."""
        return index in self._spans and self._spans[index][1] > self._taken[0]

    def idle_sets(self, live: list[int]) -> list[frozenset[int]]:
        """Return the sets of live optimizers that may have stepped their last.

        As long as all step by turns there are none: one may have only where another
        began after it, or has yet to begin.
        """
        if len(live) < 2:
            return []
        spans = self._spans
        begun = [spans[i][0] for i in live if i in spans]
        newest = max(begun) if len(begun) == len(live) else None
        able = [
            i for i in live if newest is None or i not in spans or spans[i][1] < newest
        ]
        if len(able) > _MOST_CHOSEN:
            found = [frozenset(able[:n]) for n in range(1, len(able) + 1)]
        else:
            found = [
                frozenset(chosen)
                for n in range(1, len(able) + 1)
                for chosen in itertools.combinations(able, n)
            ]
        return [one for one in found if len(one) < len(live)][:_MOST_SETS]
