"""The simulation against the reference trainer that is really reclaimed, by three traces.

A compressed trace: sixty cloud seconds in a second. Each step waits besides, so that what
else the machine does matters little; how long steps, saves and starts take is measured on
trials of their own, before and after, and the trials in between are foretold.
"""

import itertools
import json
import sys
from statistics import mean

import pytest

from spotchaos.campaign import run
from spotchaos.cost import Job, Policy, Trace, TraceCapacity, read_traces, simulate
from spotchaos.cost.units import us
from spotchaos.grace_search import uses_in
from spotchaos.harness.groundworks import Groundworks
from spotchaos.measuring import start_s
from spotchaos.settings import Settings
from spotchaos.trial import main_rank

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

SCALE = 60  # cloud seconds in a real one
TICK_S = 42  # cloud seconds
GAP_TICKS = 2
STEPS, EVERY, WAIT_S = 80, 8, 0.5
# Ticks that machines stay, one after the other; the last ones stay to the end.
TRACES = {
    "even": (14, 14, 14),
    "short": (9, 11, 8, 10, 9),
    "mixed": (20, 7, 16, 9),
}


def trace_file(folder, name, windows):
    """Write a trace in the published form."""
    data = [[1] * window + [0] * GAP_TICKS for window in windows]
    content = {
        "metadata": {"gap_seconds": TICK_S},
        "data": [*itertools.chain(*data), *[1] * 1000],
    }
    path = folder / f"{name}.json"
    path.write_text(json.dumps(content))
    return path


def real_s(cloud_us):
    return cloud_us / 1e6 / SCALE


def reclaims(trace, *, notice_s=0.0):
    """Return a plan that takes machines as a trace does, `notice_s` after it says so."""
    windows = trace.windows(1)[:-1]
    return ",".join(f"{real_s(end - start) - notice_s:.3f}s" for start, end in windows)


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    """Carry plans out on the reference trainer, on one groundwork."""
    shared = Groundworks()

    def trials(plans, **given):
        settings = Settings(
            command=(
                *(sys.executable, "-m", "spotchaos.training", "--out", "{out}"),
                *("--ranks", "1", "--steps", str(STEPS), "--save-every", str(EVERY)),
                *("--watch", "aws"),
            ),
            folder=tmp_path_factory.mktemp("folder"),
            kill_at=tuple(plans),
            slow_rank=(0, WAIT_S),
            requeue_delay_s=GAP_TICKS * TICK_S / SCALE,
            promise="resumes",
            fingerprint="saves",
            no_skip=True,
            jobs=1,
            **given,
        )
        outcome = run(settings, lambda event: None, layer=shared.layer)
        assert outcome.trouble is None, outcome.trouble
        return [trial for trial, _ in outcome.trials]

    yield trials
    shared.close()


def gaps(attempt):
    rank = main_rank(attempt)
    saving = {save.step for save in rank.saves}
    for before, after in itertools.pairwise(rank.steps):
        yield before.step in saving, after.t_s - before.t_s


def job_of(trials, *, notice_s=0.0):
    """Return the job that these trials were, in cloud seconds."""
    attempts = [attempt for trial in trials for attempt in trial.attempts]
    found = [gap for attempt in attempts for gap in gaps(attempt)]
    step_s = mean(s for saves, s in found if not saves)
    fresh = [start_s(trial.attempts[0], step_s) for trial in trials]
    resumed = [start_s(trial.attempts[-1], step_s) for trial in trials]
    uses = uses_in(trials)
    return Job.from_seconds(
        steps=STEPS,
        step_s=SCALE * step_s,
        save_stall_s=SCALE * (mean(s for saves, s in found if saves) - step_s),
        cold_s=SCALE * mean(fresh),
        resume_s=SCALE * mean(resumed),
        notice_s=SCALE * notice_s,
        need_s=SCALE * mean(uses) if uses else None,
    )


def lived_through(trial):
    """Return the trace as it came: a busy machine is taken a little late."""
    counts = []
    for attempt, following in itertools.pairwise(trial.attempts):
        gone_s = attempt.reclaimed_at_s
        counts.append((1, us(SCALE * (gone_s - attempt.started_at_s))))
        counts.append((0, us(SCALE * (following.started_at_s - gone_s))))
    return Trace("as it came", 1, (*counts, (1, us(1e6))))


def took_s(trial):
    """Return real seconds from the first start until the last save was whole."""
    last = main_rank(trial.attempts[-1])
    end_s = max(save.ended_at_s for save in last.saves)
    return end_s - trial.attempts[0].started_at_s


def lost_in(trial):
    return sum(attempt.trace.completed for attempt in trial.attempts) - STEPS


def foretold(job, trace, *, on_notice=False):
    policy = Policy(name="as it is", every=EVERY, on_notice=on_notice)
    return simulate(job, policy, TraceCapacity(trace, 1))


def lost_as_foretold(run_):
    return sum(lease.made - lease.kept for lease in run_.leases)


def test_a_trace_that_reclaims_the_reference_costs_what_is_foretold(campaign, tmp_path):
    files = [trace_file(tmp_path, name, windows) for name, windows in TRACES.items()]
    traces = read_traces(files)
    before, *trials, after = campaign(["12s", *map(reclaims, traces), "12s"])
    job = job_of([before, after])
    lost, said = 0, 0
    for trace, trial in zip(traces, trials, strict=True):
        run_ = foretold(job, lived_through(trial))
        assert len(trial.attempts) == len(run_.leases), trace.name
        for planned, lease in zip(trace.windows(1), run_.leases[:-1], strict=False):
            late_s = real_s(lease.end - lease.start - (planned[1] - planned[0]))
            assert 0 <= late_s < 3, trace.name
        assert took_s(trial) == pytest.approx(real_s(run_.elapsed), rel=0.1), trace.name
        lost += lost_in(trial)
        said += lost_as_foretold(run_)
    assert lost == pytest.approx(said, rel=0.1)


def test_a_trace_that_gives_notice_loses_what_is_foretold(campaign, tmp_path):
    trace = read_traces([trace_file(tmp_path, "even", TRACES["even"])])[0]
    notice_s = 120 / SCALE
    plans = [reclaims(trace, notice_s=notice_s), "7s"]
    trial, after = campaign(plans, notice="aws", time_scale=float(SCALE))
    run_ = foretold(job_of([after], notice_s=notice_s), trace, on_notice=True)
    assert len(trial.attempts) == len(run_.leases)
    # A machine stays until it is taken, whoever has left it.
    stays_s = [real_s(end - start) for start, end in trace.windows(1)[:-1]]
    stays_s += [GAP_TICKS * TICK_S / SCALE] * len(stays_s)
    last = trial.attempts[-1]
    last_s = max(save.ended_at_s for save in main_rank(last).saves) - last.started_at_s
    assert sum(stays_s) + last_s == pytest.approx(real_s(run_.elapsed), rel=0.1)
    assert lost_in(trial) == lost_as_foretold(run_) == 0
