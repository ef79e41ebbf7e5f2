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
    INJECTED_SLOT,
    LOST_SUFFIX,
    MOMENT_SLOT,
    STEPS_SLOT,
    Counters,
    encode,
    site_slot,
)

if TYPE_CHECKING:
    from collections.abc import Callable
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


def identity(descriptor: int) -> tuple[int, int] | None:
    """Return which file or socket a descriptor stands for; None: it is closed."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class Appending:
    """A file that we append to, though the program may close descriptors that are not its.

    One that becomes a daemon closes all it finds. What has our number then is the
    program's: it is neither written to nor closed, and the file is opened again.

    Args:
        path: of the file.
        flags: of open(2), besides those for appending.
        mode: of the file.
    """

    def __init__(
        self, path: str, *, flags: int = os.O_CREAT, mode: int = 0o644
    ) -> None:
        self._path = path
        self._mode = mode
        self._open(flags)

    def write(self, content: bytes) -> bool:
        """Append all; tell whether the file had to be opened again."""
        was_ours = self.is_ours()
        if not was_ours:
            self._open(os.O_CREAT)
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
        return not was_ours

    def is_ours(self) -> bool:
        return identity(self._descriptor) == self._identity

    def close(self) -> None:
        if self.is_ours():
            os.close(self._descriptor)

    def _open(self, flags: int) -> None:
        flags |= os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = raised(os.open(self._path, flags, self._mode))
        self._identity = identity(self._descriptor)


# Pages whose descriptors the program has closed: to close them again might close its own.
_ABANDONED: list[Counters] = []


class Record:
    """Appends marks and counts; opens its files at the first of either.

    Args:
        folder: the attempt's trace folder.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._file: Appending | None = None
        self._counters: Counters | None = None
        self._lock = threading.RLock()
        self.token = os.urandom(4).hex()
        self.at_loss: list[Callable[[], None]] = []  # the program closed what was ours

    def is_open(self) -> bool:
        return self._file is not None

    def path(self, suffix: str) -> str:
        """Return a path in the trace folder that is this process's own."""
        return os.path.join(self.folder, f"{os.getpid()}-{self.token}{suffix}")

    def write(self, kind: str, **values: Any) -> dict[str, Any]:
        """Append one mark with the moment, and return it."""
        mark = {"k": kind, "t": round(monotonic(), 6), **values}
        line = encode(mark)
        with self._lock:
            try:
                if self._file is None:
                    self._open()
                assert self._file is not None
                is_again = self._file.write(line)
            except OSError as error:
                # The program is not to end of it; the harness, which reads this, is told.
                self._note_loss(error.errno)
                return mark
        self._set(MOMENT_SLOT, monotonic_ns())
        if is_again:
            for action in self.at_loss:
                action()
        return mark

    def count_site(self, site: str, count: int) -> None:
        self._set(site_slot(site), count)

    def count_steps(self, steps: int) -> None:
        self._set(STEPS_SLOT, steps)

    def set_halted(self, *, halted: bool) -> None:
        self._set(HALTED_SLOT, int(halted))

    def is_injected(self) -> bool:
        """Tell whether the first signal has been sent, as the harness says."""
        return self._counters is not None and self._counters.get(INJECTED_SLOT) == 1

    def forget(self) -> None:
        """Leave the parent's files to the parent: called in a forked child."""
        if self._counters is not None:
            if self._file is not None and self._file.is_ours():
                self._counters.close()
            else:
                _ABANDONED.append(self._counters)
        if self._file is not None:
            self._file.close()
        self._file = self._counters = None
        self._lock = threading.RLock()
        self.token = os.urandom(4).hex()

    def _set(self, slot: int, value: int) -> None:
        if self._counters is not None:
            self._counters.set(slot, value)

    def _note_loss(self, number: int | None) -> None:
        try:
            # It takes no descriptor, of which there may be none left.
            os.mknod(self.path(f".{number}{LOST_SUFFIX}"))
        except OSError:
            return  # it is said already, or the harness will see how full the disk is

    def _open(self) -> None:
        self._file = Appending(self.path(".trace"))
        self._counters = Counters(self.path(".counters"), writable=True)
