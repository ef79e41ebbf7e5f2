"""Play a provider's notice to a program: over HTTP, by signal, or as a file.

The notice is announced at the kill point and its deadline is fixed there; whoever runs the
attempt waits with `wait_for_reclaim` and then reclaims the machine. How the program
reacted is not judged here.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from spotchaos.clock import Clock
from spotchaos.errors import HarnessError
from spotchaos.providers import PROVIDERS
from spotchaos.providers.machine_profile import environment_for
from spotchaos.providers.notice import Notice
from spotchaos.providers.profiles import profile
from spotchaos.providers.service import Entry, NoticeService
from spotchaos.providers.serving import by_signal, on_files, on_loopback
from spotchaos.providers.stories import Story

# Where a program finds its provider's notice as a file.
FILE_VARIABLE = "SPOTCHAOS_NOTICE_DIR"


class NoticeInjector:
    """One notice to one attempt.

    Args:
        story: what happens; `stories.story(name, grace_s=...)`.
        send: sends a signal by name to the processes that are to get it, for stories that
            send one; None: signals are not sent.
        time_scale: cloud seconds per real second.
        clock: tells the time; the system's if None.
    """

    def __init__(
        self,
        story: Story,
        *,
        send: Callable[[str], None] | None = None,
        time_scale: float = 1.0,
        clock: Clock | None = None,
    ) -> None:
        self.story = story
        self._send = send
        self._time_scale = time_scale
        self._clock = clock
        self._service: NoticeService | None = None
        self._open = ExitStack()

    def arm(
        self, workdir: Path, *, listener: socket.socket | None = None
    ) -> dict[str, str]:
        """Start what the program will ask; return environment variables for it.

        Args:
            workdir: the attempt's own folder; the notice as a file lies below it.
            listener: a listening socket in the attempt's network namespace; None: a free
                port of this one's loopback.
        """
        self.disarm()
        service = NoticeService(
            self.story, clock=self._clock, time_scale=self._time_scale
        )
        self._service = service
        found: dict[str, str] = {}
        if self.story.provider in PROVIDERS:
            base_url = self._open.enter_context(on_loopback(service, listener=listener))
            found |= environment_for(self.story.provider, base_url)
        mechanism = profile(self.story.provider).mechanism
        if mechanism in {"file", "event"}:
            folder = workdir / "notice"
            self._open.enter_context(on_files(service, folder))
            found[FILE_VARIABLE] = str(folder)
        if self.story.signal is not None and self._send is not None:
            self._open.enter_context(by_signal(service, self._send))
        return found

    def fire(self) -> Sequence[Notice]:
        """Announce the notice now; return it with its deadline and reclaim fixed."""
        return self._running().announce()

    def wait_for_reclaim(self, *, at_most_s: float) -> bool:
        """Wait for the reclaim, which a program can hasten by acknowledging (Azure).

        Returns:
            True once the machine is to be lost; False if that does not come within
            `at_most_s` real seconds.
        """
        return self._running().wait_for_reclaim(at_most_s=at_most_s)

    @property
    def log(self) -> Sequence[Entry]:
        """What the program has asked so far; empty for a program that never asks."""
        return self._running().log

    def disarm(self) -> None:
        """Stop answering and free the port; safe to call twice."""
        self._open.close()

    def _running(self) -> NoticeService:
        if self._service is None:
            raise HarnessError("the notice is not armed")
        return self._service
