"""The simulation against what is known exactly for exponential interruptions."""

import math
from statistics import mean

import numpy as np
import pytest

from spotchaos.cost import (
    Exponential,
    FailureCapacity,
    Job,
    Policy,
    Weibull,
    best_interval,
    daly_interval_s,
    exact_interval_s,
    expected_s,
    simulate,
    young_interval_s,
)

MTBF_S, SAVE_S, COLD_S, RESTART_S = 3 * 3600.0, 20.0, 60.0, 90.0
JOB = Job.from_seconds(
    steps=20_000, step_s=1.0, save_stall_s=SAVE_S, cold_s=COLD_S, resume_s=RESTART_S
)


def elapsed_s(job, every, runs, *, mtbf_s=MTBF_S, seed=0):
    policy = Policy(name="periodic", every=every)
    failures = Exponential(mtbf_s)
    for number in range(runs):
        source = FailureCapacity(failures, job.nodes, (seed, number))
        yield simulate(job, policy, source).elapsed / 1e6


@pytest.mark.parametrize(
    ("every", "mtbf_s"),
    [(100, MTBF_S), (650, MTBF_S), (3000, MTBF_S), (650, 1800.0), (0, 4 * MTBF_S)],
)
def test_the_mean_of_ten_thousand_runs_is_the_exact_expectation(every, mtbf_s):
    exact = expected_s(
        steps=JOB.steps,
        step_s=1.0,
        every=every,
        save_s=SAVE_S,
        mtbf_s=mtbf_s,
        cold_s=COLD_S,
        restart_s=RESTART_S,
    )
    assert mean(elapsed_s(JOB, every, 10_000, mtbf_s=mtbf_s)) == pytest.approx(
        exact, rel=0.01
    )


def test_time_in_a_queue_is_the_downtime_of_the_exact_expectation():
    job = Job.from_seconds(
        steps=20_000, step_s=1.0, save_stall_s=SAVE_S, cold_s=COLD_S, queue_s=600
    )
    exact = 600 + expected_s(
        steps=20_000,
        step_s=1.0,
        every=650,
        save_s=SAVE_S,
        mtbf_s=MTBF_S,
        cold_s=COLD_S,
        restart_s=COLD_S,
        down_s=600,
    )
    assert mean(elapsed_s(job, 650, 10_000)) == pytest.approx(exact, rel=0.01)


def test_the_full_model_is_that_of_daly():
    # His equation 20: M e^(R/M) (e^((t+d)/M) - 1) Ts/t.
    steps, every = 20_000, 500
    daly = MTBF_S * math.exp(RESTART_S / MTBF_S)
    daly *= math.expm1((every + SAVE_S) / MTBF_S) * steps / every
    found = expected_s(
        steps=steps,
        step_s=1.0,
        every=every,
        save_s=SAVE_S,
        mtbf_s=MTBF_S,
        restart_s=RESTART_S,
    )
    first = MTBF_S * math.expm1((every + SAVE_S) / MTBF_S)
    again = first * math.exp(RESTART_S / MTBF_S)
    assert found == pytest.approx(daly - again + first, rel=1e-12)


def test_the_closed_forms_of_the_interval_come_near_the_minimum_of_the_full_model():
    exact = exact_interval_s(SAVE_S, MTBF_S)

    def cost(interval_s):
        return math.expm1((interval_s + SAVE_S) / MTBF_S) / interval_s

    assert cost(exact) <= min(cost(exact * 0.999), cost(exact * 1.001))
    assert daly_interval_s(SAVE_S, MTBF_S) == pytest.approx(exact, rel=0.001)
    assert young_interval_s(SAVE_S, MTBF_S) == pytest.approx(exact, rel=0.03)


@pytest.mark.parametrize(
    ("save_s", "mtbf_s", "seed"),
    [(20.0, 3 * 3600.0, 0), (20.0, 3 * 3600.0, 1), (60.0, 3600.0, 0), (5.0, 7200.0, 2)],
)
def test_the_interval_that_is_found_is_the_best_within_five_percent(
    save_s, mtbf_s, seed
):
    job = Job.from_seconds(
        steps=20_000, step_s=1.0, save_stall_s=save_s, resume_s=RESTART_S
    )

    def cost(every):
        return mean(elapsed_s(job, every, 1200, mtbf_s=mtbf_s, seed=seed))

    guess = young_interval_s(save_s, mtbf_s) * 3  # a bad one
    found = best_interval(cost, steps=job.steps, guess=guess)
    assert found.every == pytest.approx(exact_interval_s(save_s, mtbf_s), rel=0.05)


@pytest.mark.parametrize("failures", [Exponential(1000.0), Weibull(0.7, 800.0)])
def test_a_gang_lives_as_long_as_the_first_of_its_machines(failures):
    generator = np.random.default_rng(0)
    alone = np.array(failures.draw(generator, 1, 400_000)).reshape(-1, 4)
    gang = np.array(failures.draw(generator, 4, 100_000))
    assert alone.min(axis=1).mean() == pytest.approx(gang.mean(), rel=0.02)
    assert alone.mean() / 1e6 == pytest.approx(failures.mean_s, rel=0.02)
