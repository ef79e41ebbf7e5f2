"""Strategies speak the command's language, and shrink to the plan that is told quickest."""

import pytest
from hypothesis import find, given

from spotchaos.config.plan import KillPoint, Plan
from spotchaos.injectors.file_times import TIMES
from spotchaos.providers.stories import story
from spotchaos.strategies import STEP_SITES, faults, kill_points, notices, plans


@given(plans(max_step=30))
def test_a_plan_is_spelled_as_the_command_reads_it(plan):
    assert Plan.parse(str(plan)).points == plan.points


@given(kill_points(max_step=30, ranks=3))
def test_a_kill_point_lies_within_its_bounds(point):
    assert KillPoint.parse(str(point)) == point
    assert 1 <= point.occurrence <= 30
    assert point.site in STEP_SITES
    assert point.rank in (None, 0, 1, 2)


@given(plans(max_step=30, max_interruptions=2))
def test_a_plan_has_one_interruption_for_each_attempt_but_the_last(plan):
    assert 1 <= len(plan.points) <= 2
    assert plan.drawn


@given(plans(max_step=30))
def test_every_kill_point_of_a_plan_is_reached_wherever_attempts_resume(plan):
    assert sum(point.occurrence for point in plan.points) <= 30


@given(notices())
def test_a_notice_is_a_story_that_can_be_played(name):
    assert name is None or story(name).acts


@given(faults(of_stores=True))
def test_a_fault_names_the_operation_that_it_strikes(text):
    name, _, count = text.partition(":")
    assert name
    assert count in ({""} if name in TIMES else {"1", "2", "3"})


FAILURES = [
    pytest.param(lambda plan: True, "step-end:1", id="any-interruption"),
    pytest.param(
        # Right after the first resume, wrong after the second.
        lambda plan: len(plan.points) >= 2,
        "step-end:1,step-end:1",
        id="right-once",
    ),
    pytest.param(
        # Fails between two saves of every five steps.
        lambda plan: plan.points[0].occurrence > 5,
        "step-end:6",
        id="after-the-first-save",
    ),
    pytest.param(
        lambda plan: any(p.site == "backward" for p in plan.points),
        "backward:1",
        id="inside-a-step",
    ),
    pytest.param(
        lambda plan: len(plan.points) == 3 and plan.points[2].occurrence > 2,
        "step-end:1,step-end:1,step-end:3",
        id="third-attempt",
    ),
]


@pytest.mark.parametrize(("fails", "simplest"), FAILURES)
def test_a_failure_shrinks_to_the_simplest_plan(fails, simplest):
    assert str(find(plans(max_step=30), fails)) == simplest


def test_the_simplest_notice_is_none():
    assert find(notices(), lambda name: True) is None
