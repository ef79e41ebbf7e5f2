"""What many runs of one policy come to: quantiles, causes and chances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from spotchaos.cost.billing import Bill
from spotchaos.cost.policies import Policy
from spotchaos.cost.runs import CAUSES, Run
from spotchaos.cost.units import dollars, hours


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle of many values, and the range in which nine of ten lie."""

    p5: float
    median: float
    p95: float
    mean: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        low, middle, high = np.quantile(values, (0.05, 0.5, 0.95)).tolist()
        return cls(low, middle, high, float(np.mean(values)))

    def as_report(self) -> dict[str, float]:
        names = ("p5", "median", "p95", "mean")
        return {name: round(getattr(self, name), 4) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One policy over all its runs.

    Attributes:
        policy: which.
        runs: how many were simulated.
        finishes: share of them that finish.
        why_not: why the others do not; empty: they all do.
        hours: to finish, by the clock; None: none does.
        dollars: of the whole run; None: no prices, or none finishes.
        paid_hours: machine time that is held, mean.
        goodput: useful of paid machine time, mean.
        by_cause: hours by the clock, mean, of each cause.
        interruptions: mean.
        lost_steps: steps that were made again, mean.
        meets_deadline: share of runs; None: there is no deadline.
        repeated: share of runs for which the trace began again.
        middle: the run of median length.
        values: what the distribution is of: dollars of each run, or hours.
    """

    policy: Policy
    runs: int
    finishes: float
    why_not: str
    hours: Spread | None
    dollars: Spread | None
    paid_hours: float
    goodput: float
    by_cause: dict[str, float] = field(default_factory=dict)
    interruptions: float = 0.0
    lost_steps: float = 0.0
    meets_deadline: float | None = None
    repeated: float = 0.0
    middle: Run | None = None
    values: tuple[float, ...] = ()


def summarise(
    policy: Policy,
    runs: Sequence[Run],
    bills: Sequence[Bill] | None,
    *,
    deadline_us: int | None,
) -> Row:
    """Return the row of a policy; figures are of the runs that finish."""
    done = [run for run in runs if run.finished]
    why_not = next((run.why_not for run in runs if not run.finished), "")
    share = len(done) / len(runs)
    met = None
    if deadline_us is not None:
        met = sum(run.elapsed <= deadline_us for run in done) / len(runs)
    if not done:
        return Row(
            policy=policy,
            runs=len(runs),
            finishes=0.0,
            why_not=why_not,
            hours=None,
            dollars=None,
            paid_hours=0.0,
            goodput=0.0,
            meets_deadline=met,
            middle=runs[0],
        )
    elapsed = [hours(run.elapsed) for run in done]
    paid = None
    if bills is not None:
        finished = zip(runs, bills, strict=True)
        paid = [dollars(one.total) for run, one in finished if run.finished]
    ordered = sorted(done, key=lambda run: run.elapsed)
    return Row(
        policy=policy,
        runs=len(runs),
        finishes=share,
        why_not=why_not,
        hours=Spread.of(elapsed),
        dollars=None if paid is None else Spread.of(paid),
        paid_hours=_mean(hours(run.paid) for run in done),
        goodput=_mean(run.goodput for run in done),
        by_cause={c: _mean(hours(run.time_of(c)) for run in done) for c in CAUSES},
        interruptions=_mean(run.interruptions for run in done),
        lost_steps=_mean(sum(x.made - x.kept for x in run.leases) for run in done),
        meets_deadline=met,
        repeated=_mean(run.repeats > 0 for run in done),
        middle=ordered[len(ordered) // 2],
        values=tuple(elapsed if paid is None else paid),
    )


def _mean(values: object) -> float:
    return float(np.mean(list(values)))  # type: ignore[call-overload]
