"""What a simulation costs: one policy on a 45-day trace, and 10,000 scenarios.

    python benchmarks/cost.py [--trace FILE] [--scenarios N]

Prints CPU time. The trace is one of the published form; without one, a trace is drawn
that has as many windows as the published ones of 45 days (ticks of 195 s, 300 windows).
"""

import argparse
import random
import statistics
import time
from pathlib import Path

from spotchaos.cost import (
    Exponential,
    FailureCapacity,
    Job,
    Policy,
    Trace,
    TraceCapacity,
    read_traces,
    simulate,
)


def drawn_trace():
    chance = random.Random(0)
    ticks = []
    while len(ticks) < 20_160:
        ticks += [1] * (1 + int(chance.expovariate(1 / 40)))
        ticks += [0] * (1 + int(chance.expovariate(1 / 27)))
    return Trace.from_ticks("drawn", ticks[:20_160], gap_s=195)


def took_ms(function, repeat=50):
    times = []
    for _ in range(repeat):
        began = time.process_time()
        function()
        times.append(1000 * (time.process_time() - began))
    return statistics.median(times), max(times)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--scenarios", type=int, default=10_000)
    options = parser.parse_args()
    trace = drawn_trace() if options.trace is None else read_traces([options.trace])[0]
    available = int(trace.length_us / 1e6 * trace.availability(1))
    job = Job.from_seconds(
        steps=int(0.85 * available),
        step_s=1,
        save_stall_s=20,
        cold_s=60,
        resume_s=90,
        provision_s=120,
        notice_s=120,
    )
    deadline_us = trace.length_us
    for rule in ("spot", "deadline", "uniform-progress"):
        policy = Policy(name=rule, every=600, rule=rule)

        def once(policy=policy):
            source = TraceCapacity(trace, 1)
            return simulate(job, policy, source, deadline_us=deadline_us)

        run = once()
        median, worst = took_ms(once)
        print(
            f"{trace.name}, {rule}: {median:.2f} ms (worst {worst:.2f}),"
            f" {len(run.leases)} leases, {run.elapsed / 8.64e10:.1f} days"
        )
    short = Job.from_seconds(
        steps=60 * 3600, step_s=1, save_stall_s=20, cold_s=60, resume_s=90
    )
    policy = Policy(name="periodic", every=600)
    began, leases = time.process_time(), 0
    for number in range(options.scenarios):
        source = FailureCapacity(Exponential(3 * 3600), 1, (0, number))
        leases += len(simulate(short, policy, source).leases)
    print(
        f"{options.scenarios} scenarios of 60 h, one reclaim in 3 h:"
        f" {time.process_time() - began:.2f} s, {leases} leases"
    )


if __name__ == "__main__":
    main()
