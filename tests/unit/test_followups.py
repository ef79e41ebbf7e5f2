"""What follows the first signal: how it is spelled, and what is refused."""

import pytest

from spotchaos.config.follow_ups import FollowUp, ranks_in_order
from spotchaos.config.options import BY_NAME, read_option
from spotchaos.config.plan import Plan
from spotchaos.config.replay_token import make_token, settings_of
from spotchaos.config.settings import Settings
from spotchaos.errors import UsageError


def settings(tmp_path, **given):
    return Settings(command=("python", "train.py"), folder=tmp_path, **given)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("TERM@save-begin", "TERM@save-begin:1"),
        ("sigterm@step-end:2", "TERM@step-end:2"),
        ("KILL@write:1/half", "KILL@write:1/half"),
        ("int@save-begin:1@0", "INT@save-begin:1@0"),
        ("USR1@0.5s", "USR1@0.5s"),
    ],
)
def test_a_follow_up_is_read_and_written_in_one_spelling(text, read):
    assert str(FollowUp.parse(text)) == read
    assert FollowUp.parse(read) == FollowUp.parse(text)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("TERM", "SIGNAL@SITE:N"),
        ("STOP@save-begin", "signals are KILL, TERM"),
        ("TERM@svae-begin:1", "save-begin"),
        ("TERM@start:1", "choose one of"),
        ("TERM@50%", "choose one of"),
        ("TERM@upload-part:1", "choose one of"),
        ("TERM@save-begin:0", "count from 1"),
    ],
)
def test_what_is_no_follow_up_is_refused_with_a_hint(text, hint):
    with pytest.raises(UsageError) as refused:
        FollowUp.parse(text)
    assert repr(text) in str(refused.value)
    assert hint in refused.value.hint


def test_ranks_are_struck_in_the_order_in_which_they_are_written():
    assert ranks_in_order("rank:2,0,1,0") == ("rank:2", "rank:0", "rank:1")


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"then": ("TERM@save-begin",)}, "--then"),
        ({"stagger_s": 0.5}, "--stagger"),
        ({"stagger_s": 0.5, "to": "rank:1"}, "--stagger"),
        ({"stagger_s": 0.5, "to": "rank:1,1"}, "--stagger"),
        ({"stagger_s": 0.5, "to": "rank:0,1", "notice": "aws"}, "--stagger"),
        ({"stagger_s": -1.0, "to": "rank:0,1"}, "--stagger"),
        ({"requeue": -1}, "--requeue"),
        ({"requeue_delay_s": -1.0}, "--requeue-delay"),
    ],
)
def test_what_nothing_precedes_is_refused(tmp_path, given, names):
    with pytest.raises(UsageError, match=names) as refused:
        settings(tmp_path, **given)
    assert refused.value.hint


@pytest.mark.parametrize("text", ["1:0", "-1", "one", "1:inf", "1:0.1:2", ""])
def test_no_rank_is_slow_without_a_rank_and_a_time(text):
    with pytest.raises(UsageError, match="--slow-rank"):
        read_option(BY_NAME["slow-rank"], text)


def test_a_slow_rank_waits_for_as_long_as_is_said():
    assert read_option(BY_NAME["slow-rank"], "1:50s") == (1, 50.0)
    assert read_option(BY_NAME["slow-rank"], "2") == (2, 0.2)


def test_a_replay_token_carries_what_follows_the_first_signal(tmp_path):
    given = settings(
        tmp_path,
        signal="TERM",
        to="rank:1,0",
        then=("TERM@save-begin:1",),
        stagger_s=0.25,
        slow_rank=(1, 0.2),
        requeue=2,
        requeue_delay_s=1.5,
    )
    token = make_token(Plan.parse("step-end:3"), given)
    again = settings_of(token, settings(tmp_path))
    for name in ("then", "stagger_s", "slow_rank", "requeue", "requeue_delay_s"):
        assert getattr(again, name) == getattr(given, name)
