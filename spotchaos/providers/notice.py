"""One notice of one machine, from its silence to the reclaim, as a function of the time.

A `Notice` is frozen and holds moments only; what a program can read, and whether the
machine still lives, follows from it and from `now`. Nothing here waits, reads a clock or
speaks a protocol.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from spotchaos.errors import UsageError

# A grace window longer than a day is a slip of the unit, not a provider.
LONGEST_S = 86_400.0
# Where no scale is given, a window takes at most this share of what the program has left,
# so that the deadline falls before its end (a longer one would test nothing).
SHARE_OF_RUN = 0.5


class Phase(StrEnum):
    """What can be said of a notice at one moment."""

    SILENT = "silent"  # nothing can be read: not yet announced, late, or missing
    ANNOUNCED = "announced"  # readable, and its deadline lies ahead
    WITHDRAWN = "withdrawn"  # taken back before its deadline
    DUE = "due"  # the deadline has passed and the machine still lives
    GONE = "gone"  # reclaimed, or frozen


class Follows(StrEnum):
    """What comes when a notice has run out."""

    RECLAIM = "reclaim"  # SIGKILL to every process at once
    FREEZE = "freeze"  # hibernation: the processes stand still and may be thawed
    NOTHING = "nothing"  # advice only


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One warning, and what follows it.

    The deadline is fixed when the notice is announced and never moves; the reclaim may
    come before it (early), at it, or after it. A notice that nobody can read
    (`readable_at` is None) still ends in its reclaim: that is a missing notice.
    """

    # The provider's own word for it: "terminate", "rebalance", "Preempt", ...
    kind: str
    announced_at: datetime
    deadline: datetime
    # When a program can first read it; later than `announced_at` for a late one.
    readable_at: datetime | None
    # None: nothing follows.
    reclaim_at: datetime | None
    withdrawn_at: datetime | None = None
    # When the program agreed to an early start (Azure's StartRequests).
    acknowledged_at: datetime | None = None
    follows: Follows = Follows.RECLAIM
    # False: the event concerns another machine of the same set.
    is_for_us: bool = True

    def phase(self, now: datetime) -> Phase:
        """Say what holds at `now`; the end of the machine wins over everything."""
        if self.reclaim_at is not None and now >= self.reclaim_at:
            return Phase.GONE
        if self.withdrawn_at is not None and now >= self.withdrawn_at:
            return Phase.WITHDRAWN
        if self.readable_at is None or now < self.readable_at:
            return Phase.SILENT
        if now >= self.deadline or self.is_acknowledged(now):
            return Phase.DUE
        return Phase.ANNOUNCED

    def is_readable(self, now: datetime) -> bool:
        """Tell whether a program that asks at `now` is told of it."""
        if self.readable_at is None or now < self.readable_at:
            return False
        return self.withdrawn_at is None or now < self.withdrawn_at

    def is_acknowledged(self, now: datetime) -> bool:
        """Tell whether the program has agreed to an early start by `now`."""
        return self.acknowledged_at is not None and now >= self.acknowledged_at

    @property
    def announced_deadline(self) -> datetime:
        """The deadline as answers tell it, in UTC and whole seconds, rounded up.

        Rounded down, a window of less than a second would begin with a time that has
        passed, which programs rightly take for an old notice.
        """
        moment = self.deadline.astimezone(UTC)
        whole = moment.replace(microsecond=0)
        return whole if whole == moment else whole + timedelta(seconds=1)

    def changes(self) -> list[datetime]:
        """Return every moment at which an answer about it may change, oldest first."""
        moments = (
            self.readable_at,
            self.withdrawn_at,
            self.acknowledged_at,
            None if self.readable_at is None else self.deadline,
            self.reclaim_at,
        )
        return sorted({moment for moment in moments if moment is not None})

    def withdraw(self, now: datetime) -> Notice:
        """Take it back at `now`: its reclaim will not come.

        Raises:
            UsageError: it is too late; the machine is gone, or the notice is withdrawn.
        """
        if self.phase(now) in {Phase.GONE, Phase.WITHDRAWN}:
            raise UsageError(
                f"the notice {self.kind!r} cannot be withdrawn, it is {self.phase(now)}",
                hint="withdraw a notice before its deadline",
            )
        return replace(self, withdrawn_at=now, reclaim_at=None)

    def acknowledge(self, now: datetime, *, start_after_s: float) -> Notice:
        """Agree to an early start: the reclaim comes `start_after_s` later, or sooner.

        A second acknowledgement changes nothing.
        """
        if self.acknowledged_at is not None:
            return self
        sooner = self.reclaim_at
        if sooner is not None:
            sooner = min(sooner, now + timedelta(seconds=start_after_s))
        return replace(self, acknowledged_at=now, reclaim_at=sooner)


def next_change(notices: Iterable[Notice], now: datetime) -> datetime | None:
    """Return the first moment after `now` at which any answer may change, or None."""
    coming = [at for notice in notices for at in notice.changes() if at > now]
    return min(coming, default=None)


def count_changes(notices: Iterable[Notice], now: datetime) -> int:
    """Count the moments up to `now` at which an answer may have changed."""
    return sum(at <= now for notice in notices for at in notice.changes())


def reclaim_at(notices: Iterable[Notice]) -> datetime | None:
    """Return when the machine is lost, or None if it is not."""
    return min(
        (n.reclaim_at for n in notices if n.reclaim_at is not None), default=None
    )


def latest(notices: Iterable[Notice], now: datetime) -> Notice | None:
    """Return the newest notice that is announced by `now`, readable or not."""
    announced = [n for n in notices if n.announced_at <= now]
    return max(announced, key=lambda n: n.announced_at, default=None)


def check_grace(grace_s: float) -> float:
    """Return `grace_s`, a number of seconds from 0 to a day.

    Raises:
        UsageError: it is negative, not a number, or longer than a day.
    """
    return check_seconds(grace_s, "grace window")


def check_seconds(seconds: float, what: str) -> float:
    """Return `seconds`, a number from 0 to a day.

    Args:
        seconds: as given.
        what: its name in the message.

    Raises:
        UsageError: it is negative, not a number, or longer than a day.
    """
    if not math.isfinite(seconds) or seconds < 0:
        raise UsageError(
            f"impossible {what} of {seconds} s",
            hint="give a number of seconds, 0 or more",
        )
    if seconds > LONGEST_S:
        raise UsageError(
            f"impossible {what} of {seconds:g} s, more than a day",
            hint="it is given in seconds",
        )
    return seconds


def check_time_scale(scale: float) -> float:
    """Return `scale`, in cloud seconds per real second.

    Raises:
        UsageError: it is not between a thousandth and a million.
    """
    if not 0.001 <= scale <= 1e6:
        raise UsageError(
            f"impossible time scale {scale}",
            hint="give cloud seconds per real second, such as 60",
        )
    return scale


def fitting_time_scale(cloud_s: float, *, left_s: float) -> float:
    """Choose the scale at which `cloud_s` fits well into what the program has left.

    Args:
        cloud_s: cloud seconds from the notice to the reclaim.
        left_s: real seconds that the program would still run if left alone, above 0.

    Returns:
        Cloud seconds per real second, never below 1: time is compressed, not stretched.
    """
    return max(1.0, cloud_s / (SHARE_OF_RUN * left_s))
