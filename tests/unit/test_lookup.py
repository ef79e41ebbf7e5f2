"""Where a value came from, where an attempt joins, and by how much a stream moved."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from spotchaos.model import StateMark, StepMark
from spotchaos.trace.lookup import (
    BLOCK_WORDS,
    RankReference,
    disturbance,
    draws_between,
    join,
    look_up,
    origin,
)


def make_line(columns, *, rng=None, weak=None):
    """Return a line of one component each: name -> its values by step."""
    steps = max(len(values) for values in columns.values())
    states = {
        step: StateMark(
            step=step,
            at="step",
            components={c: v[step] for c, v in columns.items() if c != "batch"},
            rng={} if rng is None else {"rng.torch": rng[step]},
        )
        for step in range(steps)
    }
    batches = columns.get("batch", [])
    marks = {
        step + 1: StepMark(step=step + 1, components={"batch": batch})
        for step, batch in enumerate(batches)
    }
    return RankReference(states, marks, weak or {})


def where(columns, found, **options):
    looked = look_up(make_line(columns), found, leave_out=options.pop("leave_out", ()))
    return join({0: looked}, **options).step


WEIGHTS = ["w0", "w1", "w2", "w3", "w4"]


def test_a_look_up_yields_every_step_with_that_value():
    line = make_line({"weights": ["a", "a", "b", "a"]})
    assert look_up(line, {"weights": "a"}, leave_out=())["weights"] == {0, 1, 3}


def test_the_batch_of_a_state_is_the_one_that_follows_it():
    line = make_line({"weights": WEIGHTS, "batch": ["b1", "b2", "b3"]})
    assert look_up(line, {"batch": "b3"}, leave_out=())["batch"] == {2}


def test_a_component_that_is_not_compared_is_not_looked_up():
    line = make_line({"weights": WEIGHTS, "rng.python": WEIGHTS})
    assert set(look_up(line, line.columns(2), leave_out=("rng.python",))) == {"weights"}


def test_at_a_save_only_tensors_tell_of_a_step_that_was_not_sampled():
    state = StateMark(step=9, at="save", components={"weights": "w9", "rates": "r9"})
    line = make_line({"weights": WEIGHTS, "rates": WEIGHTS}, weak={9: state})
    looked = look_up(line, {"weights": "w9", "rates": "r9"}, leave_out=())
    assert looked == {"weights": {9}, "rates": frozenset()}


def test_the_join_is_the_step_that_most_components_share():
    columns = {"weights": WEIGHTS, "optimizer": WEIGHTS, "rates": WEIGHTS}
    found = {"weights": "w3", "optimizer": "w3", "rates": "w1"}
    assert where(columns, found) == 3


def test_a_fresh_component_does_not_draw_the_join_to_step_0():
    columns = {
        "weights": WEIGHTS,
        "optimizer": WEIGHTS,
        "rates": WEIGHTS,
        "rng.torch": WEIGHTS,
    }
    found = {"weights": "w3", "optimizer": "w0", "rates": "w0", "rng.torch": "w0"}
    assert where(columns, found) == 3


def test_all_fresh_is_a_start_at_step_0():
    columns = {"weights": WEIGHTS, "optimizer": WEIGHTS}
    assert where(columns, {"weights": "w0", "optimizer": "w0"}) == 0


def test_warm_up_from_rate_0_does_not_hide_a_resume_at_step_1():
    columns = {"weights": ["a", "a", "b"], "optimizer": ["o", "p", "q"]}
    assert where(columns, {"weights": "a", "optimizer": "p"}) == 1


def test_a_tie_on_a_plateau_goes_to_the_newest_save():
    columns = {"weights": ["a", "b", "b", "b", "b"]}
    assert where(columns, {"weights": "b"}, saves=[1, 3]) == 3
    assert where(columns, {"weights": "b"}, saves=[1]) == 1


def test_a_tie_without_a_save_goes_to_the_step_that_ends_at_the_horizon():
    columns = {"weights": ["a", "b", "b", "b", "b"]}
    assert where(columns, {"weights": "b"}, fits=2) == 2


def test_on_a_plateau_the_batch_decides_between_saves():
    columns = {"weights": ["a", "b", "b", "b"], "batch": ["1", "2", "3", "4"]}
    found = {"weights": "b", "batch": "2"}
    assert where(columns, found, saves=[1, 3]) == 1
    assert where(columns, found, saves=[3]) == 3
    assert where(columns, found) == 1


def test_nobody_joins_on_a_plateau_where_no_attempt_had_come_yet():
    columns = {"weights": ["a", "b", "b", "b"], "batch": ["1", "2", "3", "4"]}
    found = {"weights": "b", "batch": "4"}
    assert where(columns, found) == 3
    assert where(columns, found, reached=2) == 2


def test_a_state_of_another_run_joins_nowhere():
    columns = {"weights": WEIGHTS, "optimizer": WEIGHTS}
    assert where(columns, {"weights": "x", "optimizer": "y"}) is None


def test_ranks_that_resumed_from_different_steps_disagree():
    line = make_line({"weights": WEIGHTS, "optimizer": WEIGHTS})
    looked = {
        rank: look_up(line, line.columns(step), leave_out=())
        for rank, step in ((0, 3), (1, 2))
    }
    found = join(looked)
    assert (found.step, found.disagrees, dict(found.ranks)) == (
        None,
        True,
        {0: 3, 1: 2},
    )


def test_a_rank_whose_weights_were_never_sampled_follows_the_others():
    line = make_line({"weights": WEIGHTS, "batch": WEIGHTS})
    sparse = make_line({"weights": WEIGHTS[:3], "batch": WEIGHTS[:3]})
    looked = {
        0: look_up(line, {"weights": "w3", "batch": "w3"}, leave_out=()),
        1: look_up(sparse, {"weights": "w3", "batch": "w2"}, leave_out=()),
    }
    assert dict(join(looked).ranks) == {0: 3, 1: 3}


def test_a_plateau_on_one_rank_is_no_disagreement():
    line = make_line({"weights": ["a", "b", "b", "b"], "buffers": ["a", "b", "c", "c"]})
    other = make_line(
        {"weights": ["a", "b", "b", "b"], "buffers": ["a", "b", "c", "d"]}
    )
    looked = {
        0: look_up(line, line.columns(3), leave_out=()),
        1: look_up(other, other.columns(3), leave_out=()),
    }
    assert join(looked, saves=[2]).step == 3


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        pytest.param({3}, 3, id="the-join"),
        pytest.param({0, 3}, 3, id="the-join-before-fresh"),
        pytest.param({0}, "fresh", id="fresh"),
        pytest.param({0, 2}, "fresh", id="fresh-before-another-step"),
        pytest.param({1, 4}, 4, id="the-nearest-other-step"),
        pytest.param(set(), "foreign", id="foreign"),
    ],
)
def test_an_origin_is_the_join_or_fresh_or_another_step_or_foreign(steps, expected):
    assert origin(frozenset(steps), 3) == expected


@given(st.integers(0, 3000), st.integers(0, BLOCK_WORDS))
def test_draws_are_counted_over_the_end_of_a_block(used, more):
    def stream(words):
        block, position = divmod(words, BLOCK_WORDS)
        return (f"b{block}", f"b{block + 1}", position)

    assert draws_between(stream(used), stream(used + more)) == more
    assert draws_between(stream(used + more), stream(used)) == -more


def test_unrelated_streams_have_no_distance():
    assert draws_between(("a", "b", 3), ("x", "y", 3)) is None


def test_a_stream_of_unknown_successor_is_known_in_its_own_block():
    assert draws_between(("a", None, 3), ("a", None, 7)) == 4


def stream_case(now, *, steps=(), joined=2):
    rng = [("a", "b", 10 * step) for step in range(5)]
    line = make_line({"weights": WEIGHTS}, rng=rng)
    state = StateMark(step=0, at="step", components={}, rng={"rng.torch": now})
    return disturbance(line, "rng.torch", state, joined=joined, steps=frozenset(steps))


def test_a_stream_moved_by_one_draw_was_disturbed():
    assert stream_case(("a", "b", 21)) == 1
    assert stream_case(("a", "b", 19)) == -1


def test_a_stream_of_another_block_was_not_restored():
    assert stream_case(("x", "y", 21)) is None


def test_a_stream_nearer_to_its_start_was_not_restored():
    # Ten draws from the start and ten from the join: it never left the start.
    assert stream_case(("a", "b", 1), steps=()) is None


def test_a_stream_that_is_exactly_that_of_another_step_is_that_steps():
    assert stream_case(("a", "b", 30), steps=(3,)) is None
    assert stream_case(("a", "b", 24), steps=()) == 4
