"""The op log, replayed, is the folder that the program left, byte for byte."""

import os
import sys
from pathlib import Path

import pytest

from spotchaos.launch.supervisor import frames
from spotchaos.launch.supervisor.supervisor import supervisor_available
from spotchaos.persistence import oplog
from spotchaos.persistence.crash_states import build
from spotchaos.persistence.history import History
from spotchaos.persistence.materialise import expected, observed
from spotchaos.persistence.tokens import StateToken

available, reason = supervisor_available()
pytestmark = pytest.mark.skipif(not available, reason=f"no supervisor here: {reason}")

WRITERS = Path(__file__).with_name("writers.py")
PLAIN = [
    "shutil_copies", "copy_ranges", "names", "exchange", "sizes", "punch", "nameless",
    "from_outside", "threads", "children", "large", "reopened", "numpy_all",
    "numpy_memmap",
]  # fmt: skip
WITH_TORCH = [
    "torch_path", "torch_file", "torch_legacy", "torch_in_place_twice",
    "safetensors_save", "torch_from_file", "dcp", "dcp_async",
]  # fmt: skip


def final(history):
    last = StateToken(letter="K", number=history.log.last + 1)
    return expected(history, build(history, last))


def test_every_writer_is_tried(writers):
    assert {w.__name__ for w in writers.WRITERS} == {*PLAIN, *WITH_TORCH}


@pytest.mark.parametrize("name", PLAIN)
def test_the_log_of_a_plain_writer_replays_to_its_folder(bench, name):
    status, history = bench.record(
        [sys.executable, str(WRITERS), name, str(bench.root)]
    )
    assert status == 0
    assert history.log.complete
    assert history.log.last > 2
    assert final(history) == observed(bench.root)


def test_the_log_of_each_writer_on_torch_replays_to_its_folder(bench):
    # One interpreter for all: importing torch takes longer than all of them.
    code = (
        "import sys, warnings; sys.path.insert(0, sys.argv[1]); import writers\n"
        "from pathlib import Path; warnings.simplefilter('ignore')\n"
        "for name in sys.argv[3:]:\n"
        "    folder = Path(sys.argv[2], name); folder.mkdir()\n"
        "    getattr(writers, name)(folder)\n"
    )
    command = [sys.executable, "-c", code, str(WRITERS.parent), str(bench.root)]
    status, history = bench.record(command + WITH_TORCH)
    assert status == 0
    found = observed(bench.root)
    assert final(history) == found
    for name in WITH_TORCH:
        sizes = [
            len(what[1])
            for path, what in found.items()
            if path.startswith(name + "/") and what[0] == "file"
        ]
        assert sum(sizes) > 20_000, name


def test_what_lay_there_before_is_part_of_every_state(bench):
    (bench.root / "old").mkdir()
    (bench.root / "old" / "kept").write_bytes(b"kept")
    (bench.root / "old" / "changed").write_bytes(b"0123456789")
    (bench.root / "old" / "gone").write_bytes(b"gone")
    (bench.root / "link").symlink_to("old/kept")

    def program():
        with open(bench.root / "old" / "changed", "r+b") as file:
            file.write(b"ab")
        os.unlink(bench.root / "old" / "gone")
        os.replace(bench.root / "old", bench.root / "new")
        return 0

    before = observed(bench.root)
    status, history = bench.record(program)
    assert status == 0
    history = History(history.log, bench.root / "new" / "..")
    first = build(history, StateToken.parse("K@1")).things
    assert {p: t.kind for p, t in first.items()} == {
        p: k for p, (k, _) in before.items()
    }
    changed = first["old/changed"].content
    assert b"".join(history.read(changed)) == b"0123456789"
    assert b"".join(history.read(first["old/gone"].content)) == b"gone"
    after = build(history, StateToken.parse(f"K@{history.log.last + 1}")).things
    assert b"".join(history.read(after["new/changed"].content)) == b"ab23456789"
    assert after.keys() == observed(bench.root).keys()


def test_ignored_names_are_neither_recorded_nor_counted(bench):
    def program():
        (bench.root / "train.log").write_text("step 1")
        (bench.root / "events.out.tfevents.1").write_text("x")
        (bench.root / "ckpt").write_text("x")
        return 0

    _, history = bench.record(program)
    assert {op.path for op in history.ops} == {"ckpt"}


def test_two_watched_folders_share_one_order(bench, tmp_path):
    other = tmp_path / "other"
    other.mkdir()

    def program():
        (bench.root / "a").write_text("1")
        (other / "b").write_text("2")
        os.replace(bench.root / "a", other / "c")
        return 0

    _, history = bench.record(program, roots=(str(bench.root), str(other)))
    paths = [(op.kind, op.path, op.to) for op in history.ops]
    assert paths == [
        ("creat", "0/a", None), ("write", "0/a", None),
        ("creat", "1/b", None), ("write", "1/b", None),
        ("rename", "0/a", "1/c"),
    ]  # fmt: skip


def test_marks_are_in_the_log_and_count_as_no_op(bench):
    code = (
        "import sys; sys.stdout.write('sa'); sys.stdout.flush(); print('ved 1', flush=True)\n"
        f"open({str(bench.root / 'a')!r}, 'w').write('x')\n"
        "print('saved 2', flush=True)"
    )
    _, history = bench.record([sys.executable, "-S", "-c", code])
    assert oplog.marks(history.log) == [(1, "saved 1"), (3, "saved 2")]


def test_the_line_that_the_probe_noted_stands_at_the_op(bench, tmp_path):
    table = tmp_path / "frames"
    frames.create(str(table))

    def program():
        notes = frames.FrameTable(str(table))
        notes.note("train.py", 40)
        notes.set_rank(3)
        (bench.root / "a").write_text("1")
        return 0

    _, history = bench.record(program, frames=str(table))
    assert [(op.where, op.rank) for op in history.ops] == [("train.py:40", 3)] * 2


def test_ranks_come_from_the_environment_and_from_parents(bench):
    code = (
        "import os, sys; sys.path.insert(0, '.')\n"
        f"open({str(bench.root / 'a')!r}, 'w').write('x')\n"
        f"os.fork() or os.unlink({str(bench.root / 'a')!r})\n"
    )
    command = ["env", "RANK=2", sys.executable, "-S", "-c", code]
    _, history = bench.record(command)
    assert [op.rank for op in history.ops] == [2, 2, 2]
    assert len({op.pid for op in history.ops}) == 2


def test_data_can_be_left_out(bench):
    _, history = bench.record(
        lambda: (bench.root / "a").write_bytes(b"x" * 1000) and 0, discard_data=True
    )
    assert [op.length for op in history.ops] == [0, 1000]
    assert not bench.log.with_name("ops.jsonl.data").exists()


def test_the_exit_status_comes_back(bench):
    def leave():
        sys.exit(7)

    status, _ = bench.record(leave)
    assert os.waitstatus_to_exitcode(status) == 7


@pytest.mark.parametrize("form", [".tmp{}A1", "zarr.{}0a.partial"])
def test_a_second_run_has_the_same_digest_though_its_temporary_names_differ(
    bench, form
):
    def program():
        name = form.format(os.urandom(4).hex())
        (bench.root / name).write_bytes(b"x")
        os.replace(bench.root / name, bench.root / "final")
        return 0

    digests = set()
    for _ in range(2):
        digests.add(oplog.digest(bench.record(program)[1].log))
        bench.clear()
    assert len(digests) == 1


@pytest.mark.parametrize("how", ["in-place", "truncate", "append"])
def test_a_hard_link_is_broken_before_the_program_writes_through_it(
    bench, tmp_path, how
):
    blob = tmp_path / "blob"
    blob.write_bytes(b"kept for the next state")
    (bench.root / "ckpt").hardlink_to(blob)

    def program():
        if how == "truncate":
            os.truncate(bench.root / "ckpt", 4)
        else:
            with open(bench.root / "ckpt", "wb" if how == "in-place" else "ab") as file:
                file.write(b"new")
        return 0

    status, _ = bench.record(program, break_links=True)
    assert status == 0
    assert blob.read_bytes() == b"kept for the next state"
    assert (bench.root / "ckpt").read_bytes() != blob.read_bytes()


def test_what_the_program_linked_itself_stays_linked(bench):
    def program():
        (bench.root / "a").write_bytes(b"one")
        os.link(bench.root / "a", bench.root / "b")
        (bench.root / "a").write_bytes(b"two")
        return 0

    bench.record(program, break_links=True)
    assert (bench.root / "b").read_bytes() == b"two"
