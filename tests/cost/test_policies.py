"""What each policy does, in small scenarios whose figures can be reckoned by hand."""

import random

import pytest

from spotchaos.cost import (
    Billing,
    Exponential,
    Job,
    Policy,
    Prices,
    Question,
    Trace,
    TraceCapacity,
    bill,
    simulate,
    study,
)
from spotchaos.cost.study import (
    BACKGROUND,
    BEST,
    BOTH,
    DEADLINE,
    EVEN,
    HYBRID,
    NEVER,
    NOTICE,
    NOW,
    ON_DEMAND,
    ZONES,
)
from spotchaos.cost.units import nano, us

HOUR = 3_600_000_000
PRICES = Prices(spot=nano(1), on_demand=nano(3))


def hourly(*counts, name="zone"):
    return Trace.from_ticks(name, counts, gap_s=3600)


def an_hourly_job(hours, **more):
    """One step a minute, so that all figures are round."""
    return Job.from_seconds(steps=60 * hours, step_s=60, **more)


def on_spot(job, trace, *, every=30, **policy):
    return simulate(
        job, Policy(name="p", every=every, **policy), TraceCapacity(trace, job.nodes)
    )


def test_what_was_not_saved_is_made_again():
    # Two hours less the start: 110 steps, of which 90 are in a checkpoint.
    job = an_hourly_job(3, cold_s=600, resume_s=300)
    run = on_spot(job, hourly(1, 1, 0, 1, 1, 1))
    first, second = run.leases
    assert (first.made, first.kept, first.lost) == (110, 90, 20 * 60_000_000)
    assert second.restarting == us(300)
    assert (second.made, second.kept) == (90, 90)
    assert run.elapsed == 3 * HOUR + us(300) + 90 * us(60)
    assert run.time_of("waiting") == HOUR


def test_a_notice_keeps_every_step_that_there_is_time_for():
    job = an_hourly_job(3, save_stall_s=60, notice_s=600, need_s=180)
    run = on_spot(job, hourly(1, 1, 0, 1, 1), every=0, on_notice=True)
    first = run.leases[0]
    # Told at 110 min, it goes on for 2, saves for 1, and waits for the reclaim for 7.
    assert (first.kept, first.lost, first.idle) == (112, 0, us(420))
    late = an_hourly_job(3, save_stall_s=60, notice_s=120, need_s=180)
    run = on_spot(late, hourly(1, 1, 0, 1, 1, 1, 1), every=0, on_notice=True)
    assert run.leases[0].kept == 0


def test_a_save_that_is_not_whole_is_none():
    job = an_hourly_job(3, save_stall_s=0, save_end_s=31 * 60)
    assert on_spot(job, hourly(1, 0, 1, 1, 1, 1)).leases[0].kept == 0
    quick = an_hourly_job(3, save_stall_s=0, save_end_s=30 * 60)
    assert on_spot(quick, hourly(1, 0, 1, 1, 1, 1)).leases[0].kept == 30


def test_a_machine_on_demand_remembers_the_steps_of_the_others():
    job = an_hourly_job(3, nodes=3, cold_s=90)
    source = TraceCapacity(hourly(2, 2, 0, 2, 2, 2), 2)
    run = simulate(job, Policy(name="p", every=0, rule="hybrid"), source)
    assert run.leases[0].kept == 118  # all but the one that was being made
    assert run.leases[0].nodes == 2
    found = bill(run, PRICES, Billing())
    assert found.on_demand == pytest.approx(nano(3) * run.elapsed / HOUR, rel=1e-6)


def test_elastic_goes_on_with_fewer_and_takes_more_without_a_loss():
    job = Job.from_seconds(steps=60, step_s=60, nodes=4, is_elastic=True)
    source = TraceCapacity(hourly(2, 4, 3, 0), 4, is_elastic=True)
    run = simulate(job, Policy(name="p", every=10), source)
    first, second = run.leases[:2]
    assert (first.nodes, first.made, first.kept, first.ended) == (2, 30, 30, "left")
    assert (second.nodes, second.kept, second.ended) == (4, 30, "finished")


def test_machines_that_come_one_by_one_are_billed_one_by_one():
    # A lost machine is billed until it is lost, those that live on in one piece.
    job = Job.from_seconds(steps=600, step_s=60, nodes=4, is_elastic=True)
    source = TraceCapacity(
        hourly(4, 2, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4), 4, is_elastic=True
    )
    run = simulate(job, Policy(name="p", every=10), source)
    daily = Billing(granularity_us=24 * HOUR)
    assert bill(run, PRICES, daily).billed_us == 6 * 24 * HOUR


@pytest.mark.parametrize("queue_s", [0, 300])
def test_an_elastic_gang_is_interrupted_by_the_loss_of_any_machine(queue_s):
    job = an_hourly_job(20, save_stall_s=5, queue_s=queue_s, nodes=8, is_elastic=True)
    question = Question(job=job, every=5, failures=Exponential(4 * 3600), runs=20)
    row = study(question).row(NOW)
    # Eight machines, each of which is lost every four hours.
    assert row.interruptions == pytest.approx(2 * row.hours.mean, rel=0.1)
    assert question.gang_mtbf_s == pytest.approx(1800, rel=0.05)


def test_another_zone_is_taken_when_one_is_lost():
    job = an_hourly_job(4)
    question = Question(
        job=job,
        every=30,
        traces=(
            hourly(*[1] * 2 + [0] * 40, name="a"),
            hourly(*[0] * 1 + [1] * 40, name="b"),
        ),
        runs=20,
        search_runs=10,
    )
    found = study(question)
    zones, alone = found.row(ZONES), found.row(NOW)
    assert zones.hours.median < alone.hours.p95


@pytest.mark.parametrize("rule", ["deadline", "uniform-progress"])
def test_a_deadline_that_can_be_met_is_met_on_any_trace(rule):
    chance = random.Random(7)
    job = an_hourly_job(8, save_stall_s=30, cold_s=120, resume_s=240, provision_s=60)
    # Work, saves and two starts that are lost before their first save.
    needs = 8 * 3600 + 16 * 30 + 2 * (300 + 30 * 60 + 30) + 300
    policy = Policy(name="p", every=30, rule=rule)
    for _ in range(300):
        counts = [chance.random() < chance.random() for _ in range(200)]
        trace = Trace.from_ticks("z", map(int, counts), gap_s=600)
        deadline = us(needs * (1 + chance.random()))
        run = simulate(job, policy, TraceCapacity(trace, 1), deadline_us=deadline)
        assert run.finished
        assert run.elapsed <= deadline


def test_an_even_pace_uses_on_demand_earlier_and_returns_to_spot():
    job = an_hourly_job(10)
    trace = hourly(0, 0, 0, *[1] * 12)
    source = TraceCapacity(trace, 1)
    policy = Policy(name="p", every=5, rule="uniform-progress")
    run = simulate(job, policy, source, deadline_us=20 * HOUR)
    markets = [lease.market for lease in run.leases]
    assert markets == ["on-demand", "spot"]
    assert run.leases[0].ended == "left"
    assert run.leases[0].lost == 0


def test_a_policy_with_a_deadline_needs_one():
    job = an_hourly_job(1)
    with pytest.raises(ValueError, match="needs a deadline"):
        simulate(
            job,
            Policy(name="p", every=5, rule="deadline"),
            TraceCapacity(hourly(1), 1),
        )


@pytest.mark.parametrize(
    ("billing", "held_s", "is_taken", "billed_s"),
    [
        (Billing(minimum_us=us(60)), 10, False, 60),
        (Billing(granularity_us=us(60)), 61, False, 120),
        (Billing(granularity_us=HOUR), 3601, False, 7200),
        (Billing(granularity_us=HOUR, free_us=HOUR), 3600, True, 0),
        (Billing(granularity_us=HOUR, free_us=HOUR), 3600, False, 3600),
        (Billing(granularity_us=HOUR, free_us=HOUR), 3601, True, 7200),
    ],
)
def test_leases_are_billed_as_providers_do(billing, held_s, is_taken, billed_s):
    assert billing.billed(us(held_s), is_taken=is_taken) == us(billed_s)


def test_every_policy_of_a_question_is_tried_or_left_out_with_a_reason():
    job = an_hourly_job(10, save_stall_s=60, cold_s=60, notice_s=120, nodes=2)
    question = Question(
        job=job,
        every=30,
        failures=Exponential(8 * 3600),
        deadline_us=20 * HOUR,
        prices=PRICES,
        runs=60,
        search_runs=40,
    )
    found = study(question)
    tried = {row.policy.name for row in found.rows}
    left = dict(found.left_out)
    every = {NOW, BEST, NOTICE, BOTH, BACKGROUND, HYBRID, DEADLINE, EVEN}
    every |= {ZONES, ON_DEMAND, NEVER}
    assert tried | left.keys() == every
    assert left == {ZONES: "there is one zone at most"}
    dollars = [row.dollars.median for row in found.rows if row.meets_deadline > 0.95]
    assert dollars == sorted(dollars)
    alone = found.row(ON_DEMAND)
    assert alone.dollars.median == pytest.approx(6 * alone.hours.median, rel=1e-3)
    assert study(question).rows[0].dollars == found.rows[0].dollars


def test_a_trace_that_ends_before_the_work_begins_again():
    job = an_hourly_job(5)
    run = on_spot(job, hourly(1, 0, 1), every=10)
    assert run.finished
    # The last tick and the first are one window from then on.
    assert [lease.end - lease.start for lease in run.leases[:2]] == [HOUR, 2 * HOUR]
    assert run.repeats >= 1


def test_without_capacity_it_never_finishes_and_the_reason_is_said():
    run = on_spot(an_hourly_job(1, nodes=3), hourly(2, 0, 1, 2))
    assert not run.finished
    assert run.why_not == "there is never enough capacity"


def test_a_save_longer_than_any_lease_never_finishes_and_the_reason_is_said():
    job = an_hourly_job(5, save_stall_s=3500)
    run = on_spot(job, hourly(1, 0, 1, 0, 0), every=10)
    assert not run.finished
    assert "its first save is done" in run.why_not
    assert "none stayed longer than 60 min" in run.why_not
