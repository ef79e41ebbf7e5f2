"""How long a training waits for who asks now and then, and what is remembered of it."""

from dataclasses import replace

import pytest

from spotchaos.clock import ManualClock
from spotchaos.injectors.attempt_environment import AttemptEnvironment, Pace
from spotchaos.injectors.polling import Heard, Polls, patience_s
from spotchaos.model import Attempt, AttemptTrace, Ended, RankTrace, StepMark
from spotchaos.providers.exchange import Request
from spotchaos.providers.stories import story

PATH = "/latest/meta-data/spot/instance-action"
QUICK = Pace(horizon=100, step_s=0.01, save_s=0.0)


def ask(around, path=PATH):
    around.service.answer(Request.of("GET", path, at=around.service.clock.now()))


@pytest.mark.parametrize(
    ("asked_at_s", "waits_s", "poll_s"),
    [
        pytest.param((), 30.0, 0.0, id="nothing"),
        pytest.param((0.0,), 75.0, 0.0, id="once"),
        pytest.param((9.0, 9.5, 9.9), 0.0, 0.5, id="often"),
        pytest.param((0.0, 0.1), 12.0, 10.0, id="again-at-once"),
        pytest.param((3.0, 8.0), 6.0, 5.0, id="every-five-seconds"),
        pytest.param((0.0, 70.0), 75.0, 70.0, id="hardly-ever"),
    ],
)
def test_the_training_waits_for_who_may_ask_too_late(asked_at_s, waits_s, poll_s):
    clock = ManualClock()
    pace = Pace(horizon=100, step_s=0.01, save_s=0.0)
    begun_s = clock.monotonic()
    with AttemptEnvironment(story("aws"), isolated=False, clock=clock) as around:
        for at_s in asked_at_s:
            clock.sleep(begun_s + at_s - clock.monotonic())
            # Several items at a time are one poll.
            for item in ("spot/instance-action", "events/recommendations/rebalance"):
                path = f"/latest/meta-data/{item}"
                around.service.answer(Request.of("GET", path, at=clock.now()))
        clock.sleep(max(0.0, begun_s + 10.0 - clock.monotonic()))
        played = around.announce(pace, done=40, is_patient=True)
        window_s = max(1.0, min(2.5 * poll_s, 120.0))
        waits_s = min(waits_s, 120.0 - window_s)
        assert around.patience_s == pytest.approx(waits_s, rel=0.02)
        lasts_s = played.deadline_at_s - clock.monotonic()
        assert lasts_s == pytest.approx(waits_s + window_s, rel=0.02)


def test_a_window_that_is_short_by_itself_is_not_spent_waiting():
    pace = Pace(horizon=100, step_s=0.1, save_s=0.0)
    with AttemptEnvironment(story("aws", grace_s=2), isolated=False) as around:
        played = around.announce(pace, done=40, is_patient=True)
        assert played.time_scale == 1
        assert around.patience_s == 0


def attempt_environment(clock, polls):
    return AttemptEnvironment(story("aws"), isolated=False, clock=clock, polls=polls)


def an_attempt(*steps_at_s, notice=None):
    steps = tuple(StepMark(n, {}, t_s=t) for n, t in enumerate(steps_at_s, 1))
    trace = AttemptTrace({0: RankTrace(0, {}, None, steps, (), (), {})}, 1, 1, True)
    return Attempt(1, (), Ended.FINISHED, 0, trace, 1.0, notice=notice)


def test_the_pauses_of_a_run_that_was_left_alone_are_remembered():
    clock, polls = ManualClock(), Polls()
    begun_s = clock.monotonic()
    with attempt_environment(clock, polls) as around:
        for _ in range(3):
            clock.sleep(20.0)
            ask(around)
        around.learn(an_attempt(begun_s + 0.1))
    assert polls.usual_s == pytest.approx(20.0)
    with attempt_environment(clock, polls) as around:  # killed before it first asks
        around.announce(QUICK, done=40, is_patient=True)
        assert around.patience_s == pytest.approx(24.0)


def test_a_first_request_late_in_the_run_is_a_pause_too():
    polls = Polls()
    polls.note([3.0, 7.5], from_s=5.0)
    assert polls.usual_s == 2.5
    Polls().note([], from_s=5.0)
    polls.note([3.0], from_s=None)
    assert polls.usual_s == 2.5


def test_who_never_asks_is_waited_for_once_in_a_campaign():
    clock, polls = ManualClock(), Polls()
    waited_s = []
    for _ in range(2):
        with attempt_environment(clock, polls) as around:
            played = around.announce(QUICK, done=40, is_patient=True)
            waited_s.append(around.patience_s)
            around.learn(an_attempt(notice=played))
    assert waited_s == [30.0, 6.0]


def test_who_asks_within_the_long_wait_is_waited_for_again():
    clock, polls = ManualClock(), Polls()
    with attempt_environment(clock, polls) as around:
        played = around.announce(QUICK, done=40, is_patient=True)
        around.learn(an_attempt(notice=replace(played, asked=1)))
    assert patience_s(Heard(), polls) == 30.0


@pytest.mark.parametrize(
    ("path", "waits_s"),
    [
        pytest.param(PATH, 75.0, id="the-notice"),
        pytest.param("/latest/meta-data/spot/", 75.0, id="its-folder"),
        pytest.param("/latest/meta-data/placement/region", 30.0, id="the-region"),
        pytest.param("/latest/meta-data/iam/security-credentials/", 30.0, id="a-role"),
    ],
)
def test_only_requests_about_the_end_tell_of_a_poller(path, waits_s):
    with attempt_environment(ManualClock(), Polls()) as around:
        ask(around, path)
        around.announce(QUICK, done=40, is_patient=True)
        assert around.patience_s == waits_s


@pytest.mark.parametrize(("tries", "waits_s"), [(1, 12.0), (2, 24.0)])
def test_who_is_refused_may_ask_a_second_time(tries, waits_s):
    heard = Heard(pause_s=10.0, has_asked=True)
    assert patience_s(heard, Polls(), tries=tries) == waits_s


def test_a_notice_to_a_program_that_cannot_be_held_is_over_too_soon_to_judge():
    with attempt_environment(ManualClock(), Polls()) as around:
        assert around.announce(QUICK, done=40).is_hasty
    slow = Pace(horizon=100, step_s=1.0, save_s=0.0)
    with attempt_environment(ManualClock(), Polls()) as around:
        assert not around.announce(slow, done=20).is_hasty
    with attempt_environment(ManualClock(), Polls()) as around:
        assert not around.announce(QUICK, done=40, is_patient=True).is_hasty
