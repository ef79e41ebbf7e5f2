"""What one simulated run was: its leases of machines, and where its time went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

Market: TypeAlias = Literal["spot", "on-demand"]
CAUSES = ("useful", "lost", "saving", "restarting", "idle", "waiting")


class Lease(NamedTuple):
    """Some machines from getting them until they are gone; times in microseconds.

    `useful` to `idle` add up to the time from `start` to `end`: steps that stayed, steps
    that are made again, saves that held training up, boots and starts, and what is left
    between a save on notice and the reclaim.
    """

    market: Market
    zone: str
    nodes: int
    start: int
    end: int
    useful: int
    lost: int
    saving: int
    restarting: int
    idle: int
    made: int  # steps
    kept: int  # ... of which a checkpoint holds
    ended: Literal["reclaimed", "finished", "left"]


@dataclass(frozen=True, slots=True)
class Run:
    """One simulated run of a policy; times in microseconds from asking for machines.

    Attributes:
        leases: in order.
        elapsed: to the end, or to where it was given up.
        steps: that were kept.
        finished: whether all were.
        why_not: why it never finishes.
        escort: machines that are kept on demand besides, all the time.
        repeats: how often the trace began again.
    """

    leases: tuple[Lease, ...]
    elapsed: int
    steps: int
    finished: bool
    why_not: str = ""
    escort: int = 0
    repeats: int = 0

    def time_of(self, cause: str) -> int:
        """Return the time that went into a cause, by the clock."""
        if cause == "waiting":
            return self.elapsed - sum(lease.end - lease.start for lease in self.leases)
        found: int = sum(getattr(lease, cause) for lease in self.leases)
        return found

    @property
    def interruptions(self) -> int:
        return sum(lease.ended == "reclaimed" for lease in self.leases)

    @property
    def paid(self) -> int:
        """Machine time that is held, before the bill rounds it."""
        held = sum((lease.end - lease.start) * lease.nodes for lease in self.leases)
        return held + self.escort * self.elapsed

    @property
    def goodput(self) -> float:
        """Share of paid machine time in which steps were made that stayed."""
        useful = sum(
            lease.useful * (lease.nodes + self.escort) for lease in self.leases
        )
        return useful / self.paid if self.paid else 0.0
