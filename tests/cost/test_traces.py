"""Reading traces, and what is said of files that are none."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from spotchaos.cost import Trace, TraceCapacity, read_traces
from spotchaos.errors import UsageError


def write(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_folder_is_all_its_traces_in_order_of_their_names(tmp_path):
    for name in ("b", "a"):
        write(tmp_path / f"{name}.json", {"metadata": {"gap_seconds": 1}, "data": [1]})
    assert [trace.name for trace in read_traces([tmp_path])] == ["a", "b"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("nothing", "it is no JSON"),
        ("[" * 100_000, "it is no JSON"),
        ([1, 2], "metadata.gap_seconds is no number of seconds"),
        ({"data": [1]}, "metadata.gap_seconds is no number of seconds"),
        ({"metadata": {"gap_seconds": 0}, "data": [1]}, "metadata.gap_seconds"),
        ({"metadata": {"gap_seconds": True}, "data": [1]}, "metadata.gap_seconds"),
        ({"metadata": {"gap_seconds": 1}, "data": []}, "data is no list of counts"),
        ({"metadata": {"gap_seconds": 1}, "data": 3}, "data is no list of counts"),
        ({"metadata": {"gap_seconds": 1}, "data": [1, -1]}, "no count of machines"),
        ({"metadata": {"gap_seconds": 1}, "data": [1, 0.5]}, "no count of machines"),
        ({"metadata": {"gap_seconds": 1}, "data": ["1"]}, "no count of machines"),
    ],
)
def test_what_is_no_trace_is_refused_with_the_reason(tmp_path, content, said):
    path = write(tmp_path / "z.json", content)
    with pytest.raises(UsageError, match=said):
        read_traces([path])


def test_a_missing_file_and_an_empty_folder_are_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot read"):
        read_traces([tmp_path / "none.json"])
    with pytest.raises(UsageError, match="no trace"):
        read_traces([tmp_path])


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=30),
    st.integers(0, 10**9),
    st.integers(1, 3),
)
def test_windows_that_are_asked_for_one_by_one_are_those_of_the_ticks(
    ticks, begins, nodes
):
    trace = Trace.from_ticks("z", ticks, gap_s=1)
    gap = trace.gap_us
    source = TraceCapacity(trace, nodes, begins=begins)
    at, windows = 0, []
    for _ in range(8):
        window = source.next(at)
        if window is None or window.end is None:
            break
        windows.append(window)
        at = window.end

    def can_have(moment):
        return ticks[(moment + begins) // gap % len(ticks)] >= nodes

    if source.next(0) is None:
        assert max(ticks) < nodes
    elif source.next(0).end is None:
        assert min(ticks) >= nodes
    for window in windows:
        assert can_have(window.start)
        assert can_have(window.end - 1)
        assert not can_have(window.end)
    for before, after in pairwise(windows):
        assert not can_have(after.start - 1)
        assert before.end < after.start
