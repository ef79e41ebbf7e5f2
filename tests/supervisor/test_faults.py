"""Faults without a kill: the op that a rule names fails as it says, and no other."""

import errno
import os

import pytest

from spotchaos.launch.supervisor.notify_rules import (
    FAULTS,
    FilePoint,
    Gate,
    Rule,
    rule_for,
)
from spotchaos.launch.supervisor.supervisor import supervisor_available
from spotchaos.persistence.crash_states import build
from spotchaos.persistence.materialise import expected, observed
from spotchaos.persistence.tokens import StateToken

available, reason = supervisor_available()
supervised = pytest.mark.skipif(not available, reason=f"no supervisor here: {reason}")


def saves(folder, results):
    """Save three times; tell the errno of each, through a file that is not watched."""

    def program():
        told = []
        for i in range(3):
            try:
                fd = os.open(folder / "tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                try:
                    told.append(str(os.write(fd, bytes([i]) * 10_000)))
                    os.fsync(fd)
                finally:
                    os.close(fd)
                os.replace(folder / "tmp", folder / f"ckpt-{i}")
            except OSError as error:
                told.append(errno.errorcode[error.errno])
        results.write_text(" ".join(told))
        return 0

    return program


CASES = [
    pytest.param(rule_for("enospc", 2), "10000 ENOSPC 10000", id="once"),
    pytest.param(rule_for("eio", 2, onwards=True), "10000 EIO EIO", id="from-then-on"),
    pytest.param(rule_for("short-write", 1, value=4096), "4096 10000 10000", id="short"),
    pytest.param(rule_for("rename-refused", 3), "10000 10000 10000 EPERM", id="rename"),
    pytest.param(rule_for("erofs", 1), "EROFS 10000 10000", id="open"),
    pytest.param(rule_for("fsync-fails", 2), "10000 10000 EIO 10000", id="fsync"),
    pytest.param(
        Rule("rename", "errno", errno.EACCES, path="*-1"), "10000 10000 EACCES 10000",
        id="by-name",
    ),
    pytest.param(rule_for("enospc", 1, rank=5), "10000 10000 10000", id="another-rank"),
]  # fmt: skip


@supervised
@pytest.mark.parametrize(("rule", "told"), CASES)
def test_the_op_that_the_rule_names_fails(bench, tmp_path, rule, told):
    results = tmp_path / "results"
    status, history = bench.record(saves(bench.root, results), rules=(rule,))
    assert status == 0
    assert results.read_text() == told
    final = build(history, StateToken(letter="K", number=history.log.last + 1))
    assert expected(history, final) == observed(bench.root)


@supervised
@pytest.mark.parametrize(
    ("rule", "told"),
    [
        pytest.param(rule_for("link-refused", 2), "link EPERM chmod chmod chmod", id="link"),
        pytest.param(rule_for("chmod-refused", 2), "link link chmod EPERM chmod", id="path"),
        pytest.param(rule_for("chmod-refused", 3), "link link chmod chmod EPERM", id="fd"),
        pytest.param(
            rule_for("chmod-refused", 1, path="*tmp"), "link link chmod EPERM chmod", id="by-name",
        ),
    ],
)  # fmt: skip
def test_links_and_modes_are_refused(bench, tmp_path, rule, told):
    def program():
        (bench.root / "tmp").write_bytes(b"x")
        done = []
        with open(bench.root / "tmp", "rb") as file:
            for name, act in [
                ("link", lambda: os.link(bench.root / "tmp", bench.root / "ckpt-0")),
                ("link", lambda: os.link(bench.root / "tmp", bench.root / "ckpt-1")),
                ("chmod", lambda: os.chmod(bench.root / "ckpt-0", 0o600)),
                ("chmod", lambda: os.chmod(bench.root / "tmp", 0o640)),
                ("chmod", lambda: os.fchmod(file.fileno(), 0o644)),
            ]:
                try:
                    act()
                    done.append(name)
                except OSError as error:
                    done.append(errno.errorcode[error.errno])
        (tmp_path / "results").write_text(" ".join(done))
        return 0

    status, history = bench.record(program, rules=(rule,))
    assert status == 0
    assert (tmp_path / "results").read_text() == told
    mode = 0o640 if told.endswith("EPERM") else 0o644
    assert (bench.root / "tmp").stat().st_mode & 0o777 == mode
    assert history.log.last == 4  # modes have no number


@supervised
def test_a_flipped_bit_and_a_zeroed_page_reach_the_file(bench, tmp_path):
    rules = (
        rule_for("bit-flip", 1, value=8 * 5000 + 3),
        rule_for("zero-page", 2, value=4096),
    )
    _, history = bench.record(saves(bench.root, tmp_path / "results"), rules=rules)
    flipped = bytearray(10_000)
    flipped[5000] = 8
    assert (bench.root / "ckpt-0").read_bytes() == flipped
    zeroed = b"\1" * 4096 + bytes(4096) + b"\1" * 1808
    assert (bench.root / "ckpt-1").read_bytes() == zeroed
    assert (bench.root / "ckpt-2").read_bytes() == b"\2" * 10_000
    final = build(history, StateToken(letter="K", number=history.log.last + 1))
    assert expected(history, final) == observed(bench.root)


@supervised
def test_what_a_resume_reads_is_observed_whoever_reads(bench):
    (bench.root / "ckpt").write_bytes(b"x")
    (bench.root / "folder").mkdir()

    def program():
        os.path.exists(bench.root / "missing")
        os.path.exists(bench.root / "gone" / "deeper")
        os.listdir(bench.root / "folder")
        (bench.root / "ckpt").read_bytes()
        (bench.root / "new").write_bytes(b"y")
        return 0

    _, history = bench.record(program, observe_reads=True)
    asked = [(op.text, op.path) for op in history.ops if op.kind == "question"]
    assert ("look", "missing") in asked
    assert ("look", "gone/deeper") in asked
    assert ("list", "folder") in asked
    assert ("read", "ckpt") in asked


@supervised
@pytest.mark.parametrize("mode", ["wb", "w+b"])
def test_what_an_open_empties_is_not_read_though_it_could_be(bench, mode):
    (bench.root / "tmp").write_bytes(b"a leftover")
    (bench.root / "last").write_bytes(b"a checkpoint")

    def program():
        with open(bench.root / "last", "r+b"), open(bench.root / "tmp", mode) as file:
            file.write(b"new")
        return 0

    _, history = bench.record(program, observe_reads=True)
    asked = [(op.text, op.path) for op in history.ops if op.kind == "question"]
    assert ("read", "last") in asked
    assert ("read", "tmp") not in asked


@pytest.mark.parametrize("fault", FAULTS)
def test_every_named_fault_is_a_rule_that_survives_its_text(fault):
    rule = rule_for(fault, 2, onwards=True, path="*.pt")
    assert Rule.parse(str(rule)) == rule


@pytest.mark.parametrize(
    "text",
    ["write:3", "write:3/half", "rename:2@1", "file-op:27+4096", "fsync:1/after",
     "file-op:9@all", "write:2@0+7"],
)  # fmt: skip
def test_a_file_point_is_read_as_it_is_written(text):
    assert str(FilePoint.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("renam:1", "unknown site 'renam'"),
        ("write:0", "no occurrence from 1 on"),
        ("rename:1/half", "which has no parts"),
        ("write:1/most", "none of /half, /after"),
        ("write:1@x", "no rank after '@'"),
    ],
)
def test_other_texts_are_no_file_point(text, message):
    with pytest.raises(ValueError, match=message):
        FilePoint.parse(text)


def test_occurrences_count_by_rank_and_over_all():
    points = [FilePoint.parse("rename:2@1"), FilePoint.parse("file-op:4@all")]
    gate = Gate(points, [])
    arrivals = [("rename", 0), ("rename", 1), ("write", 0), ("rename", 1)]
    found = [gate.arrive(kind, ("a",), rank).point for kind, rank in arrivals]
    assert found[:3] == [None, None, None]
    assert found[3] in points
    assert gate.counts() == {"file-op": 4, "write": 1, "rename": 3}


def test_points_that_follow_a_signal_count_from_when_it_was_sent():
    sent = []
    points = [FilePoint.parse("write:1"), FilePoint.parse("+write:2/half")]
    gate = Gate(points, [], lambda: bool(sent))
    arrivals = [gate.arrive("write", ("a",), 0).point for _ in range(3)]
    assert arrivals == [points[0], None, None]
    sent.append("TERM")
    arrivals = [gate.arrive("write", ("a",), 0).point for _ in range(3)]
    assert arrivals == [None, points[1], None]
    assert str(points[1]) == "+write:2/half"
    assert gate.not_reached() == []
    assert gate.counts() == {"file-op": 6, "write": 6}
