"""One machine's notice, played to whoever asks: the state behind every wire.

A `NoticeService` owns the only mutable thing: which provider stands now, and what was
asked. Every answer is `provider.reply(request, now)`; what a fault of the service makes of
it, and the waiting of hanging GETs, are added here.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from spotchaos.clock import Clock, SystemClock
from spotchaos.errors import UsageError
from spotchaos.providers import PROVIDERS
from spotchaos.providers.exchange import Delivery, Provider, Request, Response
from spotchaos.providers.notice import (
    Notice,
    Phase,
    check_seconds,
    check_time_scale,
    latest,
    next_change,
    reclaim_at,
)
from spotchaos.providers.notice_file import PlainNotice
from spotchaos.providers.service_faults import SLOW_S, ServiceFault
from spotchaos.providers.stories import Story

# A poller that asks ten times a second for a day; older entries are dropped.
LONGEST_LOG = 1_000_000
# What a provider notes of a path that its cloud does not have either.
UNKNOWN_PATH = "unknown path"
# How often a held request checks that its client is still there, in seconds.
STILL_THERE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One request in the log of a service."""

    number: int
    at: datetime
    method: str
    path: str
    status: int  # 0: no answer was sent
    note: str = ""
    answered_at: datetime | None = None  # a hanging GET: long after it came

    @property
    def gave_token(self) -> bool:
        """Whether it was a token, which says nothing of the machine's end."""
        return self.method == "PUT" and self.status == 200

    @property
    def is_refusal(self) -> bool:
        """Whether nothing could be learned from the answer, nor that there is nothing."""
        is_nothing = self.status == 404 and self.note != UNKNOWN_PATH
        return not is_nothing and (self.status == 0 or self.status >= 400)

    @property
    def refusal(self) -> str:
        """What came of the request, in words."""
        told = f"{self.status}" if self.status else "no answer"
        why = f", {self.note}" if self.note else ""
        return f"{told} to {self.method} {self.path}{why}"

    def __str__(self) -> str:
        status = str(self.status) if self.status else "no answer"
        note = f"  ({self.note})" if self.note else ""
        return f"{self.at:%H:%M:%S.%f} {self.method} {self.path} {status}{note}"


@dataclass(slots=True)
class _Armed:
    """A fault, and how many requests it could have struck so far.

    Before `begins` it does not count; what lasts `until` a moment strikes all until then.
    """

    fault: ServiceFault
    seen: int = 0
    begins: datetime | None = None
    until: datetime | None = None

    def injects(self, request: Request, now: datetime) -> bool:
        """Count a request, and tell whether it is struck."""
        if self.begins is not None and now < self.begins:
            return False
        # Tokens that lose their value at a moment do so before whatever comes next.
        is_first = self.begins is not None and self.fault.is_of_tokens and not self.seen
        if not is_first and not self.fault.can_inject(request):
            return False
        self.seen += 1
        if self.until is not None:
            return now < self.until
        return self.fault.injects(self.seen)


class NoticeService:
    """Plays a story to any number of askers at once.

    Silent until `announce` is called. All methods may be called from any thread.

    Args:
        story: what happens, once announced.
        clock: tells the time of requests and answers.
        time_scale: cloud seconds per real second.
        on_entry: called with each log entry, in the thread of the request.
    """

    def __init__(
        self,
        story: Story,
        *,
        clock: Clock | None = None,
        time_scale: float = 1.0,
        on_entry: Callable[[Entry], None] | None = None,
    ) -> None:
        self.story = story
        self.clock: Clock = SystemClock() if clock is None else clock
        self.time_scale = check_time_scale(time_scale)
        self._on_entry = on_entry
        self._changed = threading.Condition()
        self._is_closing = False
        self._entries: deque[Entry] = deque(maxlen=LONGEST_LOG)
        self._asked = 0
        self._held = 0
        self._provider = self._fresh()
        self._faults = [_Armed(fault) for fault in story.faults]

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Every notice so far, withdrawn ones included."""
        with self._changed:
            return self._provider.notices

    @property
    def reclaim_at(self) -> datetime | None:
        """When the machine is lost, as things stand; None: it is not."""
        return reclaim_at(self.notices)

    @property
    def is_closing(self) -> bool:
        """Whether the service has been closed."""
        return self._is_closing

    @property
    def held(self) -> int:
        """How many requests hang at this moment, waiting for a change."""
        return self._held

    @property
    def phase(self) -> Phase:
        """The phase of the newest notice."""
        now = self.clock.now()
        notice = latest(self.notices, now)
        return Phase.SILENT if notice is None else notice.phase(now)

    @property
    def log(self) -> Sequence[Entry]:
        """Every request so far, oldest first."""
        with self._changed:
            return tuple(self._entries)

    def announce(self, *, after_s: float = 0.0) -> tuple[Notice, ...]:
        """Begin the story `after_s` cloud seconds from now; its deadlines are fixed here.

        Returns:
            The notices of the story.

        Raises:
            UsageError: a notice is in force already, and was not withdrawn; or the delay
                is impossible.
        """
        check_seconds(after_s, "delay")
        with self._changed:
            now = self.clock.now()
            over = {Phase.WITHDRAWN, Phase.GONE}
            if any(n.phase(now) not in over for n in self._provider.notices):
                raise UsageError(
                    "a notice is in force already",
                    hint="withdraw it, or reset, before the next announcement",
                )
            begins = now + timedelta(seconds=after_s / self.time_scale)
            notices = self.story.begin(begins, time_scale=self.time_scale)
            self._arm_in_time(begins)
            self._set(self._provider.with_notices((*self._provider.notices, *notices)))
            return notices

    def _arm_in_time(self, begins: datetime) -> None:
        """Arm the faults that come at a moment of the story."""

        def after(cloud_s: float) -> datetime:
            return begins + timedelta(seconds=cloud_s / self.time_scale)

        for timed in self.story.timed_faults:
            armed = _Armed(timed.fault, begins=after(timed.at_s))
            if timed.for_s is not None:
                armed.until = after(timed.at_s + timed.for_s)
            self._faults.append(armed)

    def compress(self, time_scale: float) -> None:
        """Let a cloud second last `1 / time_scale` real ones from now on.

        Only what comes is compressed: tokens and what was announced stay as they are.
        """
        with self._changed:
            self.time_scale = check_time_scale(time_scale)
            scaled = self._scaled(dict(self.story.settings))
            names = ("enable_s", "start_after_s")
            changed = {name: scaled[name] for name in names if name in scaled}
            if changed:
                provider: Any = self._provider
                self._provider = replace(provider, **changed)

    def withdraw(self) -> None:
        """Take back every notice in force; no reclaim follows.

        Raises:
            UsageError: there is none, or the machine is gone.
        """
        with self._changed:
            now = self.clock.now()
            over = {Phase.WITHDRAWN, Phase.GONE}
            notices = self._provider.notices
            if all(n.phase(now) in over for n in notices):
                raise UsageError(
                    "no notice is in force", hint="announce one before withdrawing it"
                )
            self._set(
                self._provider.with_notices(
                    tuple(
                        n if n.phase(now) in over else n.withdraw(now) for n in notices
                    )
                )
            )

    def arm(self, fault: ServiceFault) -> None:
        """Let `fault` strike, counting from the next request that it can strike."""
        with self._changed:
            self._faults.append(_Armed(fault))

    def reset(self) -> None:
        """Be silent again, as at the start: no notice, no order, an empty log."""
        with self._changed:
            self._faults = [_Armed(fault) for fault in self.story.faults]
            self._entries.clear()
            self._asked = 0
            self._set(self._fresh())

    def close(self) -> None:
        """Let every held request go, unanswered; safe to call twice."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()

    def look_again(self) -> None:
        """Wake whoever waits, after a clock was moved by hand."""
        with self._changed:
            self._changed.notify_all()

    def wait_for_change(self, *, at_most_s: float) -> bool:
        """Wait until something may have changed; False once the service is closing."""
        with self._changed:
            if not self._is_closing:
                self._changed.wait(self._seconds_to(None, at_most_s))
            return not self._is_closing

    def wait_for_reclaim(self, *, at_most_s: float) -> bool:
        """Wait for the moment of the reclaim, however orders and requests move it.

        Returns:
            True if the machine is to be lost now; False after `at_most_s` real seconds,
            or once the service is closing.
        """
        end_s = self.clock.monotonic() + at_most_s
        while True:
            now, due = self.clock.now(), self.reclaim_at
            if due is not None and now >= due:
                return True
            left_s = end_s - self.clock.monotonic()
            if left_s <= 0 or not self.wait_for_change(at_most_s=left_s):
                return False

    def answer(
        self,
        request: Request,
        *,
        is_connected: Callable[[], bool] = lambda: True,
        patience_s: float | None = None,
    ) -> Response:
        """Answer one request, however long that takes, and log it.

        Args:
            request: what was asked.
            is_connected: tells whether the client still waits.
            patience_s: real seconds after which the client gives up; None: never.

        Returns:
            A response whose delivery is anything but HOLD.
        """
        response = self._injected(request)
        if response is None:
            response = self._reply(request, is_connected, patience_s)
        self._note(request, response)
        return response

    def documents(self, now: datetime) -> Mapping[str, Response]:
        """Return what a proper request for each item of interest would get at `now`.

        These are not logged and no fault strikes them: nobody has asked over a wire.
        """
        with self._changed:
            provider = self._provider
        asked = provider.documents(now)
        return {name: provider.reply(request, now) for name, request in asked.items()}

    def _injected(self, request: Request) -> Response | None:
        """Apply the armed faults; return what the client gets instead, or None."""
        with self._changed:
            now = self.clock.now()
            injected = [one for one in self._faults if one.injects(request, now)]
            names = [armed.fault.name for armed in injected]
            for name in names:
                if name == "token-required":
                    self._provider = self._provider.requiring_tokens()
                elif name in {"token-expired", "token-revoked"}:
                    self._provider = self._provider.without_tokens()
            provider = self._provider
        if "slow" in names:
            self.clock.sleep(SLOW_S)
        for name in names:
            if name == "hop-limit":
                return Response(delivery=Delivery.SILENCE, note="fault hop-limit")
            if name == "closed":
                return Response(delivery=Delivery.CLOSE, note="fault closed")
            if name.isdecimal():
                return replace(provider.refusal(int(name)), note=f"fault {name}")
        return None

    def _reply(
        self,
        request: Request,
        is_connected: Callable[[], bool],
        patience_s: float | None,
    ) -> Response:
        end_s = None if patience_s is None else self.clock.monotonic() + patience_s
        with self._changed:
            while True:
                response = self._provider.reply(request, self.clock.now())
                if response.delivery is not Delivery.HOLD:
                    if response.after is not None:
                        self._set(response.after)
                    return response
                left_s = STILL_THERE_S
                if end_s is not None:
                    left_s = min(left_s, end_s - self.clock.monotonic())
                if left_s <= 0:
                    note = "the client lost patience"
                    return Response(delivery=Delivery.SILENCE, note=note)
                self._held += 1
                self._changed.wait(self._seconds_to(response.hold_until, left_s))
                self._held -= 1
                if self._is_closing or not is_connected():
                    return Response(delivery=Delivery.CLOSE, note="held to the end")

    def _seconds_to(self, until: datetime | None, at_most_s: float) -> float:
        """Return how long to wait for `until` or the next change; the lock is held."""
        now = self.clock.now()
        coming = next_change(self._provider.notices, now)
        moments = [at for at in (until, coming) if at is not None]
        # A wait may end a little early, and would then be taken up again at once.
        waits = [(at - now).total_seconds() + 0.001 for at in moments]
        return max(0.0, min([*waits, at_most_s]))

    def _set(self, provider: Provider) -> None:
        """Let `provider` stand, and wake whoever waits if its notices changed."""
        has_news = provider.notices != self._provider.notices
        self._provider = provider
        if has_news:
            self._changed.notify_all()

    def _fresh(self) -> Provider:
        make = PROVIDERS.get(self.story.provider, PlainNotice)
        return make(**self._scaled(dict(self.story.settings)))

    def _scaled(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Turn those of the provider's settings that are cloud seconds into real ones."""
        if "enable_s" in settings:
            settings["enable_s"] /= self.time_scale
        if self.story.provider == "azure":
            settings["start_after_s"] = 1.0 / self.time_scale
        return settings

    def _note(self, request: Request, response: Response) -> None:
        query = "&".join(f"{name}={value}" for name, value in request.query.items())
        is_answered = response.delivery is Delivery.ANSWER
        with self._changed:
            self._asked += 1
            entry = Entry(
                number=self._asked,
                at=request.received_at,
                method=request.method,
                path=f"{request.path}?{query}" if query else request.path,
                status=response.status if is_answered else 0,
                note=response.note,
                answered_at=self.clock.now(),
            )
            self._entries.append(entry)
        if self._on_entry is not None:
            self._on_entry(entry)
