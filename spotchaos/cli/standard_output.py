"""Standard output that may fail: a reader that left, a full disk, a closed descriptor.

None of these is an exception in the middle of a campaign. What cannot be written is
dropped, and at the end it is said on standard error and in the exit status.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO, cast


class Output:
    """A stream that keeps its first error instead of raising it.

    `error` is that error; None: everything was written so far.
    """

    def __init__(self, stream: TextIO, *, is_closed: bool = False) -> None:
        self._stream = stream
        self.error: OSError | None = None
        self.is_closed = is_closed  # by whoever started us: nobody wants a screen
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:  # no letter is worth a traceback
            reconfigure(errors="backslashreplace")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def has_no_reader(self) -> bool:
        """Tell whether whoever read us is gone."""
        return self.error is not None and self.error.errno == errno.EPIPE

    def write(self, text: str) -> int:
        if self.error is None:
            try:
                return self._stream.write(text)
            except OSError as error:
                self._fail(error)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        if self.error is None:
            try:
                self._stream.flush()
            except OSError as error:
                self._fail(error)

    def _fail(self, error: OSError) -> None:
        self.error = error
        # What is still buffered must not make the interpreter stumble at its exit.
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())
            os.close(null)


@contextlib.contextmanager
def guarded() -> Iterator[tuple[Output, Output]]:
    """Put an `Output` in the place of both standard streams, and yield them."""
    closed = _fill_descriptors()
    before = sys.stdout, sys.stderr
    out, err = _output(sys.stdout, 1, closed), _output(sys.stderr, 2, closed)
    sys.stdout, sys.stderr = cast("TextIO", out), cast("TextIO", err)
    try:
        yield out, err
    finally:
        out.flush()
        err.flush()
        sys.stdout, sys.stderr = before


def _output(stream: TextIO | None, descriptor: int, closed: set[int]) -> Output:
    if stream is None or descriptor in closed:
        return Output(open(os.devnull, "w"), is_closed=True)  # noqa: PTH123 - for the whole process
    return Output(stream)


def _fill_descriptors() -> set[int]:
    """Open the null device where a standard descriptor is closed; return which were.

    The next file to be opened would get its number, and whatever is printed.
    """
    closed = set()
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            closed.add(descriptor)
            # It takes the lowest number that is free, and children have it as well.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # noqa: FBT003 - os's
    return closed
