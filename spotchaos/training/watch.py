"""Notice that the machine will be lost, without doing anything about it in a handler."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

# Save and go on; save and stop.
SAVE = 1
STOP = 2

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class InterruptionWatch:
    """Sets a flag when a signal comes; the training loop looks at it between steps.

    Saving inside a handler would catch the model in the middle of an update. A second
    signal only sets the flag again, so an impatient Ctrl-C does not tear the save.

    Args:
        signals: what means that the machine will be lost.
    """

    def __init__(self, *, signals: Sequence[signal.Signals] = STOPPING) -> None:
        self._signals = tuple(signals)
        self._before: dict[signal.Signals, Any] = {}
        self._wish = 0
        self.received: signal.Signals | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in self._signals:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    @property
    def wish(self) -> int:
        """0 to go on, SAVE or STOP; costs one attribute read."""
        return self._wish

    def _note(self, number: int, frame: object) -> None:
        self.received = signal.Signals(number)
        self._wish = STOP
