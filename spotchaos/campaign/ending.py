"""How this process takes the signals that ask it to end: all of them as Ctrl-C.

SIGTERM comes from a CI system that cancels and from `timeout`, SIGHUP from a terminal or
a connection that is closed. Each raises KeyboardInterrupt in the main thread, so that
what was found so far is shown and written, and nothing stays.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from spotchaos.clock import Clock, SystemClock

# The signal and what Python makes of it; whoever set it otherwise, or had it ignored from
# the start (`nohup`, a shell's `&`), has decided already.
_AS_STARTED = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
}
# Some send it to a process and to its group (timeout), or two at once: it is one wish.
SAME_WISH_S = 1.0


class Ending:
    """Whether this process was asked to end, and may be interrupted for that now."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._asked_at_s: float | None = None
        self._completing = 0
        self._is_put_off = False

    def take(self, number: int, frame: FrameType | None) -> None:
        """Be the handler of a signal.

        Raises:
            KeyboardInterrupt: nothing is being completed.
        """
        now_s = self._clock.monotonic()
        if self._asked_at_s is not None and now_s - self._asked_at_s < SAME_WISH_S:
            return
        self._asked_at_s = now_s
        if self._completing:
            self._is_put_off = True
        else:
            raise KeyboardInterrupt

    @contextmanager
    def completed(self) -> Iterator[None]:
        """Do something short as a whole; whoever has more to do asks `pop` afterwards."""
        self._completing += 1
        try:
            yield
        finally:
            self._completing -= 1

    def pop(self) -> bool:
        """Tell whether there was a wish to end meanwhile; it is told once."""
        was, self._is_put_off = self._is_put_off, False
        return was


ENDING = Ending(SystemClock())


@contextmanager
def interruptible() -> Iterator[None]:
    """Let each of the signals raise KeyboardInterrupt, where nobody decided otherwise."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number, handler in _AS_STARTED.items():
            if signal.getsignal(number) == handler:
                before[number] = signal.signal(number, ENDING.take)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
