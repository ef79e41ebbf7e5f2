"""A launcher that outlives a rank starts all of them anew: each start is an attempt."""

from __future__ import annotations

import pytest
from traces import make_marks, write

from spotchaos.model import Attempt, AttemptTrace, Ended, Left, Request, Stored
from spotchaos.oracles.progress import SHARED_STORE
from spotchaos.trace.reading import read_restarts
from spotchaos.trial.split_restarts import split_at_restarts

RANKS = (0, 1)


def start(folder, pid, *, at_s, steps, argv="train.py", bye=False):
    """Write what two ranks left that began at a moment, one step each second."""
    for rank in RANKS:
        marks = make_marks(
            steps=steps, rank=rank, pid=pid + rank, start_s=at_s, bye=bye, save_at=0
        )
        marks[0] = {**marks[0], "argv": ["python", argv], "world_size": 2}
        write(folder, marks, name=f"{pid + rank}-aa")


def attempt(**given):
    defaults = {
        "number": 1,
        "trace": AttemptTrace(ranks={}, world_size=2, processes=2, torch_seen=True),
        "command": ("torchrun", "train.py"),
        "ended": Ended.EXITED,
        "exit_code": 0,
        "wall_s": 60.0,
        "started_at_s": 1.0,
        "signal": "KILL",
        "signalled_step": 3,
        "stuck": True,
    }
    return Attempt(**{**defaults, **given})


def test_each_start_of_the_ranks_has_a_trace_of_its_own(tmp_path):
    start(tmp_path, 10, at_s=1.0, steps=3)
    start(tmp_path, 20, at_s=9.0, steps=0)
    start(tmp_path, 30, at_s=12.0, steps=5, bye=True)
    found = read_restarts(tmp_path, injected_at_s=5.0)
    assert [restart.trace.completed for restart in found] == [3, 0, 5]
    assert [restart.began_at_s for restart in found] == [0.0, 9.0, 12.0]
    assert [sorted(restart.trace.ranks) for restart in found] == [[0, 1]] * 3


def test_what_else_begins_after_the_signal_is_no_restart(tmp_path):
    start(tmp_path, 10, at_s=1.0, steps=3)
    start(tmp_path, 20, at_s=9.0, steps=0, argv="upload.py")
    assert read_restarts(tmp_path, injected_at_s=5.0) == ()


def test_a_rank_that_says_again_who_it_is_has_not_been_restarted(tmp_path):
    marks = make_marks(steps=3, pid=10, start_s=1.0)
    again = {**marks[0], "t": 7.0, "rank": 1, "world_size": 2}
    write(tmp_path, [*marks[:-1], again, marks[-1]])
    assert read_restarts(tmp_path, injected_at_s=5.0) == ()


def test_an_attempt_without_a_restart_is_one():
    assert split_at_restarts(attempt()) == [attempt()]


@pytest.mark.parametrize(
    ("ended", "exit_code", "last"),
    [
        (Ended.EXITED, 0, Ended.FINISHED),
        (Ended.EXITED, 1, Ended.FAILED),
        (Ended.HUNG, None, Ended.HUNG),
    ],
)
def test_the_end_belongs_to_the_last_start(tmp_path, ended, exit_code, last):
    start(tmp_path, 10, at_s=1.0, steps=3)
    start(tmp_path, 20, at_s=9.0, steps=4)
    start(tmp_path, 30, at_s=20.0, steps=5)
    starts = read_restarts(tmp_path, injected_at_s=5.0)
    given = {"ended": ended, "exit_code": exit_code, "left": Left(), "trouble": "ours"}
    parts = split_at_restarts(attempt(restarts=starts, **given))
    assert [part.number for part in parts] == [1, 2, 3]
    assert [part.ended for part in parts] == [Ended.EXITED, Ended.FAILED, last]
    assert [part.exit_code for part in parts] == [None, None, exit_code]
    assert [part.signal for part in parts] == ["KILL", None, None]
    assert [part.is_restart for part in parts] == [False, True, True]
    assert [part.left for part in parts] == [None, None, Left()]
    assert [part.trouble for part in parts] == [None, None, "ours"]
    assert not parts[0].stuck
    assert [part.wall_s for part in parts] == [8.0, 11.0, 41.0]


def test_a_start_that_the_launcher_made_good_before_a_step_is_left_out(tmp_path):
    start(tmp_path, 10, at_s=1.0, steps=3)
    start(tmp_path, 20, at_s=9.0, steps=0, bye=True)
    start(tmp_path, 30, at_s=20.0, steps=5)
    starts = read_restarts(tmp_path, injected_at_s=5.0)
    parts = split_at_restarts(attempt(restarts=starts))
    assert [part.trace.completed for part in parts] == [3, 5]


def test_the_store_that_torchrun_shares_is_named():
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in SHARED_STORE


def test_what_was_asked_of_the_store_belongs_to_the_start_that_asked(tmp_path):
    start(tmp_path, 10, at_s=1.0, steps=3)
    start(tmp_path, 20, at_s=9.0, steps=4)
    asked = tuple(
        Request(at_s, "PutObject", "write", "bucket/a", 200)
        for at_s in (2.0, 8.9, 9.0, 70.0)
    )
    stored = Stored(objects={"bucket/a": 3}, texts={}, requests=asked)
    starts = read_restarts(tmp_path, injected_at_s=5.0)
    parts = split_at_restarts(attempt(restarts=starts, stored=stored))
    assert [part.stored.requests for part in parts] == [asked[:2], asked[2:]]
    assert [part.stored.objects for part in parts] == [{"bucket/a": 3}] * 2
