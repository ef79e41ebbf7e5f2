"""How long processes were ready to run and were not run: what a busy machine adds to a wait.

The kernel counts for each thread how long it waited for a processor (schedstat, in the
kernel's Documentation/scheduler/sched-stats.rst). A bound from which that is taken off
comes at the same place of a program, however busy the machine is; a program that waits
for something else, or computes for ever, comes to it all the same.

Standard library only, Python 3.9 and newer: `inside.py`, which runs on the program's side,
loads this file by its path.
"""

# Paths here are handed to system calls as they are.
# ruff: noqa: PTH123, PTH208

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable


class Delays:
    """Sums up by how much the processes of an attempt were delayed.

    Between two looks that is as long as the thread was that waited longest; never longer
    than the time between them.

    Args:
        pids: returns the processes that count.
        now: returns seconds that never go back.
    """

    def __init__(
        self, pids: Callable[[], Iterable[int]], now: Callable[[], float]
    ) -> None:
        self._pids = pids
        self._now = now
        self._lock = threading.Lock()
        self._at_s = now()
        self._seen = self._look()
        self._total_s = 0.0

    def total_s(self) -> float:
        """Look, and return the seconds of delay since this was made."""
        with self._lock:
            seen, now_s = self._look(), self._now()
            longest_s = max(
                (waited - self._seen.get(tid, 0.0) for tid, waited in seen.items()),
                default=0.0,
            )
            self._total_s += max(0.0, min(longest_s, now_s - self._at_s))
            self._seen, self._at_s = seen, now_s
            return self._total_s

    def _look(self) -> dict[int, float]:
        found: dict[int, float] = {}
        for pid in self._pids():
            for tid in _threads(pid):
                waited_s = _waited_s(pid, tid)
                if waited_s is not None:
                    found[tid] = waited_s
        return found


def _threads(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:  # it has ended
        return []


def _waited_s(pid: int, tid: int) -> float | None:
    try:
        with open(f"/proc/{pid}/task/{tid}/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError):  # it has ended, or the kernel does not count
        return None
