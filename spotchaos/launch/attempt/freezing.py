"""Stopping every process of an attempt at once, and proving that each has stopped."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from spotchaos.clock import Clock
from spotchaos.errors import HarnessError
from spotchaos.launch.isolation import process_tree
from spotchaos.launch.isolation.process_tree import Process

FREEZE_BOUND_S = 5.0
# What is blocked without using the processor for this long, holds.
BLOCKED_S = 0.2
POLL_S = 0.005


class Stillness:
    """Watches whether processes use the processor.

    Args:
        clock: of the waits.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[int, tuple[int, float]] = {}  # ticks, and since when

    def all_hold(self, pids: Sequence[int]) -> bool:
        """Tell whether each is gone or has been blocked for a while; looks at each."""
        return [self._holds(pid) for pid in pids].count(False) == 0  # never cut short

    def _holds(self, pid: int) -> bool:
        process = process_tree.read_process(pid)
        if process is None:
            return True
        now_s = self._clock.monotonic()
        ticks, since_s = self._seen.setdefault(pid, (process.cpu_ticks, now_s))
        if ticks != process.cpu_ticks or process.state == "R":
            self._seen[pid] = (process.cpu_ticks, now_s)
            return False
        return now_s - since_s >= BLOCKED_S


class Freezer:
    """Stops and releases the processes of one attempt.

    With a control group the kernel stops whoever is in it, children that are being born
    included, and no handler of the program notices; others get SIGSTOP.

    Args:
        members: returns every live process of the program.
        clock: of the waits.
    """

    def __init__(self, members: Callable[[], list[Process]], clock: Clock) -> None:
        self.group: Path | None = None
        self._members = members
        self._clock = clock
        self._stopped: set[int] = set()  # by SIGSTOP, of ours
        self._is_frozen = False

    def freeze(self) -> None:
        """Stop every process, and confirm that each is.

        Raises:
            HarnessError: one of them does not stop.
        """
        self._is_frozen = True
        if self.group is not None:
            (self.group / "cgroup.freeze").write_text("1")
        deadline_s = self._clock.monotonic() + FREEZE_BOUND_S
        stillness = Stillness(self._clock)
        quiet = 0
        while True:
            moving, grouped = self._moving()
            # A signal is sent once; a process that forks meanwhile is met again.
            fresh = [p.pid for p in moving if p.pid not in self._stopped | grouped]
            process_tree.send(fresh, signal.SIGSTOP)
            self._stopped.update(fresh)
            # A thread whose system call our supervisor is carrying out cannot stop
            # before it is done; it runs no instruction either.
            blocked = stillness.all_hold([p.pid for p in moving])
            # Twice: a child may be born while its parent, not yet stopped, is looked at.
            quiet = quiet + 1 if blocked else 0
            if quiet == 2:
                return
            if self._clock.monotonic() >= deadline_s:
                names = ", ".join(str(p.inner_pid) for p in moving)
                raise HarnessError(
                    f"processes {names} of the program did not stop "
                    f"within {FREEZE_BOUND_S:g} s",
                    hint="try `--halt run`",
                )
            self._clock.sleep(POLL_S)

    def thaw(self) -> None:
        """Let go of what `freeze` stopped."""
        if not self._is_frozen:
            return
        self._is_frozen = False
        if self.group is not None:
            with contextlib.suppress(OSError):
                (self.group / "cgroup.freeze").write_text("0")
        living = {p.pid for p in self._members()}
        process_tree.send(self._stopped & living, signal.SIGCONT)
        self._stopped.clear()

    def leave_stopped(self, pids: Sequence[int]) -> None:
        """Note that somebody else stops these as well: a thaw leaves them so."""
        self._stopped.difference_update(pids)

    def _moving(self) -> tuple[list[Process], set[int]]:
        """Return who is not known to be stopped, and whom our control group holds."""
        grouped: set[int] = set()
        is_frozen = False
        if self.group is not None:
            with contextlib.suppress(OSError):
                held = (self.group / "cgroup.procs").read_text().split()
                grouped = {int(pid) for pid in held}
                events = (self.group / "cgroup.events").read_text().split()
                is_frozen = events[events.index("frozen") + 1] == "1"
        moving = [
            p
            for p in self._members()
            if not (is_frozen and p.pid in grouped)
            and not process_tree.is_stopped(p.pid)
        ]
        return moving, grouped
