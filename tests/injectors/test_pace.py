"""How fast the attempts are that will be struck, and when their deadline is."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from spotchaos.clock import ManualClock
from spotchaos.config.settings import Settings
from spotchaos.injectors.attempt_environment import AttemptEnvironment, Pace
from spotchaos.model import Attempt, AttemptTrace, Ended, RankTrace, SaveMark, StepMark
from spotchaos.providers.stories import story
from spotchaos.trial.context import TrialContext


def a_run(*, step_s=0.1, path="cold", **changes):
    steps = tuple(StepMark(n, {}, t_s=n * step_s) for n in range(1, 11))
    saves = (SaveMark(1, 5, ("last.pt",), None, 5 * step_s, 5 * step_s + 0.4),)
    trace = AttemptTrace({0: RankTrace(0, {}, None, steps, saves, (), {})}, 1, 1, True)
    run = Attempt(1, (), Ended.FINISHED, 0, trace, wall_s=10 * step_s + 1, path=path)
    return replace(run, **changes)


def test_what_a_busy_machine_took_is_no_part_of_the_pace():
    own = Pace.of(a_run())
    assert (own.horizon, own.step_s, own.save_s) == (10, pytest.approx(0.1), 0.4)
    assert own.end_s == pytest.approx(1.0)
    halved = Pace.of(a_run(delayed_s=1.0))
    assert halved.step_s == pytest.approx(own.step_s / 2)
    assert halved.save_s == pytest.approx(own.save_s / 2)
    assert halved.end_s == pytest.approx(own.end_s / 2)


def test_a_share_is_never_nothing():
    assert a_run(delayed_s=9e9).undelayed_share == 0.01
    assert a_run(wall_s=0.0, delayed_s=1.0).undelayed_share == 1.0


@pytest.mark.parametrize(
    ("runs", "path", "step_s"),
    [
        pytest.param((), "cold", None, id="nothing-is-known"),
        pytest.param((("cold", 0.3), ("warm", 0.1)), "warm", 0.1, id="forked"),
        pytest.param((("cold", 0.3), ("warm", 0.1)), "cold", 0.3, id="fresh"),
        pytest.param((("cold", 0.3), ("cold", 0.2)), "cold", 0.2, id="the-latest"),
        pytest.param((("cold", 0.3),), "warm", 0.3, id="for-want-of-another"),
    ],
)
def test_the_pace_is_that_of_runs_started_alike(runs, path, step_s):
    timed = tuple(a_run(path=way, step_s=own_s) for way, own_s in runs)
    settings = Settings(command=("true",), folder=Path())
    pace = TrialContext(settings, None, None, timed=timed).pace_of(path)
    assert (None if pace is None else pace.step_s) == (
        None if step_s is None else pytest.approx(step_s)
    )


class Preempted(ManualClock):
    """A clock that goes on by 0.35 s whenever it is asked: who asks waits to be run."""

    def now(self):
        self.advance(0.35)
        return super().now()

    def monotonic(self):
        self.advance(0.35)
        return super().monotonic()


def test_a_deadline_is_not_postponed_by_who_reads_the_clock():
    clock = Preempted()
    with AttemptEnvironment(story("aws"), isolated=False, clock=clock) as around:
        moment = ManualClock.now(clock) + timedelta(seconds=10)
        deadline_s = ManualClock.monotonic(clock) + 10
        assert around.monotonic(moment) <= deadline_s
