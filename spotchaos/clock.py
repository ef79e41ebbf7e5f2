"""Time by parameter: the real clock, and one that a test moves by hand.

Whatever waits or asks for the time takes a `Clock`; the linter bans the global functions
everywhere but here.
"""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Tells the time and waits."""

    def now(self) -> datetime:
        """Return the moment, aware, in UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds since some fixed moment; never goes back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Return after `seconds`, 0 or more."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))  # noqa: TID251 - the one place that may


class ManualClock:
    """A clock that stands still until it is moved; sleeping moves it.

    Args:
        start: the first moment, aware, in UTC.
    """

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._start = start
        self._elapsed_s = 0.0
        self._lock = threading.Lock()

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed_s)

    def monotonic(self) -> float:
        return self._elapsed_s

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Move on by `seconds`, 0 or more."""
        with self._lock:
            self._elapsed_s += max(0.0, seconds)
