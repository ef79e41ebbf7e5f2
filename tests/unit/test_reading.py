"""What is read from a trace folder, whatever a kill left of it."""

from __future__ import annotations

import json

import pytest
from traces import make_marks, make_save, write

from spotchaos.trace.format import Counters, encode, site_slot
from spotchaos.trace.reading import read_attempt


def make_beside(number, step, at_s, held):
    """Return the marks of a save that a thread beside training made."""
    return [
        {"k": "save", "t": at_s, "n": number, "step": step, "beside": True},
        {"k": "held", "t": at_s, "n": number, "weights": held},
        {"k": "saved", "t": at_s, "n": number, "paths": [f"{number}.pt"]},
    ]


def test_a_whole_trace_is_read_mark_by_mark(tmp_path):
    write(tmp_path, make_marks())
    trace = read_attempt(tmp_path)
    rank = trace.ranks[0]
    assert (trace.world_size, trace.processes, trace.torch_seen) == (1, 1, True)
    assert (trace.completed, trace.observed) == (3, True)
    assert rank.states[2].components == {"weights": "w2", "rng.torch": "b.3"}
    assert rank.states[2].rng["rng.torch"] == ("b", "c", 3)
    assert rank.states[2].dtypes == {"weights": "float32"}
    assert rank.steps[0].samples == ("1", "2")
    assert (rank.steps[0].ids, rank.steps[0].micro, rank.steps[0].loss) == (
        "index",
        2,
        0.5,
    )
    assert rank.counts["step-end"] == 3
    assert rank.counted == {"optimizer": 3}
    assert rank.epochs == {2: 0}
    assert (rank.torch, rank.algorithm, rank.pid) == ("2.13.0", "xxh3_128", 10)
    assert [(load.path, load.via, load.step) for load in rank.loads] == [
        ("last.pt", "torch.load", 0),
        ("last.pt", "read", 0),
    ]


def test_an_empty_and_a_missing_folder_were_never_observed(tmp_path):
    for folder in (tmp_path, tmp_path / "missing"):
        trace = read_attempt(folder)
        assert (trace.ranks, trace.processes, trace.observed) == ({}, 0, False)


def test_a_line_torn_by_the_kill_is_left_out(tmp_path):
    whole = make_marks(bye=False)
    torn = encode({"k": "step", "step": 4, "c": {}})[:9]
    write(tmp_path, whole, tail=torn)
    rank = read_attempt(tmp_path).ranks[0]
    assert (rank.completed, rank.said_bye) == (3, False)


@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(b"\xff\xfe\x00\n", id="no-text"),
        pytest.param(b"[1, 2]\n", id="no-object"),
        pytest.param(b'{"k": "step", "step": null}\n', id="step-without-number"),
        pytest.param(b'{"k": "state", "at": "step"}\n', id="state-without-components"),
        pytest.param(b'{"k": "later-release", "x": 1}\n', id="unknown-mark"),
        pytest.param(b'{"k": "read", "path": null}\n', id="read-of-no-path"),
    ],
)
def test_a_garbled_mark_takes_nothing_from_the_others(tmp_path, garbage):
    write(tmp_path, make_marks(), tail=garbage)
    rank = read_attempt(tmp_path).ranks[0]
    assert (rank.completed, len(rank.states), len(rank.loads)) == (3, 3, 2)


def test_counts_come_from_the_page_of_counters_where_no_farewell_came(tmp_path):
    write(tmp_path, make_marks(bye=False))
    page = Counters(str(tmp_path / "10-aa.counters"), writable=True)
    page.set(0, 3)
    page.set(site_slot("forward"), 4)
    page.close()
    assert read_attempt(tmp_path).ranks[0].counts == {"step-end": 3, "forward": 4}


def test_a_page_cut_short_is_no_page(tmp_path):
    write(tmp_path, make_marks(bye=False))
    (tmp_path / "10-aa.counters").write_bytes(b"\x01")
    assert read_attempt(tmp_path).ranks[0].counts == {}


def test_helpers_without_steps_are_counted_and_left_out(tmp_path):
    write(tmp_path, make_marks())
    for number in (11, 12):
        hello = {"k": "hello", "t": 2.0, "pid": number, "rank": None, "role": "helper"}
        write(tmp_path, [hello], name=f"{number}-aa")
    trace = read_attempt(tmp_path)
    assert (list(trace.ranks), trace.processes) == ([0], 3)


def test_a_launcher_does_not_take_the_rank_of_its_worker(tmp_path):
    launcher = [{"k": "hello", "t": 0.5, "pid": 9, "rank": None, "role": "main"}]
    write(tmp_path, launcher, name="9-aa")
    workers = {
        rank: make_marks(rank=rank, pid=20 + rank, start_s=2.0) for rank in (0, 1)
    }
    for rank, marks in workers.items():
        marks[0]["world_size"] = 2
        write(tmp_path, marks, name=f"2{rank}-aa")
    trace = read_attempt(tmp_path)
    assert {rank: found.pid for rank, found in trace.ranks.items()} == {0: 20, 1: 21}
    assert trace.world_size == 2


def test_of_two_that_claim_a_rank_the_one_that_trained_is_believed(tmp_path):
    write(tmp_path, make_marks(steps=1, pid=30), name="30-aa")
    write(tmp_path, make_marks(steps=5, pid=20), name="20-aa")
    assert read_attempt(tmp_path).ranks[0].pid == 20


def in_turn(tmp_path, *, starts=(0.0, 20.0), counted=("optimizer", "optimizer")):
    """Return what is read of processes of one rank that made three steps each."""
    for n, (start_s, how) in enumerate(zip(starts, counted, strict=True)):
        marks = make_marks(start_s=start_s)
        marks[0]["argv"] = ["python", "train.py", "--seed", str(n)]
        marks[-1]["counted"] = {how: 3}
        write(tmp_path, marks, name=f"1{n}-aa")
    return read_attempt(tmp_path).in_turn


def test_trainings_of_processes_one_after_the_other_are_told_apart(tmp_path):
    assert in_turn(tmp_path) == ("python train.py --seed 0", "python train.py --seed 1")


@pytest.mark.parametrize(
    "how",
    [{"starts": (0.0, 1.0)}, {"counted": ("optimizer", "batch")}],
    ids=["at the same time", "one only evaluates"],
)
def test_one_training_with_what_runs_beside_or_after_it_is_one(tmp_path, how):
    assert in_turn(tmp_path, **how) == ()


def test_a_program_that_fails_before_training_is_known_by_its_exception(tmp_path):
    marks = make_marks(steps=0)
    marks[-1]["exception"] = {
        "type": "FileNotFoundError",
        "message": "no such file",
        "file": "train.py",
        "line": 12,
    }
    write(tmp_path, marks)
    found = read_attempt(tmp_path).ranks[0].exception
    assert (found.type, found.file, found.line) == ("FileNotFoundError", "train.py", 12)


def failed(pid, exception, *, ppid=1, start_s=1.0):
    """Return the marks of a process that fails before it trains."""
    hello, *_, bye = make_marks(steps=0, pid=pid, start_s=start_s)
    return [{**hello, "ppid": ppid}, {**bye, "exception": exception}]


def raised(kind, message, file="run.py", line=3):
    return {"type": kind, "message": message, "file": file, "line": line}


def test_a_launcher_that_reports_its_child_gives_the_reason_of_the_child(tmp_path):
    launcher = raised("CalledProcessError", "returned non-zero exit status 1.")
    marks = failed(10, launcher, start_s=1.0)
    marks[-1]["t"] = 9.0
    write(tmp_path, marks, name="10-aa")
    missing = raised("FileNotFoundError", "rng.pkl", "train.py", 8)
    write(tmp_path, failed(11, missing, ppid=10, start_s=2.0), name="11-aa")
    stranger = raised("OSError", "of nobody")
    write(tmp_path, failed(12, stranger, ppid=1, start_s=3.0), name="12-aa")
    found = read_attempt(tmp_path).ranks[0].exception
    assert (found.type, found.message, found.line) == (
        "FileNotFoundError",
        "rng.pkl",
        8,
    )


def test_an_exception_of_its_own_is_not_exchanged_for_that_of_a_child(tmp_path):
    write(tmp_path, failed(10, raised("ValueError", "no such epoch")), name="10-aa")
    probed = raised("ImportError", "no such module", "probe.py", 1)
    write(tmp_path, failed(11, probed, ppid=10, start_s=2.0), name="11-aa")
    assert read_attempt(tmp_path).ranks[0].exception.type == "ValueError"


SPAWNED = """

-- Process 1 terminated with the following error:
Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/torch/multiprocessing/spawn.py", line 87, in _wrap
    fn(i, *args)
  File "train.py", line 40, in worker
    state = torch.load("last.pt")
            ^^^^^^^^^^^^^^^^^^^^^
  File "/venv/lib/python3.11/site-packages/torch/serialization.py", line 1500, in load
    raise EOFError
pickle.UnpicklingError: pickle data was truncated
second line
"""


def test_a_traceback_quoted_from_another_process_is_read(tmp_path):
    write(tmp_path, failed(10, raised("ProcessRaisedException", SPAWNED)), name="10-aa")
    found = read_attempt(tmp_path).ranks[0].exception
    assert (found.type, found.file, found.line) == ("UnpicklingError", "train.py", 40)
    assert found.message == "pickle data was truncated\nsecond line"


def test_a_message_that_only_speaks_of_a_traceback_stays_as_it_is(tmp_path):
    words = "see above\nTraceback (most recent call last):\nwas printed"
    write(tmp_path, failed(10, raised("RuntimeError", words)), name="10-aa")
    found = read_attempt(tmp_path).ranks[0].exception
    assert (found.type, found.message, found.file) == ("RuntimeError", words, "run.py")


def test_all_writes_between_two_steps_are_one_save(tmp_path):
    marks = make_marks(steps=2, save_at=None, bye=False)
    marks += make_save(1, 2, 9.0, ["ckpt-2/model.pt"]) + make_save(
        2, 2, 9.1, ["ckpt-2/opt.pt"]
    )
    write(tmp_path, marks)
    (save,) = read_attempt(tmp_path).ranks[0].saves
    assert (save.number, save.step) == (1, 2)
    assert save.paths == ("ckpt-2/model.pt", "ckpt-2/opt.pt")
    assert save.ended_at_s == pytest.approx(9.11)
    assert save.state.components == {"weights": "w2"}


def test_a_save_with_one_part_unfinished_has_not_ended(tmp_path):
    marks = make_marks(steps=2, save_at=None, bye=False)
    marks += make_save(1, 2, 9.0, ["a.pt"]) + make_save(2, 2, 9.1, ["b.pt"])[:2]
    write(tmp_path, marks)
    (save,) = read_attempt(tmp_path).ranks[0].saves
    assert save.ended_at_s is None


def test_what_a_background_writer_adds_later_belongs_to_its_save(tmp_path):
    marks = make_marks(steps=3, bye=False)
    marks.append({"k": "saved", "t": 9.0, "n": 1, "paths": ["late.pt"], "late": True})
    write(tmp_path, marks)
    (save,) = read_attempt(tmp_path).ranks[0].saves
    assert save.paths == ("a.pt", "late.pt")


def test_the_last_forward_before_a_step_is_the_one_whose_state_counts(tmp_path):
    marks = make_marks(steps=1, bye=False)
    warm_up = {"k": "state", "t": 1.0, "step": 0, "at": "step", "c": {"weights": "old"}}
    write(tmp_path, [*marks[:4], warm_up, *marks[4:]])
    assert read_attempt(tmp_path).ranks[0].states[0].components["weights"] == "w0"


def test_the_finished_state_is_kept_apart(tmp_path):
    marks = make_marks(steps=3, bye=False)
    marks.append(
        {"k": "state", "t": 9.0, "step": 3, "at": "finish", "c": {"weights": "w3"}}
    )
    write(tmp_path, marks)
    rank = read_attempt(tmp_path).ranks[0]
    assert rank.finish.components == {"weights": "w3"}
    assert 3 not in rank.states


def test_a_loss_that_is_no_number_is_read(tmp_path):
    marks = make_marks(steps=1)
    marks[5]["loss"] = float("nan")
    assert json.dumps(marks[5]["loss"]) == "NaN"
    write(tmp_path, marks)
    loss = read_attempt(tmp_path).ranks[0].steps[0].loss
    assert loss != loss


def test_a_save_beside_training_is_of_the_step_whose_weights_it_holds(tmp_path):
    marks = make_marks(steps=3, bye=False)
    marks += make_beside(2, 3, 5.0, ["other", "w1"])
    marks += make_beside(3, 3, 5.1, ["w2"])
    marks += make_beside(4, 3, 5.2, ["of no step"])
    write(tmp_path, marks)
    first, *saves = read_attempt(tmp_path).ranks[0].saves
    assert (first.of_step, first.is_of_unknown_step) == (2, False)
    assert [(s.step, s.holds, s.of_step) for s in saves] == [
        (3, 1, 1),
        (3, 2, 2),
        (3, None, 3),
    ]
    assert [s.is_of_unknown_step for s in saves] == [False, False, True]
