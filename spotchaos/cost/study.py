"""All policies side by side: which fit a question, their runs, and the best interval."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from spotchaos.cost.billing import Bill, Billing, Prices, bill
from spotchaos.cost.capacity import (
    Endless,
    FailureCapacity,
    Source,
    TraceCapacity,
    Zones,
)
from spotchaos.cost.closed_forms import daly_interval_s, young_interval_s
from spotchaos.cost.failures import Failures, drawn_trace
from spotchaos.cost.job import Job
from spotchaos.cost.policies import Policy
from spotchaos.cost.runs import Run
from spotchaos.cost.search import Searched, best_interval
from spotchaos.cost.simulate import simulate
from spotchaos.cost.summary import Row, summarise
from spotchaos.cost.traces import Trace
from spotchaos.cost.units import seconds

# A policy of which so many runs do not finish, and none does, is not tried further.
MOST_VAIN_RUNS = 4
# Nor is one that has used so many leases, once there are a few runs of it: the more
# leases in a run, the less runs differ.
MOST_LEASES = 20_000
LEAST_RUNS = 2
# An elastic gang whose failures are drawn lives through a trace so many times as long
# as its work.
DRAWN_LENGTH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Everything that a study depends on.

    Attributes:
        job: what is trained.
        every: steps from save to save now; None: not known.
        traces: of the zones that machines come from; empty: they come at once.
        failures: when machines are taken, if there is no trace.
        deadline_us: by when it has to be finished; None: any time.
        prices: None: hours alone.
        billing: how time is rounded.
        stored_bytes: of checkpoints.
        background_stall_us: by which a save in the background delays training.
        runs: simulated of each policy.
        search_runs: simulated of each interval that is tried.
        seed: draws failures and where in a trace a run begins.
    """

    job: Job
    every: int | None = None
    traces: tuple[Trace, ...] = ()
    failures: Failures | None = None
    deadline_us: int | None = None
    prices: Prices | None = None
    billing: Billing = field(default_factory=Billing)
    stored_bytes: float = 0.0
    background_stall_us: int = 0
    runs: int = 200
    search_runs: int = 100
    seed: int = 0

    @property
    def gang_mtbf_s(self) -> float | None:
        """Mean seconds until one machine of the gang is taken; None: none ever is."""
        nodes, is_elastic = self.job.nodes, self.job.is_elastic
        if self.failures is not None:
            drawn = self.failures.draw(np.random.default_rng(self.seed), nodes, 4096)
            return seconds(float(np.mean(drawn)))
        means = [
            mean_us
            for trace in self.traces
            if (mean_us := trace.mean_window_us(nodes, is_elastic=is_elastic))
        ]
        return seconds(float(np.mean(means))) if means else None


@dataclass(frozen=True, slots=True)
class Study:
    """What came of a question.

    Attributes:
        rows: the best policy first.
        left_out: policy and why it is not tried.
        searched: the intervals that were tried; None: there was nothing to search.
        young: steps between saves by Young's closed form; None: not known.
        daly: the same by Daly's.
    """

    question: Question
    rows: tuple[Row, ...]
    left_out: tuple[tuple[str, str], ...]
    searched: Searched | None
    young: int | None
    daly: int | None

    def row(self, name: str) -> Row | None:
        """Return the row of a policy by its name."""
        return next((row for row in self.rows if row.policy.name == name), None)


# Names of policies, as the screen and the report have them.
NOW, BEST = "as now", "best interval"
NOTICE, BOTH = "on notice alone", "as now, on notice too"
BACKGROUND, HYBRID = "as now, in background", "one node on demand"
DEADLINE, EVEN = "on demand if it must", "on demand when behind"
ZONES, ON_DEMAND, NEVER = "any zone", "on demand alone", "no checkpoint"


def study(question: Question) -> Study:
    """Simulate every policy that fits a question."""
    job = question.job
    mtbf_s = question.gang_mtbf_s
    young = daly = None
    if mtbf_s is not None:
        save_s, step_s = seconds(job.save_stall_us), seconds(job.step_us)
        young = _steps(young_interval_s(save_s, mtbf_s), step_s, job.steps)
        daly = _steps(daly_interval_s(save_s, mtbf_s), step_s, job.steps)
    searched = search(question, guess=young or question.every or 1)
    best = searched.every if searched is not None else None
    policies, left_out = _policies(question, best)
    rows = [_row(question, policy) for policy in policies]
    rows.sort(key=lambda row: _rank(question, row))
    return Study(question, tuple(rows), tuple(left_out), searched, young, daly)


def alone(question: Question, policy: Policy) -> Study:
    """Return the study of one policy."""
    return Study(question, (_row(question, policy),), (), None, None, None)


def search(question: Question, *, guess: float) -> Searched | None:
    """Return the interval with the least paid time (or dollars, if there are prices)."""
    if not question.traces and question.failures is None:
        return None
    limited = replace(question, runs=question.search_runs)

    def cost(every: int) -> float:
        policy = Policy(name="searched", every=every)
        runs = list(runs_of(limited, policy))
        if not all(run.finished for run in runs):
            return math.inf
        if question.prices is None:
            return float(np.mean([run.paid for run in runs])) / 3.6e9
        return float(np.mean([_bill(question, run).total for run in runs])) / 1e9

    return best_interval(cost, steps=question.job.steps, guess=guess)


def runs_of(question: Question, policy: Policy) -> Iterator[Run]:
    """Simulate a policy's runs; those of one number begin alike under every policy."""
    vain = leases = 0
    for number in range(question.runs):
        run = simulate(
            question.job,
            policy,
            _source(question, policy, number),
            deadline_us=question.deadline_us,
        )
        yield run
        vain = vain + 1 if not run.finished else -question.runs
        leases += len(run.leases)
        is_enough = leases >= MOST_LEASES and number + 1 >= LEAST_RUNS
        if vain >= MOST_VAIN_RUNS or is_enough:
            return


def _source(question: Question, policy: Policy, number: int) -> Source:
    job, seed = question.job, question.seed
    nodes = job.nodes - 1 if policy.rule == "hybrid" else job.nodes
    if policy.rule == "on-demand":
        return Endless(nodes)
    if question.traces:
        begins = np.random.default_rng((seed, number)).random()
        delay = job.provision_us + job.queue_us
        zones = [
            TraceCapacity(
                trace,
                nodes,
                begins=int(begins * trace.length_us),
                is_elastic=job.is_elastic,
                delay=delay,
            )
            for trace in question.traces
        ]
        if policy.all_zones:
            return Zones(zones)
        return zones[number % len(zones)]
    failures = question.failures
    if failures is None:
        return Endless(nodes)
    if not job.is_elastic:
        return FailureCapacity(failures, nodes, (seed, number))
    drawn = drawn_trace(
        failures,
        nodes,
        down_us=job.provision_us + job.queue_us,
        length_us=DRAWN_LENGTH * job.work_us,
        seed=(seed, number),
    )
    return TraceCapacity(drawn, nodes, is_elastic=True)


def _row(question: Question, policy: Policy) -> Row:
    if policy.rule == "on-demand":
        # Nothing is drawn: all runs are one.
        question = replace(question, runs=1)
    runs = list(runs_of(question, policy))
    bills = None
    if question.prices is not None:
        bills = [_bill(question, run) for run in runs]
    return summarise(policy, runs, bills, deadline_us=question.deadline_us)


def _bill(question: Question, run: Run) -> Bill:
    assert question.prices is not None
    return bill(
        run, question.prices, question.billing, stored_bytes=question.stored_bytes
    )


def _policies(
    question: Question, best: int | None
) -> tuple[list[Policy], list[tuple[str, str]]]:
    """Return the policies that fit, and why the others do not."""
    job, now = question.job, question.every
    usual = best or now or job.steps
    found: list[Policy] = []
    left: list[tuple[str, str]] = []

    def add(policy: Policy, why_not: str = "") -> None:
        if why_not:
            left.append((policy.name, why_not))
        else:
            found.append(policy)

    unknown = "" if now else "how often it saves now is not known (--save-every)"
    notice = (
        "" if job.notice_us else "no notice is known (--provider, --notice-seconds)"
    )
    add(Policy(name=NOW, every=now or 0), unknown)
    endless = "" if question.traces or question.failures else "nothing interrupts"
    add(Policy(name=BEST, every=best or 0), "" if best else endless or "none finishes")
    late = ""
    if job.need_us > job.notice_us:
        late = "its save takes longer than the notice gives, and is lost"
    on_notice = Policy(name=NOTICE, every=0, on_notice=True, note=late)
    add(on_notice, notice)
    both = Policy(name=BOTH, every=usual, on_notice=True, note=late)
    add(replace(both, every=now or usual), notice)
    stall = min(question.background_stall_us, job.save_stall_us)
    is_beside = 2 * job.save_stall_us < job.save_end_us
    beside = Policy(name=BACKGROUND, every=now or usual, stall_us=stall)
    if not question.background_stall_us:
        beside = replace(beside, note="at best: a save delays no step")
    add(beside, unknown or ("its saves are in the background now" if is_beside else ""))
    memory = "the others come back from its memory"
    alone = "" if job.nodes > 1 and not job.is_elastic else "it needs a gang of nodes"
    add(Policy(name=HYBRID, every=usual, rule="hybrid", note=memory), alone)
    timed = "" if question.deadline_us else "there is no --deadline"
    add(Policy(name=DEADLINE, every=usual, rule="deadline"), timed)
    add(Policy(name=EVEN, every=usual, rule="uniform-progress"), timed)
    zones = "" if len(question.traces) > 1 else "there is one zone at most"
    add(Policy(name=ZONES, every=usual, all_zones=True), zones)
    add(Policy(name=ON_DEMAND, every=usual, rule="on-demand"))
    add(Policy(name=NEVER, every=0))
    return found, left


def _rank(question: Question, row: Row) -> tuple[bool, bool, float, float]:
    """Order rows: those that finish, and in time, come first; then what is cheapest."""
    late = (row.meets_deadline or 0.0) < 0.95 if question.deadline_us else False
    length = row.hours.median if row.hours is not None else math.inf
    price = row.dollars.median if row.dollars is not None else length
    return (row.finishes < 1, late, price, length)


def _steps(interval_s: float, step_s: float, steps: int) -> int:
    return min(steps, max(1, round(interval_s / step_s)))
