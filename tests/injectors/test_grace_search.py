"""The smallest window in which everything holds: searched by halving, and bounded."""

import pytest

from spotchaos.campaign.grace_search import NEAR, TRIES, search
from spotchaos.config.settings import Settings
from spotchaos.errors import UsageError


def needing(seconds, *, given_s=120.0, **more):
    """Search for a program that needs so many seconds; return that and what was tried."""
    tried = []

    def holds(window_s):
        tried.append(window_s)
        return window_s >= seconds

    found = search(holds, given_s=given_s, holds_in_whole=given_s >= seconds, **more)
    return found, tried


@pytest.mark.parametrize("seconds", [0.3, 1.0, 7.5, 40.0, 119.0])
def test_the_answer_is_enough_and_near(seconds):
    found, tried = needing(seconds, used_s=seconds)
    assert found.smallest_s >= seconds
    assert found.fails_s is None or found.fails_s < seconds
    assert found.smallest_s - seconds <= max(0.05, 2 * NEAR * seconds)
    assert len(tried) <= TRIES
    assert [window for window, _ in found.tried] == [120.0, *tried]


def test_what_was_used_is_only_a_guess():
    found, _ = needing(10.0, used_s=1.0)
    assert found.smallest_s >= 10.0
    found, _ = needing(10.0)
    assert 10.0 <= found.smallest_s <= 13.0


def test_a_window_that_is_too_short_as_a_whole_is_not_searched():
    found, tried = needing(200.0)
    assert (found.smallest_s, tried) == (None, [])
    assert "too short" in found.note().message


def test_a_program_that_needs_none_ends_the_search_too():
    found, tried = needing(0.0, used_s=0.01)
    assert found.fails_s is None
    assert len(tried) <= TRIES
    assert "every plan held" in found.note().message


def test_no_budget_no_search():
    found, tried = needing(1.0, may_go_on=lambda: False)
    assert (found.smallest_s, tried) == (120.0, [])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        pytest.param({}, "needs a warning", id="a-kill"),
        pytest.param({"signal": "STOP"}, "needs a warning", id="a-pause"),
        pytest.param(
            {"signal": "TERM", "grace_steps": 3}, "counts steps", id="in-steps"
        ),
    ],
)
def test_a_search_without_a_window_is_refused(tmp_path, given, said):
    with pytest.raises(UsageError, match=said):
        Settings(command=("true",), folder=tmp_path, find_grace=True, **given)
