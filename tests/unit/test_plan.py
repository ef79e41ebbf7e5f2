"""Kill points have one spelling, and plans come from a seed."""

import pytest
from hypothesis import given, strategies as st

from spotchaos.config.plan import KillPoint, Plan
from spotchaos.errors import PlanError
from spotchaos.planning.chance import draw
from spotchaos.planning.edges import SiteIndex, edges, every_step
from spotchaos.planning.moments import Moment, Moments
from spotchaos.trace.format import SITES, STORE_SITES

LAND = SiteIndex(
    horizon=60,
    counts={"forward": 120, "backward": 120, "optimizer-step": 60, "step-end": 60},
    saves=[(9, 1), (19, 2), (29, 3), (39, 4), (49, 5), (59, 6)],
    epoch_ends=[30, 60],
)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        pytest.param("step-ends:2", "did you mean 'step-end'?", id="near-miss"),
        pytest.param("rename", "write rename:3 for the third time", id="no-count"),
        pytest.param("step-end:0", "occurrences count from 1", id="counts-from-one"),
        pytest.param("step-end:x", "write step-end:3", id="not-a-number"),
        pytest.param("step-end:3/half", "only writes are cut", id="cut-of-a-step"),
        pytest.param("rename:3/half", "only writes are cut", id="cut-of-a-rename"),
        pytest.param("step-end:3@all", "only file sites are", id="all-of-a-step"),
        pytest.param("120%", "from 0% to 100%", id="beyond-the-end"),
        pytest.param("randon", "did you mean 'random'?", id="near-a-word-for-many"),
        pytest.param("upload-part:2@1", "over all ranks", id="rank-of-an-upload"),
    ],
)
def test_a_bad_kill_point_says_how_to_mend_it(text, hint):
    with pytest.raises(PlanError) as caught:
        Plan.parse(text)
    assert hint in str(caught.value)


@given(
    site=st.sampled_from(SITES),
    occurrence=st.integers(1, 10**6),
    rank=st.none() | st.integers(0, 64),
)
def test_a_kill_point_reads_back_as_it_was_written(site, occurrence, rank):
    if site in STORE_SITES:
        rank = None  # a store cannot tell ranks apart
    point = KillPoint(site=site, occurrence=occurrence, rank=rank)
    assert KillPoint.parse(str(point)) == point


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("50%", id="share"),
        pytest.param("12.5s", id="seconds"),
        pytest.param("write:3/half", id="half-a-write"),
        pytest.param("write:3@1+4096", id="bytes-on-a-rank"),
        pytest.param("file-op:9@all/after", id="after-an-op-of-any-process"),
        pytest.param("step-end:4,load-begin:1,step-end:2", id="three-interruptions"),
        pytest.param("after-finish", id="after-the-finish"),
    ],
)
def test_a_plan_reads_back_as_it_was_written(text):
    assert str(Plan.parse(text)) == text


def test_a_share_becomes_the_step_that_it_means():
    assert str(Plan.parse("50%").at(60)) == "step-end:30"


def test_a_plan_beyond_the_horizon_is_refused_with_the_horizon():
    with pytest.raises(PlanError, match="beyond the horizon of 60 steps"):
        Plan.parse("step-end:61").at(60)


@given(seed=st.integers(0, 2**32))
def test_one_seed_makes_one_set_of_plans(seed):
    assert draw(seed, trials=5, site_index=LAND) == draw(
        seed, trials=5, site_index=LAND
    )


@given(seed=st.integers(0, 2**32), horizon=st.integers(2, 200))
def test_drawn_plans_begin_within_the_horizon(seed, horizon):
    site_index = SiteIndex(horizon=horizon, counts={}, saves=[(horizon // 2, 1)])
    for plan in draw(seed, trials=4, site_index=site_index):
        assert 1 <= len(plan.points) <= 3
        first = plan.points[0]
        assert first.site != "step-end" or 1 <= first.occurrence <= horizon


def test_edges_hold_the_moments_at_which_programs_go_wrong():
    found = [str(plan) for plan in edges(LAND)]
    assert found[0] == "step-end:1"
    assert "step-end:8" in found  # before the first save
    assert "save-begin:4" in found
    assert "save-end:4" in found
    assert "step-end:30" in found  # an epoch's end
    assert "step-end:40,step-end:1" in found  # soon after a resume
    assert "step-end:40,load-begin:1" in found
    assert "step-end:60" in found  # the last step
    assert found[-1] == "after-finish"


def test_inside_a_save_is_an_edge_where_there_are_file_sites():
    site_index = SiteIndex(
        horizon=LAND.horizon,
        counts=LAND.counts,
        saves=LAND.saves,
        file_ops=90,
        inside_saves=[KillPoint(site="write", occurrence=20, cut="half")],
    )
    assert any("write:20/half" in str(plan) for plan in edges(site_index))


def test_every_step_is_a_plan_of_its_own():
    assert len(every_step(LAND)) == 60


def test_a_run_of_one_step_cannot_be_interrupted_by_chance():
    with pytest.raises(PlanError, match="horizon of 1 steps"):
        draw(0, trials=1, site_index=SiteIndex(horizon=1, counts={}))


def _in_saves(*kinds, saves=4):
    """Return a landscape of saves that are all made by ops of these kinds."""
    moments = [
        Moment(number, f"after {kind}", is_renaming=kind in ("unlink", "rename"))
        for number, kind in enumerate(kinds * saves, 1)
    ]
    ends = [len(kinds) * (step // 5) for step in range(1, 5 * saves + 1)]
    return SiteIndex(
        horizon=5 * saves,
        counts={},
        saves=[(5 * n, n) for n in range(1, saves + 1)],
        file_ops=len(moments),
        moments=Moments(moments, ends, saves),
    )


@pytest.mark.parametrize("seed", range(20))
def test_chance_strikes_each_gap_before_it_strikes_one_again(seed):
    kinds = ("creat", "write", "unlink", "symlink", "rename")
    site_index = _in_saves(*kinds)
    plans = draw(seed, trials=20, site_index=site_index)
    assert site_index.moments.not_struck(plans) == []
    assert plans[:5] == draw(seed, trials=5, site_index=site_index)


@pytest.mark.parametrize("seed", range(20))
def test_few_plans_leave_what_another_has_left_on_disk(seed):
    site_index = _in_saves("write")
    plans = draw(seed, trials=12, site_index=site_index)
    left = [(site_index.moments.injected(p.points[0]), p.points[1:]) for p in plans]
    assert len(set(left)) >= 10


def test_edges_strike_where_a_name_was_made_or_removed():
    site_index = _in_saves("write", "unlink", "symlink", saves=3)
    points = [plan.points[0] for plan in edges(site_index) if plan.points]
    injected = {site_index.moments.injected(point)[0] for point in points}
    assert "after unlink" in {moment.gap for moment in injected if moment is not None}


def test_a_kill_at_a_step_strikes_the_gap_after_the_newest_save():
    site_index = _in_saves("write", "rename", saves=3)
    injected = {
        step: site_index.moments.injected(KillPoint(site="step-end", occurrence=step))[
            0
        ]
        for step in (4, 5, 9, 10)
    }
    assert injected[4] is None
    assert [injected[step].op for step in (5, 9, 10)] == [2, 2, 4]
