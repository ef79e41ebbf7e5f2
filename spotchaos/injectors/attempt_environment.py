"""What an attempt finds around it: the metadata service of its cloud, its object store.

Made anew for each attempt, before the program starts; the story of its notice begins when
`announce` is called, and until then the service is silent.
"""

from __future__ import annotations

import ipaddress
import socket
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Protocol, Self

from spotchaos.clock import Clock, SystemClock
from spotchaos.injectors.polling import (
    FIRST_PATIENCE_S,
    Heard,
    Polls,
    moments_of,
    patience_s,
)
from spotchaos.injectors.storage_layer import Hold
from spotchaos.launch.isolation.proxies import proxy_variable
from spotchaos.model import Attempt, NoticePlayed
from spotchaos.providers import ADDRESSES, PROVIDERS
from spotchaos.providers.loopback import LoopbackServer
from spotchaos.providers.machine_profile import environment_for, redirects_for
from spotchaos.providers.notice import Follows, Notice
from spotchaos.providers.profiles import profile
from spotchaos.providers.service import NoticeService
from spotchaos.providers.serving import MetadataApp, on_files
from spotchaos.providers.stories import Story

# Where our servers listen in a network that belongs to the attempt alone.
METADATA_PORT = 1338
STORE_PORT = 21338
# Of a service that is known by name alone.
LINK_LOCAL = "169.254.169.254"
# Below the folder of an attempt.
NOTICE_FOLDER = "notice"
FILE_VARIABLE = "SPOTCHAOS_NOTICE_DIR"

# A compressed window is never shorter: neither a poll nor a save is compressed with it.
LEAST_WINDOW_S = 1.0
SHARE_OF_THE_REST = 0.5
SAVES_THAT_FIT = 4.0
POLLS_THAT_FIT = 2.5
# Who heeds a notice asks, saves and ends; the end counts for more on a busy machine. But
# the deadline must fall before the end of who does not.
ENDS_THAT_FIT = 1.5
MOST_OF_THE_REST = 0.8


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast the uninterrupted program is, in seconds in which it was not delayed."""

    horizon: int
    step_s: float
    save_s: float  # the longest of its saves
    end_s: float = 0.0  # from its last step or save to the end of the process

    @classmethod
    def of(cls, baseline: Attempt) -> Self:
        """Measure the pace of an uninterrupted run, without what a busy machine adds."""
        own = baseline.undelayed_share
        ranks = baseline.trace.ranks.values()
        gaps = [
            after.t_s - before.t_s
            for rank in ranks
            for before, after in pairwise(rank.steps)
        ]
        saves = [
            save.ended_at_s - save.begun_at_s
            for rank in ranks
            for save in rank.saves
            if save.ended_at_s is not None
        ]
        return cls(
            baseline.trace.completed,
            own * statistics.fmean(gaps) if gaps else 0.0,
            own * max(saves, default=0.0),
            own * _end_s(baseline),
        )


def _end_s(attempt: Attempt) -> float:
    ranks = attempt.trace.ranks.values()
    last_s = [mark.t_s for rank in ranks for mark in rank.steps[-1:]]
    last_s += [s.ended_at_s for r in ranks for s in r.saves if s.ended_at_s is not None]
    if not last_s:
        return 0.0
    return max(0.0, attempt.started_at_s + attempt.wall_s - max(last_s))


def window_s(pace: Pace | None, *, done: int, poll_s: float, cloud_s: float) -> float:
    """Return how many seconds a notice lasts, so that it ends before the program.

    They are those of the attempt: seconds in which others kept it from running are left out.

    Args:
        pace: of the program; None: unknown, nothing is compressed.
        done: steps that it has done.
        poll_s: the longest pause between two requests of the program so far.
        cloud_s: what the provider gives.
    """
    if pace is None:
        return cloud_s
    rest_s = max(1, pace.horizon - done) * pace.step_s
    wanted_s = max(
        LEAST_WINDOW_S,
        SHARE_OF_THE_REST * rest_s,
        SAVES_THAT_FIT * pace.save_s,
        POLLS_THAT_FIT * poll_s,
        min(
            poll_s + pace.save_s + ENDS_THAT_FIT * pace.end_s, MOST_OF_THE_REST * rest_s
        ),
    )
    return min(cloud_s, wanted_s)


class Store(Protocol):
    """What surroundings need of an object store, which outlives attempts."""

    def environment(self, port: int) -> dict[str, str]: ...
    def serve(self, listener: socket.socket) -> AbstractServer: ...
    def waited_s(self) -> float | None: ...
    def hold(self, number: int) -> Hold: ...


class AbstractServer(Protocol):
    """Something that serves until it is stopped."""

    def stop(self) -> None: ...


class AttemptEnvironment:
    """The fakes of one attempt; use as a context manager.

    Args:
        story: of the notice; None: there is no metadata service.
        isolated: the attempt has a network of its own, in which `places` can be had;
            otherwise our servers listen on free ports of this machine's loopback.
        time_scale: cloud seconds per real second; None: chosen at the announcement.
        real_addresses: the cloud's own addresses are asked, and nothing is redirected;
            of IPv6 as well.
        store: of objects; None: there is none.
        own: the environment that the program would have without us.
        polls: what is known of the program's requests from earlier attempts.
        clock: tells the time; the system's if None.
    """

    def __init__(
        self,
        story: Story | None,
        *,
        isolated: bool,
        time_scale: float | None = None,
        real_addresses: bool = False,
        store: Store | None = None,
        own: Mapping[str, str] | None = None,
        polls: Polls | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.story = story
        self.environment: dict[str, str] = {}
        self.redirect: dict[str, str] = {}
        self.places: list[tuple[str, int]] = []
        self.addresses: list[str] = []
        self.hosts: dict[str, str] = {}
        self.service: NoticeService | None = None
        self.patience_s = 0.0  # see `announce`
        self._time_scale = time_scale
        self._environment = own or {}
        self._polls = polls or Polls()
        self._clock: Clock = clock or SystemClock()
        self._isolated = isolated
        self._store = store
        self._own: list[socket.socket] = []
        self._open = ExitStack()
        if story is not None:
            self._surround_with_metadata(story, real_addresses=real_addresses)
        if store is not None:
            self.environment |= store.environment(self._place(STORE_PORT))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def serve(self, listeners: Sequence[socket.socket], folder: Path) -> None:
        """Begin to answer.

        Args:
            listeners: one for each of `places`, in that order.
            folder: of the attempt; the notice as a file lies below it.
        """
        given = list(listeners if self._isolated else self._own)
        if self._store is not None:
            server = self._store.serve(given.pop())
            self._open.callback(server.stop)
        if self.service is None or self.story is None:
            return
        for listener in given:
            app = MetadataApp(self.service)
            self._open.enter_context(LoopbackServer(app, listener=listener))
        if self._is_file:
            self._open.enter_context(on_files(self.service, folder / NOTICE_FOLDER))

    def announce(
        self, pace: Pace | None, *, done: int, is_patient: bool = False
    ) -> NoticePlayed:
        """Begin the story; every deadline is fixed here.

        Args:
            pace: of the uninterrupted program; None: unknown.
            done: steps that the program has done.
            is_patient: the training can wait for the program's next request, for
                `patience_s` at most, by which the window is longer.
        """
        assert self.service is not None
        assert self.story is not None
        lasts_s = self.story.lasts_s
        is_hasty = False
        if self._time_scale is None and lasts_s:
            heard = Heard.of(self.service.log, self._clock.now())
            poll_s = heard.pause_s or self._polls.usual_s
            real_s = window_s(pace, done=done, poll_s=poll_s, cloud_s=lasts_s)
            if pace is not None and self._may_miss_requests(poll_s):
                tries = 2 if self.story.faults else 1
                wanted_s = patience_s(heard, self._polls, tries=tries)
                if is_patient:  # what the provider gives is not made longer
                    self.patience_s = min(wanted_s, lasts_s - real_s)
                is_hasty = not is_patient and real_s < min(wanted_s, lasts_s)
            self.service.compress(max(1.0, lasts_s / (real_s + self.patience_s)))
        notices = self.service.announce()
        deadline = max((n.deadline for n in notices), default=self._clock.now())
        return NoticePlayed(
            story=self.story.name,
            provider=self.story.provider,
            grace_s=self.story.grace_s,
            time_scale=self.service.time_scale,
            deadline_at_s=self.monotonic(deadline),
            reclaimed=any(self.is_loss(n) for n in notices),
            is_hasty=is_hasty,
            is_served=self.story.provider in PROVIDERS and not self._is_file,
            proxy=proxy_variable(
                self._environment, ADDRESSES.get(self.story.provider, ())
            ),
        )

    def hold_upload(self, number: int) -> Hold | None:
        """Stop the `number`th request that puts something into the store; None: none."""
        if self._store is None:
            return None
        hold = self._store.hold(number)
        # However the attempt ends, nobody waits for ever.
        self._open.callback(hold.release, goes_on=False)
        return hold

    def upload_waited_s(self) -> float | None:
        """Return how long ago a write was refused that nobody has repeated; None: none."""
        return None if self._store is None else self._store.waited_s()

    def is_loss(self, notice: Notice) -> bool:
        """Tell whether a notice ends in the loss of the machine."""
        return notice.reclaim_at is not None and notice.follows is Follows.RECLAIM

    def monotonic(self, moment: datetime) -> float:
        """Return a moment as CLOCK_MONOTONIC; never later than it is."""
        # In this order: a wait for the processor between the two may not postpone it.
        now_s = self._clock.monotonic()
        return now_s + (moment - self._clock.now()).total_seconds()

    def close(self) -> None:
        """Stop answering; safe to call twice."""
        if self.service is not None:
            self.service.close()
        self._open.close()
        while self._own:
            self._own.pop().close()

    def _may_miss_requests(self, poll_s: float) -> bool:
        """Tell whether a window may pass without a request of one who polls now and then."""
        assert self.service is not None
        assert self.story is not None
        if self.story.provider not in PROVIDERS or self.service.held:
            return False
        return not 0 < poll_s <= LEAST_WINDOW_S

    @property
    def _is_file(self) -> bool:
        assert self.story is not None
        return profile(self.story.provider).mechanism in {"file", "event"}

    def _surround_with_metadata(self, story: Story, *, real_addresses: bool) -> None:
        self.service = NoticeService(
            story, clock=self._clock, time_scale=self._time_scale or 1.0
        )
        if story.provider in PROVIDERS:
            base_url = f"http://127.0.0.1:{self._place(METADATA_PORT)}"
            self.environment |= environment_for(story.provider, base_url)
            known = ADDRESSES[story.provider]
            if self._isolated:
                # What asks from outside of Python (curl, Go) finds the cloud as well.
                self._surround_with_addresses(known, ipv6=real_addresses)
            if not real_addresses or not self._isolated:
                self.redirect = redirects_for(story.provider, base_url)
        if self._is_file:
            self.environment[FILE_VARIABLE] = "{attempt}/" + NOTICE_FOLDER

    def _surround_with_addresses(self, known: Sequence[str], *, ipv6: bool) -> None:
        """Have the cloud's own addresses and names in the attempt's network."""
        numbers = [address for address in known if _version(address)]
        ipv6 = ipv6 and _has_ipv6()
        self.addresses = [a for a in numbers if _version(a) == 4 or ipv6]
        if not self.addresses:
            self.addresses = [LINK_LOCAL]
        names = [name for name in known if not _version(name)]
        self.hosts = dict.fromkeys(names, self.addresses[0])
        self.places += [(address, 80) for address in self.addresses]

    def _place(self, port: int) -> int:
        """Reserve a place to listen at; return its port."""
        if self._isolated:
            self.places.append(("127.0.0.1", port))
            return port
        self._own.append(socket.create_server(("127.0.0.1", 0)))
        return int(self._own[-1].getsockname()[1])

    def learn(self, attempt: Attempt) -> None:
        """Remember how often the program asked, for the attempts that follow."""
        if self.service is None:
            return
        played = attempt.notice
        if played is not None:
            if not played.asked and self.patience_s >= FIRST_PATIENCE_S:
                self._polls.note_silence()
            return
        begun = [m.t_s for r in attempt.trace.ranks.values() for m in r.steps[:1]]
        asked_s = [self.monotonic(at) for at in moments_of(self.service.log)]
        self._polls.note(asked_s, from_s=min(begun, default=None))


def _version(address: str) -> int:
    """Return 4 or 6; 0 for a name."""
    try:
        return ipaddress.ip_address(address).version
    except ValueError:
        return 0


def _has_ipv6() -> bool:
    """Tell whether a new network namespace of this machine has IPv6."""
    try:
        switch = Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").read_text()
    except OSError:
        return False
    return switch.strip() == "0"
