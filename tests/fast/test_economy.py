"""What is run, in which order and how often, is decided without running anything."""

import types
from dataclasses import replace

import pytest

from spotchaos.campaign import scheduling
from spotchaos.campaign.campaign import Campaign
from spotchaos.campaign.scheduling import jobs_for, most_telling_first
from spotchaos.campaign.skipping import (
    Skipper,
    is_candidate,
    may_skip,
    moment_in,
    moment_of,
    shows_all,
)
from spotchaos.clock import ManualClock
from spotchaos.config.plan import KillPoint, Plan
from spotchaos.config.settings import Settings
from spotchaos.errors import HarnessError, UsageError
from spotchaos.events import AttemptEnded, PhaseStarted
from spotchaos.model import Attempt, AttemptTrace, Ended, RankTrace, StepMark
from spotchaos.persistence.history import History
from spotchaos.persistence.oplog import FileOp, OpLog
from spotchaos.planning.chance import draw
from spotchaos.planning.edges import SiteIndex, edges
from spotchaos.recording.recorded_run import Recorded

LAND = SiteIndex(horizon=40, counts={"forward": 40}, saves=[(10, 1), (20, 2), (30, 3)])


def settings(tmp_path, **given):
    return Settings(command=("true",), folder=tmp_path, **given)


def baseline_context(world_size=1, threads=1, **given):
    return types.SimpleNamespace(
        baseline=types.SimpleNamespace(world_size=world_size),
        trial_context=types.SimpleNamespace(
            settings=types.SimpleNamespace(threads=threads)
        ),
        **given,
    )


def attempt_of(steps, sites=()):
    rank = RankTrace(
        rank=0,
        states={},
        finish=None,
        steps=tuple(StepMark(n, {}, t_s=float(n)) for n in range(1, steps + 1)),
        saves=(),
        loads=(),
        counts={},
        sites=sites,
    )
    return Attempt(
        number=1,
        command=("true",),
        ended=Ended.FINISHED,
        exit_code=0,
        trace=AttemptTrace({0: rank}, 1, 1, torch_seen=True),
        wall_s=1.0,
    )


def test_named_plans_come_first_then_edges_then_new_kinds():
    named = Plan.parse("step-end:7")
    plans = [*draw(3, trials=20, site_index=LAND), *edges(LAND), named]
    ordered = most_telling_first(list(enumerate(plans, 1)), LAND)
    assert sorted(ordered) == sorted(enumerate(plans, 1), key=lambda p: p[0])
    assert ordered[0][1] == named
    firsts = {plan.points[0] for plan in edges(LAND) if plan.points}
    is_edge = [p.after_finish or p.points[0] in firsts for _, p in ordered[1:]]
    assert is_edge == sorted(is_edge, reverse=True)
    assert any(is_edge)
    assert not all(is_edge)


def test_order_of_plans_depends_on_nothing_else():
    plans = list(enumerate(draw(5, trials=30, site_index=LAND), 1))
    assert most_telling_first(plans, LAND) == most_telling_first(plans, LAND)


@pytest.mark.parametrize(
    ("cores", "free_gb", "world_size", "threads", "expected"),
    [
        (8, 64, 1, 1, 8),
        (8, 64, 2, 1, 4),
        (8, 64, 1, 4, 2),
        (8, 1, 1, 1, 2),
        (2, 0, 4, 1, 1),
    ],
    ids=[
        "cores",
        "ranks share them",
        "threads share them",
        "memory bounds",
        "never none",
    ],
)
def test_jobs_are_bounded_by(
    monkeypatch, cores, free_gb, world_size, threads, expected
):
    import psutil

    memory = types.SimpleNamespace(available=free_gb << 30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(
        scheduling.os, "sched_getaffinity", lambda pid: set(range(cores))
    )
    assert jobs_for(baseline_context(world_size, threads)) == expected


@pytest.mark.parametrize(
    "given",
    [
        {"no_skip": True},
        {"signal": "TERM"},
        {"to": "leader"},
        {"halt": "run"},
        {"allow_network": True},
        {"lose": "machine"},
        {"fault": ("enospc",)},
        {"notice": "aws"},
    ],
    ids=lambda given: "-".join(given),
)
def test_only_a_kill_of_everything_is_known_beforehand(tmp_path, given):
    assert may_skip(settings(tmp_path))
    assert not may_skip(settings(tmp_path, **given))


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ("step-end:3", True),
        ("step-end:3,step-end:1", True),
        ("save-begin:1", True),
        ("step-end:3@0", False),
        ("write:3", False),
        ("file-op:3@all", True),
        ("file-op:3@all/half", True),
        ("file-op:3@0", False),
        ("file-op:3", False),
        ("12s", False),
        ("after-finish", False),
    ],
)
def test_candidates_are_plans_that_begin_as_the_uninterrupted_run(plan, expected):
    assert is_candidate(Plan.parse(plan)) is expected


def test_moment_of_a_kill_point_is_that_of_its_mark():
    attempt = attempt_of(5, sites=(("save-begin", 2, 4, 4.25),))
    assert moment_of(attempt, KillPoint(site="step-end", occurrence=3)) == 3.0
    assert moment_of(attempt, KillPoint(site="save-begin", occurrence=2)) == 4.25
    assert moment_of(attempt, KillPoint(site="save-begin", occurrence=3)) is None
    assert moment_of(attempt, KillPoint(site="forward", occurrence=3)) is None
    assert moment_of(attempt, KillPoint(site="step-end", occurrence=6)) is None


def test_one_plan_in_twenty_is_carried_out_as_a_check():
    import random

    skipper = Skipper(None, None, random.Random(0))
    drawn = sum(skipper.wants_check() for _ in range(2000))
    assert drawn == skipper.checked
    assert 60 < drawn < 140


def of_two_ranks(late_s=0.5):
    """Rank 0 has pid 10 and ends step N at N s; rank 1 has pid 11 and is a little late."""
    one = attempt_of(5)
    first = replace(one.trace.ranks[0], pid=10)
    second = replace(
        first,
        rank=1,
        pid=11,
        steps=tuple(replace(step, t_s=step.t_s + late_s) for step in first.steps),
    )
    return replace(one, trace=AttemptTrace({0: first, 1: second}, 2, 2, True))


def log_of(*writers):
    ops = (
        FileOp(kind="write", number=n, pid=pid, tid=tid)
        for n, (pid, tid) in enumerate(writers, 1)
    )
    return OpLog(start=(), ops=tuple(ops))


@pytest.mark.parametrize(
    ("writers", "expected"),
    [
        pytest.param([(10, 10), (10, 10)], True, id="the rank that is counted"),
        pytest.param([(11, 11)], False, id="another rank"),
        pytest.param([(10, 10), (11, 11)], False, id="both"),
        pytest.param([(10, 10), (10, 12)], False, id="a thread"),
        pytest.param([], True, id="nobody"),
    ],
)
def test_a_log_shows_all_where_one_rank_writes_in_step_with_what_is_counted(
    writers, expected
):
    assert shows_all(log_of(*writers), of_two_ranks()) is expected


def test_a_process_that_is_alone_may_have_any_number():
    assert shows_all(log_of((5, 5)), attempt_of(5))


def test_each_rank_is_cut_where_it_reached_the_kill_point_itself():
    history = History(OpLog(start=(), ops=()))
    record = Recorded(of_two_ranks(), history, 0.0, frozenset())
    moment = moment_in(record, KillPoint(site="step-end", occurrence=3))
    assert [r.completed for r in moment.attempt.trace.ranks.values()] == [3, 3]


def test_no_run_of_the_groundwork_begins_after_the_budget(tmp_path):
    clock, told = ManualClock(), []
    asked = settings(tmp_path, budget_s=5.0)
    campaign = Campaign(asked, told.append, clock)
    campaign._emit_in_time(PhaseStarted("baseline 1"))
    clock.advance(5.0)
    campaign._emit_in_time(AttemptEnded("baseline 1", attempt_of(1)))
    with pytest.raises(HarnessError, match="--budget ended before the baseline 2"):
        campaign._emit_in_time(PhaseStarted("baseline 2"))
    assert len(told) == 2


@pytest.mark.parametrize("name", ["budget_s", "timeout_s", "grace_s", "time_scale"])
def test_a_number_of_seconds_is_a_number(tmp_path, name):
    with pytest.raises(UsageError, match="is nan"):
        settings(tmp_path, **{name: float("nan")})
