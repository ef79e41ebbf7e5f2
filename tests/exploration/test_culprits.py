"""Which op a run of failing kill states is blamed on, and what that makes of it."""

import pytest

from spotchaos.explore.crash_classes import Case, Result, difference
from spotchaos.explore.root_op_search import before_failures, trace_back
from spotchaos.model import (
    Attempt,
    AttemptTrace,
    Ended,
    Finding,
    Judgement,
    RankTrace,
    Trial,
    Verdict,
)
from spotchaos.persistence.crash_states import CrashState, build
from spotchaos.persistence.history import History
from spotchaos.persistence.oplog import Entry, FileOp, OpLog
from spotchaos.persistence.tokens import StateToken
from spotchaos.recording.recorded_run import Recorded, cut_of

TEXT = b"step5.pt"
NEW = {"kind": "creat", "path": "0/step5.pt", "node": 20}
FILLED = {"kind": "write", "path": "0/step5.pt", "node": 20, "offset": 0, "length": 5}
POINTER = (
    {"kind": "creat", "path": "0/current-one", "node": 21},
    {"kind": "write", "path": "0/current-one", "node": 21, "offset": 0, "length": 8},
)
NAMED = {"kind": "rename", "path": "0/current-one", "to": "0/go-on", "node": 21}


def recorded(*ops, blob=TEXT):
    start = (Entry(path="", node=1, kind="dir"), Entry(path="0", node=9, kind="dir"))
    numbered = tuple(
        FileOp(number=n, at_s=float(n), where=f"train.py:{n}", **op)
        for n, op in enumerate(ops, 1)
    )
    history = History(OpLog(start=start, ops=numbered, blob=blob))
    trace = AttemptTrace({}, world_size=1, processes=1, torch_seen=True)
    attempt = Attempt(1, ("python",), Ended.FINISHED, 0, trace, wall_s=1.0)
    return Recorded(attempt, history, 0.0, frozenset())


def resumed(record, fails, points):
    """Return cases and results of kills before these ops, of which some fail.

    `fails` are their numbers, or number -> finding.
    """
    said = fails if isinstance(fails, dict) else dict.fromkeys(fails, "resume-failed")
    rank = RankTrace(
        rank=0, states={}, finish=None, steps=(), saves=(), loads=(), counts={}
    )
    trace = AttemptTrace({0: rank}, world_size=1, processes=1, torch_seen=True)
    attempt = Attempt(2, ("python",), Ended.FAILED, 1, trace, wall_s=1.0)
    cases, results = [], {}
    for place, number in enumerate(points):
        token = StateToken(letter="K", number=number)
        cases.append(
            Case(record, None, CrashState(token, build(record.history, token)))
        )
        finding = Finding(said[number], "it failed") if number in said else None
        verdict = Verdict.VIOLATED if finding else Verdict.HELD
        judgement = Judgement(verdict, (finding,) if finding else (), (), (), None)
        trial = Trial(1, "file-op:1", (attempt,), wall_s=1.0)
        cut = cut_of(record, token)
        results[place] = Result(token, verdict, trial, judgement, finding, cut, True)
    return cases, results


def blamed(record, fails, points):
    cases, results = resumed(record, fails, points)
    found = trace_back(cases, results, always=(), counts=lambda name: True)
    return {
        one.token.number: (one.finding.name, one.cut.where, one.cut.later_ops)
        for one in found.values()
    }


def test_a_pointer_that_is_moved_first_is_ahead_until_what_it_names_is_whole():
    record = recorded(*POINTER, NAMED, NEW, FILLED)
    found = blamed(record, {4, 5}, range(1, 7))
    assert found == {
        4: ("pointer-ahead", "train.py:3", 0),
        5: ("pointer-ahead", "train.py:3", 1),
    }


def test_a_pointer_that_is_written_in_place_is_itself_torn():
    record = recorded(NEW, FILLED, *POINTER)
    found = blamed(record, {4}, range(1, 6))
    assert found == {4: ("torn-checkpoint", "train.py:3", 0)}


def test_a_pointer_that_is_written_in_place_and_early_is_ahead():
    record = recorded(*POINTER, NEW, FILLED)
    found = blamed(record, {2, 3, 4}, range(1, 6))
    assert {name for name, _, _ in found.values()} == {"pointer-ahead"}
    assert {where for _, where, _ in found.values()} == {"train.py:1"}


@pytest.mark.parametrize(
    ("length", "name"), [(1, "pointer-ahead"), (5000, "torn-checkpoint")]
)
def test_a_counter_that_goes_first_is_ahead_though_it_names_no_file(length, name):
    counted = (
        {"kind": "creat", "path": "0/n.tmp", "node": 21},
        {"kind": "write", "path": "0/n.tmp", "node": 21, "length": length},
        {"kind": "rename", "path": "0/n.tmp", "to": "0/n", "node": 21},
    )
    record = recorded(*counted, NEW, FILLED, blob=b"7" * length)
    found = blamed(record, {4, 5}, range(1, 7))
    assert {name for name, _, _ in found.values()} == {name}
    assert {where for _, where, _ in found.values()} == {"train.py:3"}


def test_an_empty_marker_that_goes_first_is_ahead():
    marker = {"kind": "creat", "path": "0/DONE", "node": 21}
    found = blamed(recorded(marker, NEW, FILLED), {2, 3}, range(1, 5))
    assert {name for name, _, _ in found.values()} == {"pointer-ahead"}
    # A file that is empty only until it is written is itself torn.
    written = {**marker, "kind": "write", "offset": 0, "length": 5}
    found = blamed(recorded(marker, written, NEW), {2}, range(1, 5))
    assert {name for name, _, _ in found.values()} == {"torn-checkpoint"}


@pytest.mark.parametrize(
    "away",
    [
        pytest.param({"kind": "unlink"}, id="deleted"),
        pytest.param({"kind": "rename", "to": "0/old.pt"}, id="moved-away"),
    ],
)
def test_what_is_taken_away_first_is_missed_until_it_is_there_again(away):
    gone = {"path": "0/step5.pt", "node": 20, **away}
    new = {"kind": "creat", "path": "0/new", "node": 30}
    filled = {**new, "kind": "write", "offset": 0, "length": 5}
    put = {"kind": "rename", "path": "0/new", "to": "0/step5.pt", "node": 30}
    record = recorded(NEW, FILLED, gone, new, filled, put)
    found = blamed(record, {4, 5, 6}, range(3, 8))
    assert found == {
        n: ("deleted-before-saved", "train.py:3", n - 4) for n in (4, 5, 6)
    }


def test_a_leftover_that_stays_when_what_was_missed_is_back_is_a_flaw_of_its_own():
    new = {"kind": "creat", "path": "0/new.pt", "node": 30}
    away = {"kind": "rename", "path": "0/step5.pt", "to": "0/old.pt", "node": 20}
    put = {"kind": "rename", "path": "0/new.pt", "to": "0/step5.pt", "node": 30}
    swept = {"kind": "unlink", "path": "0/old.pt", "node": 20}
    record = recorded(NEW, FILLED, new, away, put, swept)
    said = {5: "silent-restart", 6: "leftover-blocks-save"}
    found = blamed(record, said, range(3, 8))
    assert found == {
        5: ("deleted-before-saved", "train.py:4", 0),
        6: ("leftover-blocks-save", "train.py:5", 0),
    }


def test_a_restart_since_the_only_checkpoint_was_emptied_is_of_a_torn_one():
    emptied = {**FILLED, "kind": "trunc", "length": 0}
    again = {**FILLED, "data_off": 1}
    record = recorded(NEW, FILLED, emptied, again)
    found = blamed(record, {4: "silent-restart"}, range(1, 6))
    assert found == {4: ("torn-checkpoint", "train.py:3", 0)}
    # A new file beside it empties nothing: then the old one was there to be used.
    record = recorded(NEW, FILLED, *POINTER)
    found = blamed(record, {4: "silent-restart"}, range(1, 6))
    assert found == {4: ("silent-restart", "train.py:3", 0)}


@pytest.mark.parametrize(("made", "swept"), [("creat", "unlink"), ("mkdir", "rmdir")])
def test_a_lock_that_is_deleted_after_the_save_is_a_leftover(made, swept):
    lock = {"path": "0/saving", "node": 30}
    put = {**NEW, "kind": "rename", "to": "0/last.pt", "over": 10}
    record = recorded({**lock, "kind": made}, NEW, FILLED, put, {**lock, "kind": swept})
    found = blamed(record, {2, 3, 4, 5}, range(1, 7))
    assert {name for name, _, _ in found.values()} == {"leftover-blocks-save"}
    assert {where for _, where, _ in found.values()} == {"train.py:1"}


def test_a_rename_that_leaves_another_name_unwritten_takes_nothing_away():
    record = recorded(NEW, {**NEW, "kind": "rename", "to": "0/a"}, *POINTER)
    found = blamed(record, {3, 4}, range(1, 6))
    assert {name for name, _, _ in found.values()} == {"torn-checkpoint"}


def test_what_another_file_loses_while_resumes_fail_is_a_flaw_of_its_own():
    other = {"kind": "creat", "path": "0/at.json", "node": 30}
    told = {**other, "kind": "write", "offset": 0, "length": 2}
    new = {"kind": "creat", "path": "0/tmp", "node": 31}
    put = {
        "kind": "rename",
        "path": "0/tmp",
        "to": "0/step5.pt",
        "node": 31,
        "over": 20,
    }
    emptied = {**other, "kind": "trunc", "length": 0}
    anew = {**told, "data_off": 4}
    record = recorded(NEW, FILLED, other, told, new, put, emptied, anew)
    said = {7: "step-count-wrong", 8: "resume-failed"}
    found = blamed(record, said, range(5, 10))
    assert {number: where for number, (_, where, _) in found.items()} == {
        7: "train.py:6",
        8: "train.py:7",
    }
    # The same failure as before is no new flaw.
    found = blamed(record, dict.fromkeys(said, "resume-failed"), range(5, 10))
    assert {where for _, where, _ in found.values()} == {"train.py:6"}


def test_where_the_beginning_was_not_resumed_the_state_before_is_asked_for():
    record = recorded(*POINTER, NAMED, NEW, FILLED)
    points = [5, 6]
    assert blamed(record, {5}, points) == {}
    [case] = before_failures(*resumed(record, {5}, points))
    assert case.state.token.number == 4
    [case] = before_failures(*resumed(record, {4, 5}, [4, *points]))
    assert case.state.token.number == 3
    assert before_failures(*resumed(record, {4, 5}, [3, 4, *points])) == []
    assert set(blamed(record, {4, 5}, [3, 4, *points])) == {4, 5}


def test_crash_points_left_out_amid_writes_are_like_the_one_before():
    written = [{**FILLED, "offset": 5 * n} for n in range(9)]
    record = recorded(*POINTER, NAMED, NEW, *written)
    points = [1, 2, 3, 4, 5, 6, 9, 12, 13, 14]
    fails = {4, 5, 6, 9, 12, 13}
    assert before_failures(*resumed(record, fails, points)) == []
    found = blamed(record, fails, points)
    assert {where for _, where, _ in found.values()} == {"train.py:3"}
    assert set(found) == fails


def test_a_state_is_shown_against_one_that_works():
    synced = {"kind": "fsync", "path": "0/step5.pt", "node": 20}
    record = recorded(NEW, FILLED, synced)
    cases, results = resumed(record, {3}, (2, 3))
    assert difference(cases, results, 1) == [
        "against K@2, which works:",
        "step5.pt: 5 bytes (025d42) (works with: 0 bytes (99aa06))",
    ]
    cases, results = resumed(record, {4}, (3, 4))
    assert difference(cases, results, 1) == [
        "the same as K@3 leaves, at which less had been saved"
    ]
