"""The trace of one process: its file of marks and its page of counters.

Both are opened at the first mark, so that a child that has nothing to say leaves no file
behind, and a forked child never writes into its parent's.
"""

from __future__ import annotations

import os
import threading
from fcntl import F_DUPFD_CLOEXEC, fcntl
from time import monotonic, monotonic_ns
from typing import TYPE_CHECKING

from spotchaos.trace.format import (
    HALTED_SLOT,
    MOMENT_SLOT,
    STEPS_SLOT,
    STRUCK_SLOT,
    Counters,
    encode,
    site_slot,
)

if TYPE_CHECKING:
    from typing import Any

# Programs that count on low descriptors (pty tricks, daemons) find them where they were.
_LOWEST_DESCRIPTOR = 200


def raised(descriptor: int) -> int:
    """Return a copy of `descriptor` out of the program's way, and close the original."""
    try:
        copy = fcntl(descriptor, F_DUPFD_CLOEXEC, _LOWEST_DESCRIPTOR)
    except OSError:
        return descriptor
    os.close(descriptor)
    return copy


class Record:
    """Appends marks and counts; opens its files at the first of either.

    Args:
        folder: the attempt's trace folder.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._descriptor: int | None = None
        self._counters: Counters | None = None
        self._lock = threading.RLock()
        self.token = os.urandom(4).hex()

    def is_open(self) -> bool:
        return self._descriptor is not None

    def path(self, suffix: str) -> str:
        """Return a path in the trace folder that is this process's own."""
        return os.path.join(self.folder, f"{os.getpid()}-{self.token}{suffix}")

    def write(self, kind: str, **values: Any) -> dict[str, Any]:
        """Append one mark with the moment, and return it."""
        mark = {"k": kind, "t": round(monotonic(), 6), **values}
        line = encode(mark)
        with self._lock:
            if self._descriptor is None:
                self._open()
            assert self._descriptor is not None
            os.write(self._descriptor, line)
        self._set(MOMENT_SLOT, monotonic_ns())
        return mark

    def count_site(self, site: str, count: int) -> None:
        self._set(site_slot(site), count)

    def count_steps(self, steps: int) -> None:
        self._set(STEPS_SLOT, steps)

    def set_halted(self, *, halted: bool) -> None:
        self._set(HALTED_SLOT, int(halted))

    def is_struck(self) -> bool:
        """Tell whether the first signal has been sent, as the harness says."""
        return self._counters is not None and self._counters.get(STRUCK_SLOT) == 1

    def forget(self) -> None:
        """Leave the parent's files to the parent: called in a forked child."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        if self._counters is not None:
            self._counters.close()
        self._descriptor = self._counters = None
        self._lock = threading.RLock()
        self.token = os.urandom(4).hex()

    def _set(self, slot: int, value: int) -> None:
        if self._counters is not None:
            self._counters.set(slot, value)

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = raised(os.open(self.path(".trace"), flags, 0o644))
        self._counters = Counters(self.path(".counters"), writable=True)
