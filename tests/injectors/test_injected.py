"""Signals, notices, lost machines and disks, each against programs that take them well or badly."""

import shutil
from itertools import pairwise

import pytest

from spotchaos.injectors.polling import Polls
from spotchaos.model import Ended, Verdict

pytestmark = pytest.mark.timeout(450)
# Each costs a few seconds: one of each kind is run always, the others are marked.
SLOW = pytest.mark.slow


def slow(*values):
    return [pytest.param(value, marks=SLOW) for value in values]


def only(outcome):
    """Return the one trial of a campaign, with its judgement."""
    assert outcome.trouble is None, outcome.trouble
    ((trial, judgement),) = outcome.trials
    return trial, judgement


def names(judgement):
    return [finding.name for finding in judgement.findings]


def held(outcome):
    trial, judgement = only(outcome)
    assert names(judgement) == []
    assert outcome.verdict is Verdict.HELD
    return trial


# ------------------------------------------------------------------- machines


def test_what_is_not_durable_goes_with_the_machine(interrupted):
    trial = held(interrupted("", kill_at=("step-end:13",), lose="machine", move=True))
    assert trial.attempts[1].trace.completed == 20
    outcome = interrupted(
        "", kill_at=("step-end:13",), lose="machine", durable="elsewhere"
    )
    _, judgement = only(outcome)
    assert names(judgement) == ["silent-restart"]


# ------------------------------------------------------------------- signals


@pytest.mark.parametrize("name", ["TERM", *slow("INT", "HUP", "USR1", "USR2")])
def test_a_signal_that_is_heeded_is_held(interrupted, name):
    outcome = interrupted(f"heeds-{name}", kill_at=("step-end:12",), signal=name)
    trial = held(outcome)
    assert trial.attempts[0].exit_code == 143
    assert trial.attempts[0].signalled_step == 12


def test_a_signal_that_is_not_heeded_is_named(interrupted):
    outcome = interrupted(
        "deaf", kill_at=("step-end:11",), signal="TERM", grace_steps=2
    )
    _, judgement = only(outcome)
    assert names(judgement) == ["signal-ignored"]


def test_a_machine_that_stood_still_goes_on(interrupted):
    trial = held(interrupted("", kill_at=("step-end:12",), signal="STOP"))
    assert trial.attempts[0].ended is Ended.FINISHED
    marks = [m.t_s for m in trial.attempts[0].trace.ranks[0].steps]
    pauses = [b - a for a, b in pairwise(marks)]
    assert max(pauses) == pauses[11] >= 0.9


# ------------------------------------------------------------------- notices


def test_a_notice_that_is_heeded_is_held(interrupted):
    outcome = interrupted(
        "polls", kill_at=("step-end:12",), notice="aws", time_scale=10
    )
    trial = held(outcome)
    first = trial.attempts[0]
    assert first.ended is Ended.EXITED
    assert first.exit_code == 143
    assert first.notice.asked_after
    assert first.trace.completed in (12, 14)


def test_who_never_asks_is_told_so(interrupted):
    outcome = interrupted("rare", kill_at=("step-end:13",), notice="aws", grace_steps=4)
    trial, judgement = only(outcome)
    assert names(judgement) == ["notice-ignored"]
    assert "never asked" in judgement.findings[0].message
    assert trial.attempts[0].ended is Ended.RECLAIMED


@pytest.mark.parametrize("habit", ["polls tutorial", "polls token", *slow("polls")])
def test_a_poller_without_tokens_is_convicted_where_they_are_required(
    interrupted, habit
):
    given = {"kill_at": ("step-end:13",), "notice": "aws-token-required"}
    trial, judgement = only(interrupted(f"rare {habit}", **given, grace_steps=5))
    if "token" in habit:
        assert names(judgement) == []
        assert trial.attempts[0].exit_code == 143
        return
    assert names(judgement) == ["notice-ignored"]
    assert "were refused" in judgement.findings[0].message


def test_a_poller_of_the_tutorials_is_right_where_no_token_is_required(interrupted):
    given = {"kill_at": ("step-end:13",), "notice": "aws", "grace_steps": 5}
    trial = held(interrupted("rare polls tutorial", **given))
    assert trial.attempts[0].exit_code == 143
    assert trial.attempts[0].trace.completed in (14, 16)


@pytest.mark.parametrize("given", [{"signal": "TERM"}, {"notice": "aws"}])
def test_a_window_in_steps_ends_at_that_step(interrupted, given):
    outcome = interrupted("deaf", kill_at=("step-end:11",), grace_steps=3, **given)
    trial, _ = only(outcome)
    first = trial.attempts[0]
    assert first.ended is Ended.RECLAIMED
    assert first.signalled_step == 11
    assert first.trace.completed == 14


def test_cloud_seconds_are_compressed_so_that_the_deadline_comes_in_time(interrupted):
    given = {"kill_at": ("step-end:13",), "notice": "aws"}
    polls = Polls()
    polls.note_silence()  # or it would be waited for
    trial, judgement = only(interrupted("slow rare", polls=polls, **given))
    played = trial.attempts[0].notice
    assert played.grace_s == 120
    assert played.time_scale > 1
    assert trial.attempts[0].ended is Ended.RECLAIMED
    assert names(judgement) == ["notice-ignored"]


def test_who_polls_now_and_then_is_waited_for(interrupted):
    given = {"kill_at": ("step-end:13",), "notice": "aws"}
    trial = held(interrupted("slow rare polls-beside", **given))
    first = trial.attempts[0]
    assert first.exit_code == 143
    assert first.trace.completed in (13, 14)
    assert first.notice.asked_after


@SLOW
@pytest.mark.parametrize(
    "habit",
    ["asks-first-every-15", "asks-later-every-20", "asks-between-steps-every-10"],
)
def test_who_asks_rightly_and_rarely_is_held_in_a_run_of_seconds(interrupted, habit):
    given = {"kill_at": ("step-end:13",), "notice": "aws"}
    trial = held(interrupted(f"rare {habit}", **given))
    first = trial.attempts[0]
    assert first.exit_code == 143
    assert first.notice.asked_after


@SLOW
@pytest.mark.parametrize("given", [{"signal": "TERM"}, {"notice": "aws"}])
def test_the_smallest_window_is_searched(interrupted, given):
    outcome = interrupted(
        "polls heeds-TERM",
        kill_at=("step-end:12",),
        find_grace=True,
        grace_s=20,
        **given,
    )
    held(outcome)
    found = outcome.extra["grace"]
    assert found["given_s"] == 20
    assert 0 < found["smallest_s"] < 20
    assert "smallest-grace" in dict(outcome.notes)


@SLOW
def test_a_save_that_outlasts_the_notice_is_named_with_its_seconds(interrupted):
    outcome = interrupted(
        "polls sluggish", kill_at=("step-end:13",), notice="aws", time_scale=60
    )
    _, judgement = only(outcome)
    assert names(judgement) == ["deadline-missed", "leftovers"]
    assert judgement.findings[0].message.endswith("of the 120 s that aws gives")


@SLOW
def test_who_stops_for_advice_is_named(interrupted):
    given = {"kill_at": ("step-end:12",), "notice": "aws-rebalance"}
    _, judgement = only(interrupted("heeds-advice", **given))
    assert names(judgement) == ["stopped-for-advice"]
    trial = held(interrupted("", **given))
    assert trial.attempts[0].ended is Ended.FINISHED


@SLOW
def test_a_notice_by_signal_comes_as_one(interrupted):
    outcome = interrupted("heeds-TERM", kill_at=("step-end:12",), notice="kubernetes")
    trial = held(outcome)
    assert trial.attempts[0].signal == "TERM"
    assert trial.attempts[0].exit_code == 143


@pytest.mark.parametrize(
    ("habit", "netns"),
    [
        ("polls token", True),
        pytest.param(
            "polls curls",
            False,
            marks=pytest.mark.skipif(not shutil.which("curl"), reason="no curl here"),
        ),
    ],
)
def test_the_clouds_own_address_exists_in_a_private_network(interrupted, habit, netns):
    outcome = interrupted(
        habit,
        kill_at=("step-end:12",),
        notice="aws",
        netns=netns,
        time_scale=10,
    )
    trial = held(outcome)
    assert trial.attempts[0].exit_code == 143


# ------------------------------------------------------------------- disks


@pytest.mark.parametrize(
    "fault",
    [
        "enospc:2",
        *slow("eio:last", "eintr:2", "short-write:2", "slow-disk:3+", "erofs:2"),
        *slow("edquot:2+", "link-refused:2", "chmod-refused:last", "fsync-fails:3+"),
    ],
)
def test_errors_of_the_disk_are_survived(interrupted, fault):
    trial = held(interrupted("", fault=(fault,)))
    injected = trial.attempts[0].injected[0]
    assert injected.times
    assert injected.path.startswith("checkpoints/")


@SLOW
def test_an_error_that_takes_the_old_checkpoint_with_it_is_named(interrupted):
    for fault in ("enospc:3", "rename-refused:3", "link-refused:3", "chmod-refused:3"):
        _, judgement = only(interrupted("deletes-first", fault=(fault,)))
        assert names(judgement) == ["error-destroyed-checkpoint"]
    held(interrupted("", fault=("rename-refused:3",)))


@SLOW
def test_damage_that_is_loaded_without_a_word_is_named(interrupted):
    _, judgement = only(interrupted("", fault=("bit-flip",)))
    assert set(names(judgement)) <= {"silent-damage", "resume-failed"}
    assert names(judgement)
    held(interrupted("digest", fault=("bit-flip",)))
    held(interrupted("digest", fault=("zero-page",)))


@SLOW
@pytest.mark.parametrize("fault", ["clock-skew", "equal-times", "lost-times"])
def test_the_newest_by_time_is_not_the_newest(interrupted, fault):
    trial, judgement = only(interrupted("newest-by-time", fault=(fault,)))
    assert trial.attempts[0].injected[0].times
    assert names(judgement) == ["stale-resume"]
    trial = held(interrupted("", fault=(fault,)))
    assert trial.attempts[0].injected[0].times


def test_a_fault_that_never_struck_proves_nothing(interrupted):
    outcome = interrupted("", fault=("enospc:500",), kill_at=("step-end:7",))
    _, judgement = only(outcome)
    assert names(judgement) == ["not-reached"]
    assert outcome.verdict is Verdict.UNKNOWN
