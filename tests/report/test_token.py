import pytest

from spotchaos.config.replay_token import (
    PREFIX,
    decode,
    encode,
    make_token,
    settings_of,
)
from spotchaos.errors import UsageError


def test_a_token_brings_back_its_trial(outcomes):
    settings = outcomes.make_settings(
        signal="TERM", grace_s=4.0, to="rank:1", ranks=2, exit_code=(0, 143)
    )
    token = make_token("step-end:12,step-end:1", settings)
    again = settings_of(token, outcomes.make_settings(trials=9))
    assert again.kill_at == ("step-end:12,step-end:1",)
    assert again.trials == 1
    assert (again.signal, again.grace_s, again.to) == ("TERM", 4.0, "rank:1")
    assert (again.ranks, again.exit_code, again.seed) == (2, (0, 143), 7)


def test_a_token_is_one_short_word_without_paths(outcomes):
    token = make_token("step-end:12", outcomes.make_settings())
    assert len(token) < 60
    assert token.isprintable()
    assert not set(token) & set(" '\"$\\/+=|&;<>")
    assert "project" not in str(decode(token))


def test_equal_trials_have_equal_tokens():
    assert encode({"plan": "a", "to": "b"}) == encode({"to": "b", "plan": "a"})


GOOD = encode({"plan": "step-end:12", "signal": "TERM"})


@pytest.mark.parametrize(
    "token",
    [
        pytest.param(GOOD[:-5], id="cut"),
        pytest.param(GOOD[:8] + "%" + GOOD[9:], id="wrong-character"),
        pytest.param(PREFIX, id="empty"),
        pytest.param(encode({"signal": "TERM"}), id="no-plan"),
        pytest.param(encode({"plan": 3}), id="plan-of-another-type"),
        pytest.param(PREFIX + "bnVsbA", id="null"),
        pytest.param(GOOD + "é", id="not-ascii"),
    ],
)
def test_a_damaged_token_is_named_as_such(token):
    with pytest.raises(UsageError, match="damaged") as caught:
        decode(token)
    assert "copy the whole word" in caught.value.hint


@pytest.mark.parametrize("cut", range(len(PREFIX) + 1, len(GOOD)))
def test_no_cut_token_passes_for_another_one(cut):
    with pytest.raises(UsageError):
        decode(GOOD[:cut])


def test_a_newer_token_asks_for_a_newer_release():
    with pytest.raises(UsageError, match="newer release"):
        decode("sc2:abc")


def test_what_is_no_token_is_said_so():
    with pytest.raises(UsageError, match="no replay token"):
        decode("train.py\x1b[2J")


def test_an_unknown_setting_is_refused(outcomes):
    with pytest.raises(UsageError, match="'warp'"):
        settings_of(encode({"plan": "step-end:1", "warp": 9}), outcomes.make_settings())


def test_a_setting_of_another_type_is_damage(outcomes):
    token = encode({"plan": "step-end:1", "ranks": "two"})
    with pytest.raises(UsageError, match="damaged"):
        settings_of(token, outcomes.make_settings())


def test_a_token_with_a_plan_that_no_run_can_reach_says_why(outcomes):
    with pytest.raises(UsageError, match="unknown site"):
        settings_of(encode({"plan": "step-en:1"}), outcomes.make_settings())
