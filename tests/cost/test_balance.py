"""Time, work and money balance to the microsecond, step and nanodollar, in any scenario."""

from collections import Counter

import pytest
from hypothesis import given, settings, strategies as st

from spotchaos.cost import (
    Billing,
    Endless,
    Exponential,
    FailureCapacity,
    Job,
    Policy,
    Prices,
    Trace,
    TraceCapacity,
    Weibull,
    bill,
    simulate,
)
from spotchaos.cost.billing import rentals
from spotchaos.cost.capacity import Zones
from spotchaos.cost.lease import AttemptController, Pace, use
from spotchaos.cost.runs import CAUSES

TIMES = st.integers(0, 5_000_000)
POSITIVE = st.integers(1, 3_000_000)


@st.composite
def jobs(draw):
    stall = draw(TIMES)
    return Job(
        steps=draw(st.integers(1, 400)),
        step_us=draw(POSITIVE),
        save_stall_us=stall,
        save_end_us=stall + draw(TIMES),
        cold_us=draw(TIMES),
        resume_us=draw(TIMES),
        provision_us=draw(TIMES),
        queue_us=draw(TIMES),
        notice_us=draw(TIMES),
        need_us=draw(TIMES),
        nodes=draw(st.integers(1, 5)),
        is_elastic=draw(st.booleans()),
    )


@st.composite
def traces(draw):
    counts = draw(st.lists(st.integers(0, 6), min_size=1, max_size=40))
    gap_s = draw(st.floats(0.5, 60))
    return Trace.from_ticks("z", counts, gap_s=gap_s)


@st.composite
def scenarios(draw):
    """Draw a job, a policy, where its machines come from, and a deadline."""
    job = draw(jobs())
    rule = draw(
        st.sampled_from(["spot", "on-demand", "deadline", "uniform-progress", "hybrid"])
    )
    if rule == "hybrid" and (job.nodes < 2 or job.is_elastic):
        rule = "spot"
    nodes = job.nodes - 1 if rule == "hybrid" else job.nodes
    policy = Policy(
        name="drawn",
        every=draw(st.integers(0, 500)),
        on_notice=draw(st.booleans()),
        stall_us=draw(st.none() | TIMES),
        rule=rule,
    )
    kind = draw(st.sampled_from(["trace", "zones", "failures"]))
    if kind == "failures" and not job.is_elastic:
        failures = draw(
            st.sampled_from([Exponential(20.0), Weibull(0.7, 60.0), Exponential(1e6)])
        )
        source = FailureCapacity(failures, nodes, draw(st.integers(0, 99)))
    else:
        begins = draw(st.integers(0, 2_000_000_000))
        zones = [
            TraceCapacity(
                draw(traces()), nodes, begins=begins, is_elastic=job.is_elastic, delay=d
            )
            for d in draw(st.lists(TIMES, min_size=1, max_size=3))
        ]
        source = zones[0] if kind == "trace" else Zones(zones)
    deadline = draw(st.integers(1, 3 * job.work_us + 100_000_000))
    return job, policy, source, deadline


@settings(max_examples=400, deadline=None)
@given(scenarios())
def test_time_and_work_balance(scenario):
    job, policy, source, deadline = scenario
    run = simulate(job, policy, source, deadline_us=deadline)
    assert sum(run.time_of(cause) for cause in CAUSES) == run.elapsed
    assert all(run.time_of(cause) >= 0 for cause in CAUSES)
    at = 0
    for lease in run.leases:
        assert lease.start >= at
        parts = [lease.useful, lease.lost, lease.saving, lease.restarting, lease.idle]
        assert min(parts) >= 0
        assert sum(parts) == lease.end - lease.start
        assert 0 <= lease.kept <= lease.made
        at = lease.end
    assert at <= run.elapsed
    assert sum(lease.kept for lease in run.leases) == run.steps <= job.steps
    assert run.finished == (run.steps == job.steps)
    assert bool(run.why_not) == (not run.finished)
    if not job.is_elastic:
        assert run.time_of("useful") == run.steps * job.step_us
    assert 0 <= run.goodput <= 1


@settings(max_examples=200, deadline=None)
@given(
    scenarios(),
    st.integers(1, 4_000_000_000),
    st.integers(0, 90_000_000),
    st.integers(0, 100_000_000),
)
def test_money_balances(scenario, granularity, minimum, free):
    job, policy, source, deadline = scenario
    run = simulate(job, policy, source, deadline_us=deadline)
    held = sum((r.end - r.start) * r.nodes for r in rentals(run))
    assert held == run.paid
    billing = Billing(granularity_us=granularity, minimum_us=minimum, free_us=free)
    prices = Prices(spot=918_000_000, on_demand=3_060_000_000, storage=23_000_000)
    found = bill(run, prices, billing, stored_bytes=1e9)
    assert found.total == found.spot + found.on_demand + found.storage
    free_time = sum(
        (r.end - r.start) * r.nodes
        for r in rentals(run)
        if r.is_taken and r.market == "spot" and r.end - r.start <= free
    )
    assert found.billed_us >= held - free_time
    by_market = Counter()
    for rental in rentals(run):
        by_market[rental.market] += 1
    assert bool(found.spot) <= bool(by_market["spot"])
    assert bool(found.on_demand) <= bool(by_market["on-demand"])


@settings(max_examples=300, deadline=None)
@given(
    steps=st.integers(1, 60),
    step=st.integers(1, 50),
    every=st.integers(0, 70),
    stall=st.integers(0, 60),
    more=st.integers(0, 200),
    kept=st.integers(0, 59),
    room=st.integers(1, 6000),
)
def test_a_lease_in_closed_form_is_the_one_that_is_stepped_through(
    steps, step, every, stall, more, kept, room
):
    kept = min(kept, steps - 1)
    pace = Pace(steps, step, every, stall, stall + more)
    done = use(pace, kept, start=0, room=room)
    trained, whole, finished = stepped(pace, kept, room)
    assert done.is_finished == finished
    assert done.made == trained // step
    assert done.useful + done.lost == trained
    assert done.kept == whole
    if finished:
        assert done.length == AttemptController(pace, kept).length


def stepped(pace, kept, room):
    """Go through a lease step by step: what the closed form stands for."""
    at, number, free_at = 0, kept, 0
    trained, newest, finish = 0, 0, None
    while number < pace.steps:
        trained += max(0, min(at + pace.step, room) - at)
        at, number = at + pace.step, number + 1
        is_due = bool(pace.every) and number % pace.every == 0
        if is_due or number == pace.steps:
            at = max(at, free_at)  # the save before it is to be whole
            free_at = finish = at + pace.end
            newest = number - kept if free_at <= room else newest
            at += pace.stall
    return trained, newest, finish <= room


def test_the_same_seed_is_the_same_run():
    job = Job.from_seconds(steps=5000, step_s=1, save_stall_s=5, cold_s=30)
    policy = Policy(name="p", every=100)

    def one(seed):
        return simulate(job, policy, FailureCapacity(Exponential(900), 1, seed))

    assert one(3) == one(3) != one(4)


def test_a_run_that_nothing_interrupts_takes_its_work_its_saves_and_one_start():
    job = Job.from_seconds(
        steps=1000, step_s=2, save_stall_s=5, save_end_s=8, cold_s=30, provision_s=60
    )
    run = simulate(job, Policy(name="p", every=250), Endless(1))
    assert run.elapsed == pytest.approx((2000 + 3 * 5 + 8 + 30 + 60) * 1e6)
    assert run.interruptions == 0
