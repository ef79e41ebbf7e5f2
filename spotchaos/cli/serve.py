"""A stand-alone server in the foreground: its address first, then a line for each request."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_one_line = threading.Lock()


def say(line: object) -> None:
    """Print one line at once, whole: request threads print too, and a pipe reads it.

    A reader that has left is no reason to stop answering requests.
    """
    with _one_line, contextlib.suppress(BrokenPipeError):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Yield an event that SIGINT, SIGTERM or SIGHUP sets, instead of ending the process."""
    told = threading.Event()

    def tell(number: int, frame: FrameType | None) -> None:
        told.set()

    asking = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # else started with nohup
        asking.append(signal.SIGHUP)
    before = {number: signal.signal(number, tell) for number in asking}
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
