"""What would this training cost on spot machines? The library of `spotchaos cost`.

    python examples/cost.py [TRACE.json ...]

Times are those of a program that was measured (`timing` in a report of `spotchaos run`);
prices are what your provider asks of you today.
"""

import sys
from pathlib import Path

from spotchaos.cost import Exponential, Job, Prices, Question, read_traces, study
from spotchaos.cost.units import nano, us

job = Job.from_seconds(
    steps=200_000,
    step_s=1.1,  # of all four nodes together
    save_stall_s=25,
    cold_s=80,
    resume_s=110,
    provision_s=180,  # boot and image pull, paid
    notice_s=120,
    need_s=40,  # from the notice until its save is whole
    nodes=4,
)
traces = read_traces([Path(name) for name in sys.argv[1:]])
question = Question(
    job=job,
    every=2000,  # steps from save to save now
    traces=traces,
    failures=None if traces else Exponential(24 * 3600),  # one machine in a day
    deadline_us=us(96 * 3600),
    prices=Prices(spot=nano(1.0), on_demand=nano(3.0)),
)
found = study(question)
for row in found.rows:
    if row.hours is None:
        sys.stdout.write(f"{row.policy.name:<22} never finishes: {row.why_not}\n")
    else:
        sys.stdout.write(
            f"{row.policy.name:<22} every {row.policy.every:>6} steps"
            f" {row.hours.median:8.1f} h {row.dollars.median:8.0f} $"
            f" {100 * row.goodput:4.0f} % useful, {row.interruptions:.1f} cuts\n"
        )
