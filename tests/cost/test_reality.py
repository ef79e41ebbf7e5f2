"""The simulation against the reference trainer that is really reclaimed, by three traces.

A compressed trace: twenty cloud seconds in a second. Each step waits besides, so that what
else the machine does matters little. What a step and a save took, and when each attempt
made its first step, is measured on the trial itself, since a busy machine is not the same
for two of them; what comes of it (how many leases, which steps are lost, how long it takes
in all) is foretold.
"""

import itertools
import json
import sys
from statistics import mean

import pytest

from spotchaos.campaign.campaign import run
from spotchaos.campaign.grace_search import uses_in
from spotchaos.config.settings import Settings
from spotchaos.cost import Job, Policy, Trace, TraceCapacity, read_traces, simulate
from spotchaos.cost.units import us
from spotchaos.pytest_support.shared_baselines import SharedBaselines
from spotchaos.trial.trial import main_rank

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

SCALE = 20  # cloud seconds in a real one
TICK_S = 14  # cloud seconds
GAP_TICKS = 2
STEPS, EVERY, WAIT_S = 60, 10, 0.5
# Ticks that machines stay, one after the other; the last ones stay to the end. Each is
# taken about half way between two saves: a second of noise decides no whole interval.
TRACES = {"even": (14, 14), "short": (14, 6, 14), "mixed": (22, 14, 22)}
NOTICED = (26, 23)


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
    shared = SharedBaselines()

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


def job_of(trial, *, notice_s=0.0):
    """Return the job that a trial was, in cloud seconds, from the first step on."""
    found = [gap for attempt in trial.attempts for gap in gaps(attempt)]
    step_s = mean(s for saves, s in found if not saves)
    uses = uses_in([trial])
    return Job.from_seconds(
        steps=STEPS,
        step_s=SCALE * step_s,
        save_stall_s=SCALE * (mean(s for saves, s in found if saves) - step_s),
        notice_s=SCALE * notice_s,
        need_s=SCALE * mean(uses) if uses else None,
    ), step_s


def lived_through(trial, trace, step_s, *, gap_s=None):
    """Return the trace as training saw it: each machine from its first step on.

    Args:
        trial: what was reclaimed.
        trace: by which it was.
        step_s: real seconds of a step.
        gap_s: real seconds from one machine to the next; None: as they came.
    """
    starts = [main_rank(a).steps[0].t_s - step_s for a in trial.attempts]
    counts = []
    for attempt, (start, end), begun_s, next_s in zip(
        trial.attempts, trace.windows(1), starts, starts[1:], strict=False
    ):
        gone_s = attempt.started_at_s + real_s(end - start)
        wait_s = next_s - gone_s if gap_s is None else gap_s
        counts.append((1, us(SCALE * (gone_s - begun_s))))
        counts.append((0, us(SCALE * wait_s)))
    return Trace("as it came", 1, (*counts, (1, us(1e6)))), starts


def took_s(trial, begun_at_s):
    """Return real seconds from the first step until the last save was whole."""
    last = main_rank(trial.attempts[-1])
    return max(save.ended_at_s for save in last.saves) - begun_at_s


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
    trials = campaign([reclaims(trace) for trace in traces])
    lost, said = 0, 0
    for trace, trial in zip(traces, trials, strict=True):
        assert len(trial.attempts) == len(trace.windows(1))
        job, step_s = job_of(trial)
        came, starts = lived_through(trial, trace, step_s)
        run_ = foretold(job, came)
        whole_s = took_s(trial, starts[0])
        assert whole_s == pytest.approx(real_s(run_.elapsed), rel=0.1), trace.name
        lost += lost_in(trial)
        said += lost_as_foretold(run_)
    assert lost > 10
    assert lost == pytest.approx(said, rel=0.1)


def test_a_trace_that_gives_notice_loses_what_is_foretold(campaign, tmp_path):
    trace = read_traces([trace_file(tmp_path, "noticed", NOTICED)])[0]
    notice_s = 120 / SCALE
    plans = [reclaims(trace, notice_s=notice_s)]
    (trial,) = campaign(plans, notice="aws", time_scale=float(SCALE))
    job, step_s = job_of(trial, notice_s=notice_s)
    # Who has left makes place for the next one at once; the simulation waits.
    came, starts = lived_through(trial, trace, step_s, gap_s=1.0)
    run_ = foretold(job, came, on_notice=True)
    assert len(trial.attempts) == len(run_.leases) == len(NOTICED) + 1
    assert lost_in(trial) == lost_as_foretold(run_) == 0
    made = sum(attempt.trace.completed for attempt in trial.attempts[:-1])
    said = sum(lease.made for lease in run_.leases[:-1])
    assert made == pytest.approx(said, rel=0.1)
    # In all: two machines to their reclaim, the waits, and the one that finishes.
    before_s = real_s(sum(us_ for _, us_ in came.counts[:-1]))
    whole_s = before_s + took_s(trial, starts[-1])
    assert whole_s == pytest.approx(real_s(run_.elapsed), rel=0.1)
