"""Replaying a log gives what a plain model of a folder gives, whatever the ops."""

import os
from dataclasses import replace

from hypothesis import given, strategies as st

from spotchaos.persistence import materialise, oplog
from spotchaos.persistence.contents import Content, Edit, apply
from spotchaos.persistence.crash_states import build, enumerate_states
from spotchaos.persistence.history import History
from spotchaos.persistence.materialise import Materialiser, expected, observed
from spotchaos.persistence.models import KILL, MODELS
from spotchaos.persistence.tokens import StateToken

NAMES = ("a", "b", "c")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from(NAMES), st.integers(0, 40), st.binary(min_size=1, max_size=20)),
        st.tuples(st.just("trunc"), st.sampled_from(NAMES), st.integers(0, 50)),
        st.tuples(st.just("rename"), st.sampled_from(NAMES), st.sampled_from(NAMES)),
        st.tuples(st.just("unlink"), st.sampled_from(NAMES)),
        st.tuples(st.just("fsync"), st.sampled_from(NAMES)),
        st.tuples(st.just("fsyncdir")),
    ),
    max_size=25,
)  # fmt: skip


def play(scribe, steps):
    """Make the steps that are possible; return the folder after each op."""
    folder, after = {}, [{}]
    for kind, *rest in steps:
        if kind == "fsyncdir":
            scribe.fsyncdir()
        elif kind == "write":
            name, at, content = rest
            if name not in folder:
                scribe.creat(name)
                folder = {**folder, name: b""}
                after.append(folder)
            scribe.write(name, content, at)
            old = folder[name].ljust(at, b"\0")
            folder = {**folder, name: old[:at] + content + old[at + len(content) :]}
        elif rest[0] not in folder or (kind == "rename" and rest[0] == rest[1]):
            continue
        elif kind == "trunc":
            scribe.trunc(*rest)
            folder = {
                **folder,
                rest[0]: folder[rest[0]][: rest[1]].ljust(rest[1], b"\0"),
            }
        elif kind == "rename":
            scribe.rename(*rest)
            folder = dict(folder)
            folder[rest[1]] = folder.pop(rest[0])
        elif kind == "unlink":
            scribe.unlink(*rest)
            folder = {k: v for k, v in folder.items() if k != rest[0]}
        else:
            scribe.fsync(*rest)
        after.append(folder)
    return after


@given(STEPS)
def test_every_prefix_of_a_log_is_the_folder_at_that_moment(make_scribe, steps):
    scribe = make_scribe()
    after = play(scribe, steps)
    history = scribe.history()
    for done, folder in enumerate(after):
        layout = build(history, StateToken(letter="K", number=done + 1))
        found = {p: content for p, (_, content) in expected(history, layout).items()}
        assert found == folder


@given(STEPS)
def test_what_a_token_names_is_what_was_enumerated(make_scribe, steps):
    scribe = make_scribe()
    play(scribe, steps)
    history = scribe.history()
    for model in MODELS.values():
        for state in enumerate_states(history, model):
            again = build(history, StateToken.parse(str(state.token)))
            assert again.recipe() == state.layout.recipe()


@given(STEPS)
def test_power_loss_can_always_lose_nothing(make_scribe, steps):
    scribe = make_scribe()
    play(scribe, steps)
    history = scribe.history()
    whole = {
        s.layout.recipe()
        for s in enumerate_states(history, KILL)
        if not s.token.through
    }
    for name, token in (("ext4", "E@{0}:m{0}"), ("posix", "S@{0}:A")):
        for number in range(1, history.log.last + 2):
            layout = build(history, StateToken.parse(token.format(number)))
            assert layout.recipe() in whole, name


@given(STEPS)
def test_what_was_synced_is_in_every_later_state(make_scribe, steps):
    scribe = make_scribe()
    after = play(scribe, steps)
    for name in after[-1]:
        scribe.fsync(name)
    scribe.fsyncdir()
    history = scribe.history()
    for model in MODELS.values():
        last = history.log.last + 1
        for state in enumerate_states(history, model):
            if state.token.number == last and not state.token.through:
                found = expected(history, state.layout)
                assert {p: c for p, (_, c) in found.items()} == after[-1], state.token


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.binary(min_size=1, max_size=15)), max_size=12
    )
)
def test_extents_are_gap_free_and_merged(writes):
    content, plain, blob = Content(()), b"", b""
    for at, data in writes:
        content = apply(content, Edit("write", at, at + len(data), "data", len(blob)))
        blob += data
        plain = plain.ljust(at, b"\0")
        plain = plain[:at] + data + plain[at + len(data) :]
    assert content.size == len(plain)
    ends = [0, *(e.end for e in content.extents)]
    assert [e.start for e in content.extents] == ends[:-1]
    read = b"".join(
        blob[e.offset : e.offset + e.end - e.start]
        if e.source
        else bytes(e.end - e.start)
        for e in content.extents
    )
    assert read == plain


def test_a_materialised_state_holds_what_the_layout_says(scribe, tmp_path):
    scribe.mkdir("d")
    scribe.creat("d/big")
    scribe.write("d/big", b"x" * 3_000_000)
    scribe.link("d/big", "d/same")
    scribe.symlink("d/big", "latest")
    scribe.trunc("d/big", 2_500_000)
    history = scribe.history()
    layout = build(history, StateToken.parse("K@7"))
    (tmp_path / "blobs").mkdir()
    for number, options in enumerate(({}, {"blobs": tmp_path / "blobs"})):
        target = tmp_path / f"state-{number}"
        Materialiser(history, **options).write(layout, target)
        assert observed(target) == expected(history, layout)
        assert (target / "d" / "big").samefile(target / "d" / "same")


def test_random_parts_of_temporary_names_do_not_change_the_digest(make_scribe):
    digests = set()
    for name in (".tmpAb3dE9", ".tmpZz8yX7"):
        scribe = make_scribe()
        scribe.creat(name)
        scribe.rename(name, "model.safetensors")
        digests.add(oplog.digest(scribe.history().log))
    scribe = make_scribe()
    scribe.creat("other")
    digests.add(oplog.digest(scribe.history().log))
    assert len(digests) == 2


def test_links_to_blobs_are_used_once_in_a_state(scribe, tmp_path):
    for name in "ab":
        scribe.creat(name)
        scribe.write(name, b"x" * 2_000_000)
    scribe.creat("c")
    scribe.write("c", b"y" * 2_000_000)
    scribe.link("c", "d")
    history = scribe.history()
    layout = build(history, StateToken(letter="K", number=history.log.last + 1))
    (tmp_path / "blobs").mkdir()
    writer = Materialiser(history, tmp_path / "blobs")
    for target in (tmp_path / "one", tmp_path / "two"):
        writer.write(layout, target, links=True)
        assert observed(target) == expected(history, layout)
    assert (tmp_path / "one" / "a").samefile(tmp_path / "two" / "a")
    assert not (tmp_path / "one" / "c").samefile(tmp_path / "two" / "c")
    assert (tmp_path / "one" / "c").samefile(tmp_path / "one" / "d")


def test_blobs_that_are_not_used_any_more_make_room(scribe, tmp_path, monkeypatch):
    monkeypatch.setattr(materialise, "MOST_KEPT_BYTES", 3_500_000)
    scribe.creat("a")
    numbers = [scribe.write("a", bytes([n]) * 2_000_000) for n in range(4)]
    history = scribe.history()
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    writer = Materialiser(history, blobs)
    for number in [*numbers, numbers[0]]:
        layout = build(history, StateToken(letter="K", number=number + 1))
        writer.write(layout, tmp_path / f"s{number}", merge=True, links=True)
        assert observed(tmp_path / f"s{number}") == expected(history, layout)
        assert sum(blob.stat().st_size for blob in blobs.iterdir()) <= 3_500_000
    assert writer.is_large(layout)


def test_settled_bytes_are_on_the_disk_once_and_read_as_before(make_scribe, tmp_path):
    scribe = make_scribe()
    scribe.creat("a")
    for part in range(4):
        scribe.write("a", bytes([part]) * 700_000, part * 700_000)
    scribe.trunc("a")
    last = scribe.write("a", b"z" * 1_500_000)
    log = scribe.history().log
    data = tmp_path / "data"
    data.write_bytes(log.blob)
    history = History(replace(log, data=data))
    states = [StateToken(letter="K", number=n) for n in range(3, last + 2)]
    layouts = [build(history, token) for token in states]
    before = [expected(history, layout) for layout in layouts]
    allocated = data.stat().st_blocks
    (tmp_path / "blobs").mkdir()
    writer = Materialiser(history, tmp_path / "blobs")
    writer.settle(layouts)
    again = History(replace(log, data=data))  # what the recording itself still holds
    assert data.stat().st_blocks < allocated // 4
    assert expected(again, layouts[-1]) != before[-1]
    for number, (layout, was) in enumerate(zip(layouts, before, strict=True)):
        assert expected(history, layout) == was
        writer.write(layout, tmp_path / f"s{number}", links=True)
        assert observed(tmp_path / f"s{number}") == was


def test_files_and_folders_have_the_times_of_their_last_changes(scribe, tmp_path):
    scribe.mkdir("step-9")
    for name in ("9.pt", "12.pt", "10.pt"):
        scribe.creat(name)
        scribe.write(name, b"one")
    scribe.write("9.pt", b"two", 3)
    scribe.rename("12.pt", "11.pt")  # a name says nothing of when it was written
    scribe.mkdir("step-10")
    scribe.creat("step-9/late")
    number = scribe.write("10.pt", b"torn", 3)
    token = StateToken(letter="K", number=number, through=1)
    history = scribe.history()
    Materialiser(history).write(build(history, token), tmp_path / "state")
    times = {
        str(path.relative_to(tmp_path / "state")): path.stat().st_mtime
        for path in (tmp_path / "state").rglob("*")
    }
    assert times.pop("step-9/late") == times["step-9"]
    assert sorted(times, key=times.__getitem__) == [
        "11.pt",
        "10.pt",
        "9.pt",
        "step-10",
        "step-9",
    ]


def test_what_lay_there_before_keeps_the_order_of_its_times(tmp_path):
    start = tmp_path / "start"
    start.mkdir()
    entries = [oplog.Entry(path="", node=1, kind="dir")]
    for node, (name, at_s) in enumerate([("3.pt", 30), ("12.pt", 50), ("6.pt", 40)], 2):
        (start / name).write_bytes(b"old")
        os.utime(start / name, (at_s, at_s))
        entries.append(oplog.Entry(path=name, node=node, kind="file", size=3))
    new = oplog.FileOp(kind="creat", number=1, at_s=0.5, path="new", node=9)
    history = History(oplog.OpLog(start=tuple(entries), ops=(new,)), start)
    layout = build(history, StateToken(letter="K", number=2))
    Materialiser(history).write(layout, tmp_path / "state")
    names = sorted(
        (path.stat().st_mtime, path.name) for path in (tmp_path / "state").iterdir()
    )
    assert [name for _, name in names] == ["3.pt", "6.pt", "12.pt", "new"]
