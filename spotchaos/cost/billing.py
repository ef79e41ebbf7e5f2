"""What a run costs: leases rounded as a provider bills them, storage, and no price of ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from spotchaos.cost.runs import Market, Run
from spotchaos.cost.units import HOUR_US, SECOND_US

MONTH_US = 730 * HOUR_US
GIGABYTE = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Billing:
    """How time is rounded, in microseconds.

    Attributes:
        granularity_us: a lease is billed in whole multiples of it.
        minimum_us: the least that is billed of a lease.
        free_us: a spot lease that the provider takes back within it is free.
    """

    granularity_us: int = SECOND_US
    minimum_us: int = 0
    free_us: int = 0

    def billed(self, held: int, *, is_taken: bool = False) -> int:
        """Return how much of a lease is billed."""
        if is_taken and held <= self.free_us:
            return 0
        whole = -(-held // self.granularity_us) * self.granularity_us
        return max(whole, self.minimum_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Nanodollars for a machine and hour, and for a gigabyte and month (of 730 h)."""

    spot: int
    on_demand: int
    storage: int = 0

    def of(self, market: Market) -> int:
        return self.spot if market == "spot" else self.on_demand


@dataclass(frozen=True, slots=True)
class Bill:
    """The bill of a run, in nanodollars, and the machine time that it is for."""

    spot: int
    on_demand: int
    storage: int
    billed_us: int

    @property
    def total(self) -> int:
        return self.spot + self.on_demand + self.storage


class Rental(NamedTuple):
    """Machines that come and go together."""

    market: Market
    start: int
    end: int
    nodes: int
    is_taken: bool = False


def rentals(run: Run) -> Iterator[Rental]:
    """Return what is billed as one: machines that live on from lease to lease are.

    Of those that are let go, the newest go first.
    """
    open_: list[tuple[int, int]] = []  # from, machines
    before = None
    for lease in run.leases:
        lives_on = (
            before is not None
            and before.end == lease.start
            and (before.market, before.zone) == (lease.market, lease.zone)
            and before.nodes != lease.nodes
        )
        if before is not None and not lives_on:
            taken = before.ended == "reclaimed"
            for start, nodes in open_:
                yield Rental(before.market, start, before.end, nodes, taken)
            open_ = []
        surplus = sum(nodes for _, nodes in open_) - lease.nodes
        while surplus > 0:
            start, nodes = open_.pop()
            gone = min(nodes, surplus)
            yield Rental(lease.market, start, lease.start, gone, is_taken=True)
            if nodes > gone:
                open_.append((start, nodes - gone))
            surplus -= gone
        if surplus < 0:
            open_.append((lease.start, -surplus))
        before = lease
    if before is not None:
        taken = before.ended == "reclaimed"
        for start, nodes in open_:
            yield Rental(before.market, start, before.end, nodes, taken)
    if run.escort:
        yield Rental("on-demand", 0, run.elapsed, run.escort)


def bill(
    run: Run, prices: Prices, billing: Billing, *, stored_bytes: float = 0
) -> Bill:
    """Return the bill of a run.

    Args:
        run: what was leased.
        prices: of machines and storage.
        billing: how time is rounded.
        stored_bytes: that lie in storage all the time.
    """
    sums: dict[Market, int] = {"spot": 0, "on-demand": 0}
    total = 0
    for rental in rentals(run):
        is_taken = rental.is_taken and rental.market == "spot"
        billed = billing.billed(rental.end - rental.start, is_taken=is_taken)
        billed *= rental.nodes
        total += billed
        sums[rental.market] += _rounded(billed * prices.of(rental.market), HOUR_US)
    kept = round(stored_bytes) * prices.storage * run.elapsed
    return Bill(
        sums["spot"],
        sums["on-demand"],
        _rounded(kept, GIGABYTE * MONTH_US),
        total,
    )


def _rounded(amount: int, unit: int) -> int:
    return (2 * amount + unit) // (2 * unit)
