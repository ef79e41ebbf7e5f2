"""Notice that the machine will be lost, without doing anything about it in a handler."""

from __future__ import annotations

import atexit
import enum
import logging
import multiprocessing
import multiprocessing.util
import os
import random
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from spotchaos.clock import Clock, SystemClock
from spotchaos.training.kept_connection import PollError
from spotchaos.training.pollers import Acknowledging, Poller, Sighting

log = logging.getLogger(__name__)

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
# A poll that fails is tried again after its period, then twice that, and so on up to:
LONGEST_BACK_OFF_S = 60.0


class Request(enum.IntEnum):
    """What a rank wants after a step; among ranks the greatest counts."""

    GO_ON = 0
    SAVE = 1  # advice: the machine may be lost, or may live on for days
    STOP = 2  # order: it will be lost
    FAIL = 3  # a rank cannot go on


class InterruptionWatch:
    """Sets a flag when a signal or a notice comes; training looks at it between steps.

    Saving inside a handler would catch the model in the middle of an update. A second
    signal only sets the flag again, so an impatient Ctrl-C does not tear the save.
    Handlers that were there before are called as well. Loader workers get the signals of
    their group too: start them inside `ignore_signals_in_workers`.

    Args:
        signals: what means that the machine will be lost.
        pollers: metadata services to ask, in one daemon thread.
        files: paths whose appearance is an order.
        ask: a function that says whether the machine will be lost.
        clock: tells the time.
    """

    def __init__(
        self, *, signals: Sequence[signal.Signals] = STOPPING,
        pollers: Sequence[Poller] = (), files: Sequence[Path | str] = (),
        ask: Callable[[], bool] | None = None, clock: Clock | None = None,
    ) -> None:  # fmt: skip
        self._signals = tuple(signals)
        self._clock = clock or SystemClock()
        self._before: dict[signal.Signals, Any] = {}
        self._requested = Request.GO_ON
        self._advised = False
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._pollers = tuple(pollers)
        self._sources: list[tuple[float, Callable[[], Sighting | None]]] = []
        if len(pollers) + len(files) + (ask is not None) > 1:
            for poller in pollers:
                poller.hang_s = 0.0  # one thread: nobody may hold up the others
        for poller in pollers:
            self._sources.append((poller.period_s, poller.ask))
        for path in files:
            self._sources.append((1.0, _file_source(Path(path))))
        if ask is not None:
            self._sources.append((1.0, _callable_source(ask)))
        self.received: signal.Signals | None = None
        self.deadline: datetime | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in self._signals:
                self._before[number] = signal.signal(number, self._note)
        if self._sources:
            self._thread = threading.Thread(
                target=self._poll, name="watch", daemon=True
            )
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._closing.set()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    @property
    def requested(self) -> Request:
        """What the machine's fate asks for; costs one attribute read."""
        return self._requested

    @property
    def wish(self) -> Request:
        """Deprecated: `requested`."""
        _is_deprecated("InterruptionWatch.wish", "requested")
        return self._requested

    @property
    def must_stop(self) -> bool:
        """Whether the machine will be lost; advice alone is no reason to stop."""
        return self._requested >= Request.STOP

    def mark_saved(self) -> None:
        """Say that a save followed the advice: it is not asked for again."""
        if self._requested is Request.SAVE:
            self._requested = Request.GO_ON

    def heeded(self) -> None:
        """Deprecated: `mark_saved`."""
        _is_deprecated("InterruptionWatch.heeded", "mark_saved")
        self.mark_saved()

    def acknowledge(self) -> None:
        """Tell a provider that waits for it that this machine may go: all is saved.

        Only pollers that were made to acknowledge do so (`AzurePoller(acknowledge=True)`).
        That nobody takes the answer is a warning: the state is saved all the same.
        """
        for poller in self._pollers:
            if isinstance(poller, Acknowledging):
                try:
                    poller.acknowledged()
                except PollError as error:
                    log.warning("the provider was not told to go ahead: %s", error)

    def seconds_left(self) -> float | None:
        """Return the seconds to the deadline; None if nobody named one."""
        if self.deadline is None:
            return None
        return (self.deadline - self._clock.now()).total_seconds()

    def sight(self, sighting: Sighting) -> None:
        """Take note of what a provider says."""
        if sighting.is_order:
            if self._requested < Request.STOP:
                log.warning(
                    "%s will take this machine back %s (%s)", sighting.source,
                    f"at {sighting.deadline:%H:%M:%S} UTC" if sighting.deadline else "soon",
                    sighting.detail,
                )  # fmt: skip
            self.deadline = sighting.deadline
            self._requested = Request.STOP
        elif not self._advised:
            log.warning("%s advises to rebalance: saving, going on", sighting.source)
            self._advised = True
            self._requested = max(self._requested, Request.SAVE)

    def _note(self, number: int, frame: Any) -> None:
        self.received = signal.Signals(number)
        self._requested = Request.STOP
        earlier = self._before.get(signal.Signals(number))
        # Python's own SIGINT handler would raise in the middle of a step.
        if callable(earlier) and earlier is not signal.default_int_handler:
            earlier(number, frame)

    def _poll(self) -> None:
        jitter = random.Random()  # no stream of the program's is touched
        due = [0.0] * len(self._sources)
        misses = [0] * len(self._sources)
        while True:
            now_s = self._clock.monotonic()
            for place, (period_s, ask) in enumerate(self._sources):
                if due[place] > now_s:
                    continue
                try:
                    sighting = ask()
                    misses[place] = 0
                except Exception as error:  # the user's own function may raise anything
                    misses[place] += 1
                    level = logging.WARNING if misses[place] == 3 else logging.DEBUG
                    log.log(level, "the notice watch gets no answer: %r", error)
                    sighting = None
                if sighting is not None:
                    self.sight(sighting)
                wait_s = period_s * 2 ** min(misses[place], 10)
                wait_s = min(wait_s, max(LONGEST_BACK_OFF_S, period_s))
                if misses[place]:
                    wait_s *= 1.0 - 0.5 * jitter.random()
                due[place] = self._clock.monotonic() + wait_s
            if self._closing.wait(max(0.01, min(due) - self._clock.monotonic())):
                return


@contextmanager
def ignore_signals_in_workers() -> Iterator[None]:
    """Have loader workers that are started inside outlive the signals of their group.

    Launchers and batch systems signal every process of a group. A worker that dies of it
    makes the next fetch raise, and the save that the signal asked for is never made.
    Blocked signals stay blocked in a child, so no moment is left in which one is heard;
    workers end when the trainer does. A signal that comes to this process meanwhile is
    delivered at the end.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    known = set(multiprocessing.active_children())
    try:
        yield
    finally:
        for worker in set(multiprocessing.active_children()) - known:
            # At exit Python terminates them and waits: a deaf one would never end.
            # What is registered last, so after multiprocessing's own, is called first.
            atexit.register(_end, worker, os.getpid())
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def __getattr__(name: str) -> Any:
    new = {"deaf_workers": "ignore_signals_in_workers", "Wish": "Request"}.get(name)
    if new is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _is_deprecated(name, new)
    return globals()[new]


def _is_deprecated(old: str, new: str) -> None:
    """Warn of a name that the next release does without."""
    warnings.warn(
        f"{old} is now called {new}; the old name goes with the next release",
        DeprecationWarning,
        stacklevel=3,
    )


def _end(worker: BaseProcess, parent: int) -> None:
    if os.getpid() == parent and worker.is_alive():
        # torch's handler would raise for a worker that was killed.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        worker.kill()


def _file_source(path: Path) -> Callable[[], Sighting | None]:
    def look() -> Sighting | None:
        if not path.exists():
            return None
        return Sighting("file", is_order=True, detail=str(path))

    return look


def _callable_source(ask: Callable[[], bool]) -> Callable[[], Sighting | None]:
    def look() -> Sighting | None:
        return Sighting("callable", is_order=True) if ask() else None

    return look
