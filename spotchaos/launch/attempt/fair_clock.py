"""The clock by which an attempt is bounded: it stands still while others keep it from running."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from spotchaos.clock import Clock
from spotchaos.launch.isolation.children import descendants
from spotchaos.launch.isolation.delays import Delays

# Who belongs to an attempt is looked up so often.
MEMBERS_EVERY_S = 1.0


class HasPid(Protocol):
    """A process."""

    @property
    def pid(self) -> int: ...


class FairClock:
    """Seconds in which an attempt ran, or waited for something else than a processor.

    A wait that is bounded by it comes to its bound at the same place of a program, however
    busy the machine is. Where the kernel does not count delays, it is the other clock.

    Args:
        clock: the other.
        first: returns the process that all others of the attempt descend from, those of
            ours that serve the program included; None: there is none.
    """

    def __init__(self, clock: Clock, first: Callable[[], HasPid | None]) -> None:
        self._clock = clock
        self._first = first
        self._pids: list[int] = []
        self._looked_at_s = -math.inf
        self._delays = Delays(self._members, clock.monotonic)

    def now(self) -> datetime:
        return self._clock.now()

    def monotonic(self) -> float:
        delayed_s = self.delayed_s
        return self._clock.monotonic() - delayed_s

    def sleep(self, seconds: float) -> None:
        self._clock.sleep(seconds)

    @property
    def delayed_s(self) -> float:
        """By how many seconds the attempt was delayed so far."""
        return self._delays.total_s()

    def _members(self) -> list[int]:
        now_s = self._clock.monotonic()
        first = self._first()
        if first is None:
            return []
        if now_s - self._looked_at_s >= MEMBERS_EVERY_S:
            self._looked_at_s = now_s
            self._pids = [first.pid, *descendants(first.pid)]
        return self._pids
