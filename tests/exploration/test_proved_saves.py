"""Which saves are told by resumes that went on from them, where nobody saw one."""

from dataclasses import replace

import pytest

from spotchaos.explore.crash_classes import Case, Result
from spotchaos.explore.proved_saves import with_proved, with_the_same
from spotchaos.model import (
    Attempt,
    AttemptTrace,
    Ended,
    Finding,
    Judgement,
    RankTrace,
    Resume,
    SaveMark,
    StepMark,
    Trial,
    Verdict,
)
from spotchaos.oracles.durability import Cut
from spotchaos.persistence.crash_states import CrashState, build
from spotchaos.persistence.history import History
from spotchaos.persistence.oplog import Entry, FileOp, OpLog
from spotchaos.persistence.tokens import StateToken
from spotchaos.recording.recorded_run import Recorded

APPENDED = ("write", "0/log.bin")
NOTED = ("write", "0/notes.txt")


def recorded(*windows):
    """Return a run that makes ops of these kinds and paths after each of its steps.

    Step n ends at 10 n s; the ops of the log are a second apart.
    """
    ops = [FileOp(number=1, at_s=1.0, kind="creat", path="0/log.bin", node=20)]
    for step, window in enumerate(windows, 1):
        for place, (kind, path) in enumerate(window, 1):
            at_s = 10.0 * step + place
            fields = {"kind": kind, "path": path, "node": 20, "offset": 0, "length": 1}
            op = FileOp(number=len(ops) + 1, at_s=at_s, **fields)
            ops.append(op)
    start = (Entry(path="", node=1, kind="dir"), Entry(path="0", node=9, kind="dir"))
    history = History(OpLog(start=start, ops=tuple(ops), blob=b"0"))
    steps = tuple(
        StepMark(step=n, components={}, t_s=10.0 * n)
        for n in range(1, len(windows) + 1)
    )
    rank = RankTrace(
        rank=0, states={}, finish=None, steps=steps, saves=(), loads=(), counts={}
    )
    trace = AttemptTrace({0: rank}, world_size=1, processes=1, torch_seen=True)
    attempt = Attempt(1, ("python",), Ended.FINISHED, 0, trace, wall_s=1.0)
    return Recorded(attempt, history, 0.0, frozenset())


def resumed(record, joined):
    """Return cases and results: token -> the step from which the resume went on."""
    cases, results = [], {}
    for number, (text, step) in enumerate(joined.items()):
        token = StateToken.parse(text)
        cases.append(
            Case(record, None, CrashState(token, build(record.history, token)))
        )
        went_on = Resume(2, step, {}, None, lost_steps=0)
        judgement = Judgement(Verdict.HELD, (), (), (went_on,), "bitwise")
        idle = replace(record.attempt, trace=replace(record.attempt.trace, ranks={}))
        trial = Trial(1, "file-op:1", (record.attempt, idle), wall_s=1.0)
        results[number] = Result(
            token, Verdict.HELD, trial, judgement, None, Cut("write"), True
        )
    return cases, results


def told(record):
    [rank] = record.attempt.trace.ranks.values()
    return [(s.step, s.begun_at_s, s.ended_at_s) for s in rank.saves]


def test_a_save_is_whole_where_the_first_resume_went_on_from_it():
    record = recorded([APPENDED, APPENDED], [APPENDED])  # ops 2, 3 and 4
    joined = {"K@2": 0, "K@3": 0, "K@4": 1, "K@5": 2}
    found = with_proved(record, *resumed(record, joined))
    assert told(found) == [(1, 11.0, 16.5), (2, 21.0, 21.5)]
    # It is whole for a kill before op 4, and not yet for one before op 3.
    [before], [after] = ([*found.cut(n)[-1].trace.ranks.values()] for n in (3, 4))
    assert [save.ended_at_s for save in before.saves] == [None]
    assert [save.ended_at_s for save in after.saves] == [16.5, None]


def test_a_resume_that_has_nothing_left_to_do_proves_the_last_save():
    record = recorded([APPENDED, APPENDED], [APPENDED])
    found = with_proved(record, *resumed(record, {"K@4": 1, "K@5": None}))
    assert [step for step, _, _ in told(found)] == [1, 2]


@pytest.mark.parametrize("token", ["K@2+1", "S@4:A", "E@4:m4"])
def test_only_a_state_that_a_kill_between_ops_leaves_tells_of_a_save(token):
    record = recorded([APPENDED, APPENDED], [APPENDED])
    assert with_proved(record, *resumed(record, {token: 1})) is None


def test_a_resume_that_broke_a_promise_tells_of_no_save():
    record = recorded([APPENDED], [APPENDED])
    cases, results = resumed(record, {"K@3": 1})
    found = Finding("rng-not-restored", "it was not")
    for broken in (
        replace(results[0], verdict=Verdict.VIOLATED, finding=found),
        replace(results[0], verdict=Verdict.UNKNOWN),
        replace(results[0], finding=found),
    ):
        assert with_proved(record, cases, {0: broken}) is None


def test_who_was_seen_to_save_is_left_alone():
    record = recorded([APPENDED])
    [rank] = record.attempt.trace.ranks.values()
    seen = replace(rank, saves=(SaveMark(1, 1, ("best.pt",), None, 10.5, 11.5),))
    trace = replace(record.attempt.trace, ranks={0: seen})
    record = replace(record, attempt=replace(record.attempt, trace=trace))
    assert with_proved(record, *resumed(record, {"K@3": 1})) is None


def test_a_resume_that_writes_the_same_after_the_same_step_saves_it():
    record = recorded([APPENDED], [NOTED], [NOTED, APPENDED], [APPENDED])
    proved = with_proved(record, *resumed(record, {"K@3": 1, "K@6": 3, "K@7": 4}))
    again = recorded([NOTED], [NOTED, APPENDED, APPENDED], [NOTED])
    # It went on from step 1: its second step is the third, its third the fourth.
    assert told(with_the_same(again, proved, 1)) == [(2, 21.0, 27.0)]
