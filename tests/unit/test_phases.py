"""An optimizer that has stepped its last before others began is no part of the state."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotchaos.model import Attempt, AttemptTrace, Ended, RankTrace, StateMark, StepMark
from spotchaos.probe.optimizer_phases import Turns
from spotchaos.trace.training_phases import settled, spelled_as

TEACHER, STUDENT = frozenset({0}), frozenset({1})


def run(turns, *, finished=True):
    """Return a run in which these optimizers stepped, one list for each step."""
    states, steps, turn = {}, [], 0
    for step, optimizers in enumerate([*turns, []]):
        states[step] = StateMark(
            step=step,
            at="step",
            components={"weights": f"both-{step}"},
            less={
                TEACHER: {"weights": f"student-{step}"},
                STUDENT: {"weights": f"teacher-{step}"},
            },
        )
        by = {}
        for optimizer in optimizers:
            turn += 1
            by[optimizer] = (by.get(optimizer, (turn, turn))[0], turn)
        if optimizers:
            steps.append(StepMark(step=step + 1, components={}, by=by))
    finish = replace(states[len(turns)], at="finish") if finished else None
    return RankTrace(0, states, finish, tuple(steps), (), (), {})


def weights(trace):
    return [state.components["weights"] for state in trace.states.values()]


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        pytest.param(
            [[0], [0], [1], [1]],
            ["both-0", "both-1", "student-2", "student-3", "student-4"],
            id="one-after-the-other",
        ),
        pytest.param(
            [[0, 0, 1], [1]],
            ["both-0", "student-1", "student-2"],
            id="one-before-the-other-within-the-first-step",
        ),
        pytest.param(
            [[0, 1], [0, 1], [1], [1]],
            [f"both-{step}" for step in range(5)],
            id="by-turns-and-one-stops-earlier",
        ),
        pytest.param(
            [[0], [0], [1], [0]],
            [f"both-{step}" for step in range(5)],
            id="one-goes-on-later",
        ),
        pytest.param(
            [[1], [1], [0, 1], [0, 1]],
            [f"both-{step}" for step in range(5)],
            id="one-begins-later-and-both-go-on",
        ),
        pytest.param([[0], [0]], ["both-0", "both-1", "both-2"], id="one-is-not-used"),
    ],
)
def test_what_has_stepped_its_last_is_left_out(turns, expected):
    assert weights(settled(run(turns))) == expected


def test_a_run_that_was_stopped_does_not_tell_who_steps_no_more():
    stopped = run([[0], [0], [1]], finished=False)
    assert weights(settled(stopped)) == ["both-0", "both-1", "both-2", "both-3"]


def test_an_attempt_is_told_as_its_line_is():
    trace = run([[1]])
    attempt = Attempt(
        number=2,
        command=(),
        ended=Ended.FINISHED,
        exit_code=0,
        trace=AttemptTrace({0: trace}, 1, 1, True),
        wall_s=1.0,
    )
    table = {"weights": {"student-0": frozenset({2}), "both-1": frozenset({3})}}
    told = spelled_as({0: table}, attempt).trace.ranks[0]
    # What a line has in neither spelling stays as it is: it is not restored.
    assert weights(told) == ["student-0", "both-1"]
    assert weights(spelled_as({0: {}}, attempt).trace.ranks[0]) == ["both-0", "both-1"]


@pytest.mark.parametrize(
    ("stepped", "expected"),
    [
        pytest.param([], [TEACHER, STUDENT], id="nobody-has-begun"),
        pytest.param([0], [TEACHER, STUDENT], id="one-may-begin"),
        pytest.param([0, 1], [TEACHER], id="another-began-after-it"),
        pytest.param([0, 1, 0, 1], [], id="by-turns"),
    ],
)
def test_only_who_may_have_stepped_its_last_is_told_apart(stepped, expected):
    turns = Turns()
    for turn, index in enumerate(stepped, start=1):
        turns.note([index], turn)
    assert turns.idle_sets([0, 1]) == expected


def test_many_optimizers_cost_a_few_sets_at_most():
    assert len(Turns().idle_sets(list(range(50)))) == 8
    assert not Turns().idle_sets([0])
