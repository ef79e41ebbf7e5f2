"""Where a recorded run is cut, and which op is held responsible for a state."""

from dataclasses import replace

import pytest

from spotchaos.explore.crash_points import crash_points, sees_saves, spread
from spotchaos.model import (
    Attempt,
    AttemptTrace,
    Ended,
    RankTrace,
    SaveMark,
    StateMark,
    StepMark,
)
from spotchaos.persistence.crash_states import build
from spotchaos.persistence.history import History
from spotchaos.persistence.materialise import Materialiser, observed
from spotchaos.persistence.oplog import Entry, FileOp, OpLog, digest
from spotchaos.persistence.tokens import StateToken
from spotchaos.recording.recorded_run import (
    Recorded,
    cut_attempt,
    cut_of,
    put,
    without_untouched,
)

ROOT, FOLDER = 1, 2
PATTERNS = ("out/last.pt",)


class FakeView:
    """Keeps what is put into it in a folder, as an overlay's upper would."""

    def __init__(self, folder):
        self.folder = folder
        self.hidden = []

    def fill_places(self, prefix):
        place = self.folder / ("out" if prefix else "work")
        place.mkdir(exist_ok=True)
        return [("", place)]

    def hide(self, paths):
        self.hidden += paths


def history(*ops, start=()):
    roots = [Entry(path="", node=ROOT, kind="dir"), Entry(path="0", node=9, kind="dir")]
    numbered = [
        FileOp(number=n, at_s=float(n), where=f"train.py:{n}", **fields)
        for n, fields in enumerate(ops, 1)
    ]
    blob = b"0123456789abcdef"
    return History(OpLog(start=(*roots, *start), ops=tuple(numbered), blob=blob))


def two_saves():
    """Two saves of four ops each; op 9 belongs to the time after the second."""
    save = (
        {"kind": "creat", "path": "0/tmp", "node": 20},
        {"kind": "write", "path": "0/tmp", "node": 20, "length": 8},
        {"kind": "fsync", "path": "0/tmp", "node": 20},
        {"kind": "rename", "path": "0/tmp", "to": "0/last.pt", "node": 20},
    )
    again = [{**op, "node": 21} for op in save]
    return history(*save, *again, {"kind": "unlink", "path": "0/last.pt", "node": 21})


def recorded(made, **more):
    saves = tuple(
        SaveMark(n, n, ("out/last.pt",), None, begun, begun + 3.5)
        for n, begun in ((1, 1.0), (2, 5.0))
    )
    steps = tuple(StepMark(step=n, components={}, t_s=4.0 * n) for n in (1, 2))
    rank = RankTrace(
        rank=0, states={}, finish=None, steps=steps, saves=saves, loads=(), counts={}
    )
    trace = AttemptTrace({0: rank}, world_size=1, processes=1, torch_seen=True)
    attempt = Attempt(1, ("python", "train.py"), Ended.FINISHED, 0, trace, wall_s=9.0)
    return Recorded(attempt, made, 0.0, frozenset(), **more)


def test_a_cut_attempt_holds_only_what_had_happened():
    before = recorded(two_saves()).cut(6)[-1]
    rank = before.trace.ranks[0]
    assert before.ended is Ended.RECLAIMED
    assert [s.ended_at_s for s in rank.saves] == [4.5, None]
    assert rank.completed == 1


def test_a_cut_attempt_has_no_state_that_was_seen_after_it():
    made = recorded(two_saves())
    rank = made.attempt.trace.ranks[0]
    # The step that ends at 4 s is followed by a forward, which sees its state, at 4.5 s.
    states = {
        step: StateMark(step, "step", {"weights": str(step)}, t_s=4.0 * step + 0.5)
        for step in (0, 1)
    }
    trace = replace(made.attempt.trace, ranks={0: replace(rank, states=states)})
    whole = replace(made.attempt, trace=trace)
    kept = {
        moment_s: sorted(cut_attempt(whole, moment_s).trace.ranks[0].states)
        for moment_s in (0.25, 3.0, 4.0, 5.0)
    }
    assert kept == {0.25: [], 3.0: [0], 4.0: [0], 5.0: [0, 1]}


def test_a_cut_beyond_the_last_op_keeps_the_whole_run():
    rank = recorded(two_saves()).cut(10)[-1].trace.ranks[0]
    assert [s.ended_at_s for s in rank.saves] == [4.5, 8.5]
    assert rank.completed == 2


def test_a_rank_that_was_killed_earlier_is_cut_there_and_holds_up_the_others():
    alone = recorded(two_saves())  # it ends steps at 4 s and 8 s, its op n is at n s
    rank = alone.attempt.trace.ranks[0]
    trace = replace(alone.attempt.trace, ranks={0: rank, 1: replace(rank, rank=1)})
    both = replace(alone, attempt=replace(alone.attempt, trace=trace))
    ranks = both.cut(9, ((0, 3),))[-1].trace.ranks
    assert [s.ended_at_s for s in ranks[0].saves] == [None]
    assert {n: one.completed for n, one in ranks.items()} == {0: 0, 1: 0}
    ranks = both.cut(9, ((0, 6),))[-1].trace.ranks
    assert [s.ended_at_s for s in ranks[0].saves] == [4.5, None]
    # The other one waits for it at the end of the second step, with its part saved.
    assert ranks[1].completed == 1
    # Who is not traced holds nobody up.
    assert both.cut(9, ((7, 3),)) == both.cut(9)


def test_a_store_into_a_map_is_blamed_and_not_the_op_before_it():
    ops = (
        FileOp(kind="trunc", number=1, path="0/map", node=20, length=8, where="a.py:1"),
        FileOp(kind="mwrite", node=20, length=4),
        FileOp(kind="msync", number=2, path="0/map", node=20, where="a.py:2"),
        FileOp(kind="mwrite", node=20, offset=4, length=4),
    )
    start = (
        Entry(path="", node=ROOT, kind="dir"),
        Entry(path="0", node=9, kind="dir"),
        Entry(path="0/map", node=20, kind="file", size=8, data_off=0),
    )
    log = OpLog(start=start, ops=ops, blob=b"0123456789abcdef")
    record = recorded(History(log))
    cuts = [cut_of(record, StateToken.parse(f"K@{n}")) for n in (1, 2, 3)]
    assert [(c.kind, c.path, c.where) for c in cuts] == [
        (None, None, None),
        ("mwrite", "map", "a.py:2"),
        ("mwrite", "map", None),  # nothing was called after it
    ]


def test_each_save_has_its_crash_points_and_the_one_after_its_last_op():
    record = recorded(two_saves())
    assert crash_points(record, PATTERNS, saves=1) == [1, 2, 3, 4, 5]
    assert crash_points(record, PATTERNS, saves=2) == list(range(1, 11))


def test_what_is_written_after_a_step_and_before_its_save_is_of_that_save():
    counter = {"kind": "write", "path": "0/n", "node": 30, "length": 8}
    record = recorded(history(*[counter] * 9))
    late = replace(record.attempt.trace.ranks[0].saves[1], begun_at_s=7.5)
    rank = record.attempt.trace.ranks[0]
    ranks = {0: replace(rank, saves=(rank.saves[0], late))}
    trace = replace(record.attempt.trace, ranks=ranks)
    record = replace(record, attempt=replace(record.attempt, trace=trace))
    # Step 1 ends with op 4.
    assert crash_points(record, PATTERNS, saves=1) == [1, 2, 3, 4, 5]


def test_a_run_that_is_not_seen_to_save_is_cut_where_it_writes_between_steps():
    record = recorded(two_saves())  # its steps end with ops 4 and 8
    assert not sees_saves(record, ("other.pt",))
    assert sees_saves(record, PATTERNS)
    assert crash_points(record, ("other.pt",), saves=1) == list(range(1, 9))
    assert crash_points(record, ("other.pt",), saves=2) == list(range(1, 11))


def test_a_run_that_writes_nothing_has_no_crash_points():
    assert crash_points(recorded(history()), PATTERNS, saves=None) == []


def test_of_many_writes_of_a_later_save_the_inner_ones_are_left_out():
    write = {"kind": "write", "path": "0/tmp", "node": 20, "length": 8}
    record = recorded(history(*[write] * 4, *[write] * 20, write))
    assert crash_points(record, PATTERNS, saves=2) == list(range(1, 27))
    # The second save begins with op 5.
    assert crash_points(record, PATTERNS, saves=None) == [
        *range(1, 7),
        *(7, 15),
        *(24, 25, 26),
    ]


def test_a_run_of_very_many_writes_is_cut_at_few_points():
    write = {"kind": "write", "path": "0/log", "node": 20, "length": 1}
    made = history({"kind": "creat", "path": "0/log", "node": 20}, *[write] * 30_000)
    assert 10 < len(crash_points(recorded(made), PATTERNS, saves=None)) <= 20


def test_many_points_are_spread_evenly():
    assert spread(range(10), 5) == [0, 2, 4, 6, 8]


@pytest.mark.parametrize(
    ("token", "kind", "where"),
    [
        ("K@5", "rename", "train.py:4"),
        ("K@4", "write", "train.py:2"),  # a sync changes nothing that a kill leaves
        ("K@2+3", "write", "train.py:2"),
        ("S@5:A,-4", "rename", "train.py:4"),
        ("S@3:0,+1", "write", "train.py:2"),  # its bytes are lost, not its name
        ("S@5:0,+1", "rename", "train.py:4"),  # the bytes were synced
        ("S@8:0,n20=a", "creat", "train.py:5"),
        ("E@9:m8", "rename", "train.py:8"),
        ("E@9:m9,n21=0", "write", "train.py:6"),
    ],
)
def test_the_op_that_made_the_difference_is_named_with_its_line(token, kind, where):
    cut = cut_of(recorded(two_saves()), StateToken.parse(token))
    assert (cut.kind, cut.where) == (kind, where)
    assert cut.is_power_loss == (token[0] != "K")


def test_a_small_file_named_latest_is_a_pointer_and_a_large_one_is_not():
    for length, expected in ((8, True), (8192, False)):
        made = history(
            {"kind": "creat", "path": "0/latest", "node": 20},
            {"kind": "write", "path": "0/latest", "node": 20, "length": length},
        )
        assert cut_of(recorded(made), StateToken.parse("K@3")).is_pointer is expected


def test_a_state_of_the_users_own_files_is_put_over_them(tmp_path):
    own = Entry(path="0/log", node=30, kind="file", size=4, data_off=0)
    gone = Entry(path="0/old", node=31, kind="dir")
    inner = Entry(path="0/old/a", node=32, kind="file", size=1, data_off=0)
    made = history(
        {"kind": "trunc", "path": "0/log", "node": 30, "length": 2},
        {"kind": "unlink", "path": "0/old/a", "node": 32},
        {"kind": "rmdir", "path": "0/old", "node": 31},
        start=(own, gone, inner),
    )
    record = recorded(made)
    record = Recorded(
        record.attempt, made, 0.0, frozenset({"0", "0/log", "0/old", "0/old/a"})
    )
    view = FakeView(tmp_path)
    layout = build(made, StateToken.parse("K@4"))
    put(view, Materialiser(made), record, layout)
    put(view, Materialiser(made), record, layout)  # what is there is replaced
    assert observed(tmp_path / "work") == {"log": ("file", b"01")}
    assert view.hidden[0] == "old"


def test_files_that_no_op_concerns_are_no_part_of_a_state():
    big = Entry(path="0/data.bin", node=40, kind="file", size=10**9)
    log = history({"kind": "creat", "path": "0/a", "node": 20}, start=(big,)).log
    assert "0/data.bin" not in [e.path for e in without_untouched(log).start]
    kept = without_untouched(log, ["0/data.bin"]).start
    assert "0/data.bin" in [e.path for e in kept]


def test_the_name_of_a_state_does_not_hang_on_files_beside_it():
    beside = (
        Entry(path="0/data", node=17, kind="dir"),
        Entry(path="0/data/a", node=18, kind="file", size=3),
    )
    ops = (
        {"kind": "mkdir", "path": "0/out", "node": 30},
        {"kind": "creat", "path": "0/out/a", "node": 31},
    )
    shifted = [{**op, "node": op["node"] + 5} for op in ops]
    alone = without_untouched(history(*ops).log)
    other = without_untouched(history(*shifted, start=beside).log)
    assert digest(alone) == digest(other)
    assert [op.node for op in alone.ops] == [op.node for op in other.ops]
    assert alone.start == other.start


def test_a_kill_in_a_resume_is_a_plan_of_two_kills():
    record = recorded(two_saves(), plan="file-op:3@all")
    token = StateToken.parse("K@2+4")
    assert record.plan_of(token) == "file-op:3@all,file-op:2@all+4"


def test_a_power_loss_is_no_plan_of_kills():
    assert recorded(two_saves()).plan_of(StateToken.parse("S@5:A,-4")) is None
