"""A notice is a function of the time: silent, announced, withdrawn, due, gone."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st

from spotchaos.errors import UsageError
from spotchaos.providers.notice import (
    Notice,
    Phase,
    check_grace,
    check_time_scale,
    count_changes,
    fitting_time_scale,
    next_change,
    reclaim_at,
)

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds):
    return START + timedelta(seconds=seconds)


def make_notice(**changes):
    given = {
        "kind": "terminate",
        "announced_at": at(10),
        "readable_at": at(10),
        "deadline": at(40),
        "reclaim_at": at(40),
    }
    return Notice(**(given | changes))


@pytest.mark.parametrize(
    ("changes", "phases"),
    [
        pytest.param({}, {9: "silent", 10: "announced", 40: "gone"}, id="as-announced"),
        pytest.param(
            {"readable_at": at(25)},
            {10: "silent", 24: "silent", 25: "announced", 40: "gone"},
            id="late",
        ),
        pytest.param(
            {"readable_at": None},
            {10: "silent", 39: "silent", 40: "gone"},
            id="missing",
        ),
        pytest.param(
            {"withdrawn_at": at(20), "reclaim_at": None},
            {10: "announced", 20: "withdrawn", 99: "withdrawn"},
            id="withdrawn",
        ),
        pytest.param({"reclaim_at": at(15)}, {14: "announced", 15: "gone"}, id="early"),
        pytest.param(
            {"reclaim_at": at(55)}, {40: "due", 54: "due", 55: "gone"}, id="overdue"
        ),
        pytest.param(
            {"reclaim_at": None}, {10: "announced", 40: "due", 999: "due"}, id="advice"
        ),
    ],
)
def test_a_notice_passes_through_its_phases(changes, phases):
    notice = make_notice(**changes)
    found = {second: str(notice.phase(at(second))) for second in phases}
    assert found == phases


def test_a_withdrawal_takes_the_reclaim_back():
    withdrawn = make_notice().withdraw(at(20))
    assert withdrawn.reclaim_at is None
    assert withdrawn.is_readable(at(19))
    assert not withdrawn.is_readable(at(20))


@pytest.mark.parametrize(
    "notice",
    [
        pytest.param(make_notice(reclaim_at=at(15)), id="gone"),
        pytest.param(make_notice(withdrawn_at=at(15), reclaim_at=None), id="withdrawn"),
    ],
)
def test_what_is_over_cannot_be_withdrawn(notice):
    with pytest.raises(UsageError, match="cannot be withdrawn"):
        notice.withdraw(at(16))


def test_an_acknowledgement_hastens_the_reclaim_once():
    notice = make_notice().acknowledge(at(12), start_after_s=1)
    assert notice.phase(at(12)) is Phase.DUE
    assert notice.reclaim_at == at(13)
    assert notice.acknowledge(at(12.5), start_after_s=1) == notice


def test_an_acknowledgement_never_delays_the_reclaim():
    assert make_notice().acknowledge(at(39), start_after_s=5).reclaim_at == at(40)


def test_the_first_reclaim_counts():
    later = make_notice(reclaim_at=at(50))
    assert reclaim_at([later, make_notice()]) == at(40)
    assert reclaim_at([make_notice(reclaim_at=None)]) is None


@given(announced=st.floats(0, 3), grace=st.floats(0.001, 3))
def test_a_deadline_that_lies_ahead_never_reads_as_past(announced, grace):
    notice = make_notice(deadline=at(announced + grace))
    assert (
        notice.deadline
        <= notice.announced_deadline
        < notice.deadline + timedelta(seconds=1)
    )
    assert notice.announced_deadline.microsecond == 0
    assert notice.announced_deadline >= at(announced)


offsets = st.one_of(st.none(), st.integers(0, 60))


@given(readable=offsets, reclaim=offsets, withdrawn=offsets, now=st.integers(-1, 70))
def test_an_answer_changes_only_at_the_moments_that_are_named(
    readable, reclaim, withdrawn, now
):
    notice = make_notice(
        readable_at=None if readable is None else at(10 + readable),
        reclaim_at=None if reclaim is None else at(10 + reclaim),
        withdrawn_at=None if withdrawn is None else at(10 + withdrawn),
    )
    same = notice.phase(at(now)) == notice.phase(at(now + 1))
    coming = next_change([notice], at(now))
    assert same or coming == at(now + 1)
    grown = count_changes([notice], at(now + 1)) - count_changes([notice], at(now))
    assert same or grown > 0


@given(readable=st.integers(0, 30), reclaim=st.integers(0, 60))
def test_once_gone_a_machine_stays_gone(readable, reclaim):
    notice = make_notice(readable_at=at(10 + readable), reclaim_at=at(10 + reclaim))
    gone = [notice.phase(at(second)) is Phase.GONE for second in range(80)]
    assert gone == sorted(gone)
    assert gone[-1]


@pytest.mark.parametrize("grace_s", [-1.0, float("nan"), float("inf"), 86_401.0])
def test_an_impossible_grace_window_is_refused(grace_s):
    with pytest.raises(UsageError, match="impossible grace window") as caught:
        check_grace(grace_s)
    assert "seconds" in str(caught.value)


@pytest.mark.parametrize("scale", [0.0, -1.0, 1e-9, 1e9, float("nan"), float("inf")])
def test_an_impossible_time_scale_is_refused(scale):
    with pytest.raises(UsageError, match="impossible time scale"):
        check_time_scale(scale)


@pytest.mark.parametrize(
    ("cloud_s", "left_s", "scale"),
    [
        pytest.param(120, 4, 60, id="compressed-into-half-of-what-is-left"),
        pytest.param(1, 100, 1, id="never-stretched"),
    ],
)
def test_time_is_compressed_so_that_the_deadline_falls_before_the_end(
    cloud_s, left_s, scale
):
    assert fitting_time_scale(cloud_s, left_s=left_s) == scale
    assert cloud_s / scale < left_s
