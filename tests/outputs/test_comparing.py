"""Outputs are compared by their records: what is missing, twice, other, torn or foreign."""

import gzip
import io
import itertools
import json
import sqlite3
import tarfile
import zipfile

import numpy
import pytest
import torch
from safetensors.torch import save_file

from spotchaos.outputs.comparing import compare
from spotchaos.outputs.learning import learn
from spotchaos.outputs.masks import Rules

ROWS = [{"id": i, "label": f"cat{i}", "score": i / 7} for i in range(40)]


def tree(folder):
    return {
        str(p.relative_to(folder)): p for p in sorted(folder.rglob("*")) if p.is_file()
    }


def put(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if callable(content):
            content(path)
        else:
            path.write_bytes(content)
    return tree(folder)


@pytest.fixture
def differences(tmp_path):
    """Compare files with those of two equal runs; return kinds, with their examples."""

    calls = itertools.count()

    def differences(base, seen, **rules):
        folder = tmp_path / str(next(calls))
        first = put(folder / "base", base)
        second = put(folder / "again", base)
        learned = learn(first, second, Rules(**rules))
        assert learned.parting is None
        found = compare(first, put(folder / "seen", seen), learned.rules)
        return {one.kind: one for one in found}

    return differences


def jsonl(rows):
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def table(rows):
    lines = ["id,label,score", *(f"{r['id']},{r['label']},{r['score']}" for r in rows)]
    return ("\n".join(lines) + "\n").encode()


def text(rows):
    return "".join(f"{r['label']} is {r['score']:.4f}\n" for r in rows).encode()


def sqlite(rows):
    def write(path):
        path.unlink(missing_ok=True)
        base = sqlite3.connect(path)
        base.execute("create table results (id integer, label text, score real)")
        base.executemany("insert into results values (:id, :label, :score)", rows)
        base.commit()
        base.close()

    return write


def parquet(rows):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow, which reads Parquet")
    from pyarrow import parquet as files

    def write(path):
        files.write_table(pyarrow.Table.from_pylist(rows), path)

    return write


RECORDS = {
    "out.jsonl": jsonl,
    "out.csv": table,
    "out.txt": text,
    "out.db": sqlite,
    "out.parquet": parquet,
}


@pytest.mark.parametrize("name", RECORDS)
def test_equal_records_are_no_difference(differences, name):
    write = RECORDS[name]
    assert differences({name: write(ROWS)}, {name: write(ROWS)}) == {}


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_that_is_not_there_is_missing(differences, name):
    write = RECORDS[name]
    found = differences({name: write(ROWS)}, {name: write(ROWS[:17] + ROWS[18:])})
    assert list(found) == ["missing"]
    assert found["missing"].count == 1


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_that_is_there_twice_is_repeated(differences, name):
    write = RECORDS[name]
    seen = ROWS[:20] + ROWS[16:]
    found = differences({name: write(ROWS)}, {name: write(seen)})
    assert list(found) == ["repeated"]
    assert found["repeated"].count == 4


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_with_another_value_differs_and_says_in_what(differences, name):
    write = RECORDS[name]
    seen = [{**r, "score": 9.5} if r["id"] == 30 else r for r in ROWS]
    found = differences({name: write(ROWS)}, {name: write(seen)})
    assert list(found) == ["differ"]
    if name != "out.txt":
        assert found["differ"].record == "id 30"
        assert found["differ"].field == "score"
        assert found["differ"].got == "9.5"


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv", "out.db", "out.parquet"])
def test_a_record_of_another_input_is_foreign(differences, name):
    write = RECORDS[name]
    other = {"id": 900, "label": "dog", "score": 0.5}
    found = differences({name: write(ROWS)}, {name: write([*ROWS, other])})
    assert list(found) == ["foreign"]


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv", "out.txt"])
def test_a_line_that_was_cut_is_torn_at_the_end_and_in_the_middle(differences, name):
    whole = RECORDS[name](ROWS)
    for cut in (len(whole) - 5, len(whole) - len(whole.splitlines()[-1])):
        head = whole[: max(cut, 5) - 2]
        found = differences({name: whole}, {name: head})
        assert set(found) <= {"torn", "missing"}
    lines = whole.splitlines(keepends=True)
    merged = b"".join(lines[:20]) + lines[20][:9] + b"".join(lines[20:])
    found = differences({name: whole}, {name: merged})
    assert list(found) == ["torn"], found


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv", "out.parquet"])
def test_records_may_lie_in_another_shard(differences, name):
    suffix, write = name.partition(".")[2], RECORDS[name]

    def shards(*ends):
        starts = (0, *ends[:-1])
        parts = zip(starts, ends, strict=True)
        return {f"p-{n}.{suffix}": write(ROWS[a:b]) for n, (a, b) in enumerate(parts)}

    assert differences(shards(20, 40), shards(15, 30, 40)) == {}
    twice = {**shards(20, 40), f"p-2.{suffix}": write(ROWS[10:13])}
    assert list(differences(shards(20, 40), twice)) == ["repeated"]


def array(rows, dtype="<f4"):
    return lambda path: numpy.save(path, numpy.asarray(rows, dtype))


def test_rows_of_an_array_are_told_by_their_index(differences):
    rows = numpy.arange(1.0, 81.0).reshape(20, 4)
    other, empty = rows.copy(), rows.copy()
    other[7, 2] += 0.5
    empty[9] = 0
    found = differences({"e.npy": array(rows)}, {"e.npy": array(other)})
    assert (found["differ"].record, found["differ"].field) == ("array 7", "[2]")
    found = differences({"e.npy": array(rows)}, {"e.npy": array(empty)})
    assert (found["missing"].record, found["missing"].count) == ("array 9", 1)


def test_an_array_that_is_shorter_than_it_says_is_torn(differences):
    buffer = io.BytesIO()
    numpy.save(buffer, numpy.ones((20, 4)))
    whole = buffer.getvalue()
    for cut in (60, len(whole) - 8):
        assert list(differences({"e.npy": whole}, {"e.npy": whole[:cut]})) == ["torn"]


def zipped(files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def tarred(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_members_of_an_archive_are_read_by_content(differences, pack):
    whole = {"a.jsonl": jsonl(ROWS), "b.bin": bytes(range(1, 256))}
    base = {"o": pack(whole)}
    assert differences(base, {"o": pack(dict(reversed(whole.items())))}) == {}
    less = {**whole, "a.jsonl": jsonl(ROWS[1:])}
    assert "missing" in differences(base, {"o": pack(less)})
    cut = pack(whole)[:700]
    assert "torn" in differences(base, {"o": cut})


def test_what_is_compressed_is_read_whatever_its_header_says(differences):
    early, late = (gzip.compress(jsonl(ROWS), mtime=t) for t in (1, 2))
    assert differences({"o.jsonl.gz": early}, {"o.jsonl.gz": late}) == {}
    assert list(differences({"o.jsonl.gz": early}, {"o.jsonl.gz": early[:-20]})) == [
        "torn"
    ]


def test_tensors_are_told_by_their_names(differences):
    def one(value):
        tensors = {"a": torch.ones(8), "b": torch.full((3,), value)}
        return lambda path: save_file(tensors, path)

    assert differences({"t.st": one(1.0)}, {"t.st": one(1.0)}) == {}
    found = differences({"t.st": one(1.0)}, {"t.st": one(2.0)})
    assert found["differ"].record == "tensors b"
    assert (found["differ"].wanted, found["differ"].got) == ("1.0", "2.0")


def test_what_torch_saves_is_the_same_under_another_name(differences):
    def saved(name, value):
        def write(path):
            torch.save({"x": torch.full((4,), value)}, path.with_name(name))
            path.with_name(name).rename(path)

        return write

    assert (
        differences({"m.pt": saved("m.pt", 1.0)}, {"m.pt": saved("m.tmp", 1.0)}) == {}
    )
    assert differences({"m.pt": saved("m.pt", 1.0)}, {"m.pt": saved("m.tmp", 2.0)})


def test_bytes_that_nobody_can_read_are_torn_where_they_end(differences):
    base = {"i.bin": bytes(range(256)) * 9}
    assert list(differences(base, {"i.bin": base["i.bin"][:900]})) == ["torn"]
    assert list(differences(base, {"i.bin": b""})) == ["torn"]
    twice = base["i.bin"][:600] + base["i.bin"][200:]
    assert list(differences(base, {"i.bin": twice})) == ["repeated"]
    other = base["i.bin"][:600] + b"\xff" + base["i.bin"][601:]
    assert list(differences(base, {"i.bin": other})) == ["differ"]


def test_a_file_that_is_not_there_and_one_too_many(differences):
    files = {f"i{n}.bin": bytes([n]) * 99 for n in range(4)}
    less = {n: c for n, c in files.items() if n != "i2.bin"}
    assert list(differences(files, less)) == ["missing"]
    assert list(differences(files, {**files, "i9.bin": b"\7" * 9})) == ["foreign"]
    assert list(differences(files, {**files, "i9.bin": files["i1.bin"]})) == [
        "repeated"
    ]
    assert list(differences(files, {**files, "i9.bin.tmp": b"1"})) == ["leftover"]
    assert list(differences(files, {**files, "note": b"1"})) == ["besides"]


def test_lines_without_a_key_have_an_order_unless_it_is_said_that_they_have_none(
    differences,
):
    base, seen = {"o.txt": text(ROWS)}, {"o.txt": text(ROWS[::-1])}
    found = differences(base, seen)
    assert "another order" in found["differ"].detail
    assert differences(base, seen, unordered=True) == {}


def test_records_with_a_key_may_come_in_any_order(differences):
    assert differences({"o.jsonl": jsonl(ROWS)}, {"o.jsonl": jsonl(ROWS[::-1])}) == {}


def test_tolerance_and_ignored_fields_are_asked_for(differences):
    near = [{**r, "score": r["score"] + 1e-7} for r in ROWS]
    base, seen = {"o.jsonl": jsonl(ROWS)}, {"o.jsonl": jsonl(near)}
    assert list(differences(base, seen)) == ["differ"]
    assert differences(base, seen, tolerance=(1e-6, 0.0)) == {}
    assert differences(base, seen, ignored=frozenset({"score"})) == {}


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("at", 1.7e9, 1.7e9 + 12.5),
        ("finished_at", "2026-12-01T03:00:00", "2026-12-01T03:00:09Z"),
        ("seconds", 0.12, 0.34),
        ("host", "node-1", "node-2"),
        ("run", "6f9619ff-8b86-d011-b42d-00c04fc964ff", "0" * 32),
    ],
)
def test_what_differs_between_two_runs_and_is_no_result_is_masked(
    tmp_path, name, first, second
):
    ours = put(tmp_path / "1", {"o.jsonl": jsonl([{**r, name: first} for r in ROWS])})
    again = put(tmp_path / "2", {"o.jsonl": jsonl([{**r, name: second} for r in ROWS])})
    learned = learn(ours, again, Rules())
    assert learned.parting is None
    assert name in learned.rules.masked["o.jsonl"]
    cut = put(
        tmp_path / "3", {"o.jsonl": jsonl([{**r, name: second} for r in ROWS[2:]])}
    )
    found = compare(ours, cut, learned.rules)
    assert [(d.kind, d.count) for d in found] == [("missing", 2)]


def test_a_result_that_differs_between_two_runs_is_named(tmp_path):
    ours = put(tmp_path / "1", {"o.jsonl": jsonl(ROWS)})
    other = [{**r, "score": r["score"] + 1} for r in ROWS]
    learned = learn(ours, put(tmp_path / "2", {"o.jsonl": jsonl(other)}), Rules())
    assert learned.parting is not None
    assert (learned.parting.path, learned.parting.field) == ("o.jsonl", "score")


def test_a_line_of_text_may_hold_a_time(tmp_path):
    lines = [f"2026-12-0{n}T10:00:00 item {n % 3} took {n}.5 s\n" for n in (1, 2)]
    ours, again = (
        put(tmp_path / str(n), {"o.txt": line.replace("item 2", "item 1").encode()})
        for n, line in enumerate(lines)
    )
    assert learn(ours, again, Rules()).parting is None


def test_a_database_says_how_often_it_was_tried_and_that_is_no_result(differences):
    tried = [{**row, "attempts": 1, "worker": "w1"} for row in ROWS]
    again = [{**row, "attempts": 2, "worker": "w2"} for row in ROWS]
    assert differences({"q.jsonl": jsonl(tried)}, {"q.jsonl": jsonl(again)}) == {}


def test_a_database_may_say_in_a_table_of_its_own_how_the_work_went(differences):
    def written(starts):
        def write(path):
            sqlite(ROWS)(path)
            base = sqlite3.connect(path)
            base.execute("create table log (line text)")
            base.executemany("insert into log values (?)", [["start"]] * starts)
            base.commit()
            base.close()

        return write

    assert differences({"o.db": written(1)}, {"o.db": written(3)}) == {}


def test_a_state_file_may_count_how_often_it_was_begun(differences):
    def state(**more):
        return json.dumps({"done": 40, "meta": {"resumed_from": 0, **more}}).encode()

    base, again = {"state.json": state()}, {"state.json": state(resumed_from=12)}
    assert differences(base, again) == {}
    assert differences(base, {"state.json": state(rows=3)})
