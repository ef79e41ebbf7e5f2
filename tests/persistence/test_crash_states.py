"""Weak protocols break where theory says so, and the right one never does."""

import hashlib
from collections import Counter

import pytest
from hypothesis import given, strategies as st

from spotchaos.errors import PlanError
from spotchaos.persistence.crash_states import (
    Bounds,
    Tally,
    build,
    cuts,
    distinct,
    enumerate_states,
)
from spotchaos.persistence.materialise import expected
from spotchaos.persistence.models import EXT4, KILL, MODELS, POSIX, Level
from spotchaos.persistence.tokens import StateToken

SAVES = 4


def parts(step):
    body = [b"%06d" % step, bytes([step]) * 9000, bytes([255 - step]) * 5000]
    return [*body, hashlib.sha256(b"".join(body)).digest()]


def step_of(content):
    whole = hashlib.sha256(content[:-32]).digest() == content[-32:]
    return int(content[:6]) if whole else None


def put(scribe, path, step):
    at = 0
    for part in parts(step):
        scribe.write(path, part, at)
        at += len(part)


def in_place(scribe):
    for step in range(1, SAVES + 1):
        scribe.creat("last") if step == 1 else scribe.trunc("last")
        put(scribe, "last", step)
        yield


def replaced(scribe, sync=False):
    for step in range(1, SAVES + 1):
        scribe.creat("tmp")
        put(scribe, "tmp", step)
        if sync:
            scribe.fsync("tmp")
        scribe.rename("tmp", "last")
        if sync:
            scribe.fsyncdir()
        yield


def numbered(scribe):
    for step in range(1, SAVES + 1):
        scribe.creat("tmp")
        put(scribe, "tmp", step)
        scribe.rename("tmp", f"step-{step}")
        if step > 2:
            scribe.unlink(f"step-{step - 2}")
        yield


def full(scribe):
    yield from replaced(scribe, sync=True)


def outcomes(protocol, scribe, model):
    """Resume from every state: `torn`, `lost`, `scratch` or `ok`, counted."""
    acknowledged = [0, *(scribe.ops[-1].number + 1 for _ in protocol(scribe))]
    history = scribe.history()
    tally = Tally()
    states = distinct(history, enumerate_states(history, model, tally=tally), tally)
    found = Counter()
    for state in states:
        latest = (state.latest or state.token).number
        done = max(s for s, n in enumerate(acknowledged) if n <= latest)
        files = {p: b for p, (_, b) in expected(history, state.layout).items()}
        numbers = [int(p[5:]) for p in files if p.startswith("step-")]
        name = f"step-{max(numbers)}" if numbers else "last"
        step = step_of(files[name]) if name in files else 0
        found[
            "torn" if step is None
            else "ok" if step >= done
            else "lost" if step else "scratch"
        ] += 1  # fmt: skip
    return found, tally


def test_saving_in_place_breaks_under_a_mere_kill(scribe):
    found, _ = outcomes(in_place, scribe, KILL)
    assert found["torn"] > 50
    assert found["ok"] == SAVES + 1
    assert found["lost"] == found["scratch"] == 0


@pytest.mark.parametrize("protocol", [replaced, numbered, full])
def test_a_rename_makes_every_kill_harmless(make_scribe, protocol):
    found, tally = outcomes(protocol, make_scribe(), KILL)
    assert set(found) == {"ok"}
    assert tally.by_content > 60


@pytest.mark.parametrize("model", [EXT4, POSIX])
@pytest.mark.parametrize("protocol", [in_place, replaced, numbered])
def test_without_fsync_power_loss_tears_and_loses(make_scribe, protocol, model):
    found, _ = outcomes(protocol, make_scribe(), model)
    assert found["torn"]
    assert found["ok"]
    if protocol is not in_place:
        assert found["lost"]
        assert found["scratch"]


@pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))
@pytest.mark.parametrize("deviations", [1, 2])
def test_the_full_protocol_survives_everything(make_scribe, model, deviations):
    scribe = make_scribe()
    acknowledged = [0, *(scribe.ops[-1].number + 1 for _ in full(scribe))]
    history = scribe.history()
    bounds = Bounds(deviations=deviations, cap=10_000)
    states = list(enumerate_states(history, model, bounds))
    assert len(states) > 30
    for state in states:
        done = max(s for s, n in enumerate(acknowledged) if n <= state.token.number)
        files = expected(history, state.layout)
        step = step_of(files["last"][1]) if "last" in files else 0
        assert step is not None, state.token
        assert step >= done, state.token


@pytest.mark.parametrize("missing", ["fsync", "fsyncdir"])
def test_the_full_protocol_with_one_sync_less_does_not(make_scribe, missing):
    scribe = make_scribe()
    setattr(scribe, missing, lambda *_: None)
    found, _ = outcomes(full, scribe, POSIX)
    assert found["torn" if missing == "fsync" else "lost"]


def test_ext4_forces_the_bytes_of_a_rename_over_a_name_but_not_to_a_new_one(
    make_scribe,
):
    scribe = make_scribe()
    list(replaced(scribe))
    history = scribe.history()
    first, second = [op.number for op in history.ops if op.kind == "rename"][:2]
    for number, torn in ((first, True), (second, False)):
        states = enumerate_states(history, EXT4, Bounds(points=[number + 1]))
        renamed = [s for s in states if s.token.names_before > number]
        contents = [expected(history, s.layout)["last"] for s in renamed]
        assert contents
        assert any(c and step_of(c[1]) is None for c in contents) is torn


def test_an_fsync_of_a_file_commits_earlier_names_on_ext4_only(scribe):
    scribe.creat("a")
    scribe.creat("b")
    scribe.fsync("b")
    history = scribe.history()
    names = {
        model.name: {
            frozenset(s.layout.things)
            for s in enumerate_states(history, model, Bounds(points=[4]))
        }
        for model in (EXT4, POSIX)
    }
    assert names["ext4"] == {frozenset("ab")}
    assert frozenset() in names["posix"]
    assert frozenset("b") in names["posix"]


def test_a_size_set_before_the_bytes_can_be_all_that_is_left(scribe):
    # What safetensors does: the final size first, then the bytes, no fsync.
    scribe.creat("tmp")
    scribe.trunc("tmp", 8192)
    scribe.write("tmp", b"x" * 8192)
    scribe.rename("tmp", "model")
    history = scribe.history()
    states = enumerate_states(history, EXT4, Bounds(points=[5]))
    contents = {expected(history, s.layout).get("model", (0, None))[1] for s in states}
    assert bytes(8192) in contents


def test_an_fsync_before_the_last_buffer_leaves_a_file_of_no_bytes(scribe):
    # What DCP of torch 2.13 does with its metadata.
    scribe.creat("m.tmp")
    scribe.fsync("m.tmp")
    scribe.write("m.tmp", b"pickled")
    scribe.rename("m.tmp", "m")
    scribe.fsyncdir()
    history = scribe.history()
    state = build(history, StateToken.parse("S@6:A,n2=0"))
    assert expected(history, state) == {"m": ("file", b"")}
    recipes = {s.layout.recipe() for s in enumerate_states(history, POSIX)}
    assert state.recipe() in recipes


def test_a_lost_folder_takes_along_what_lies_in_it(scribe):
    scribe.mkdir("d")
    scribe.creat("d/x")
    scribe.write("d/x", b"1")
    scribe.fsync("d/x")
    scribe.fsyncdir("d")
    history = scribe.history()
    assert build(history, StateToken.parse("S@6:A,-1")).things == {}
    assert set(build(history, StateToken.parse("S@6:0,+1")).things) == {"d", "d/x"}


def test_a_renamed_folder_keeps_its_files_and_they_their_edits(scribe):
    scribe.mkdir("d")
    scribe.creat("d/x")
    scribe.write("d/x", b"one")
    scribe.rename("d", "e")
    scribe.write("e/x", b"two!", 0)
    history = scribe.history()
    assert (
        expected(history, build(history, StateToken.parse("K@4")))["d/x"][1] == b"one"
    )
    assert (
        expected(history, build(history, StateToken.parse("K@6")))["e/x"][1] == b"two!"
    )
    lost = expected(history, build(history, StateToken.parse("S@6:A,-4")))
    assert lost["d/x"][1] == b"two!"


def test_old_ops_have_persisted_if_a_window_is_given(scribe):
    scribe.creat("a")
    scribe.write("a", b"x" * 10)
    scribe.now_s += 60
    scribe.creat("b")
    history = scribe.history()
    for window, always in ((None, False), (30, True)):
        states = enumerate_states(history, POSIX, Bounds(window_s=window))
        last = [s for s in states if s.token.number == 4]
        assert all("a" in s.layout.things for s in last) is always


def test_the_cap_keeps_the_simplest_and_is_told(make_scribe):
    scribe = make_scribe()
    for i in range(20):
        scribe.creat(f"f{i}")
        scribe.write(f"f{i}", b"x" * 10_000)
    history, tally = scribe.history(), Tally()
    states = list(enumerate_states(history, POSIX, Bounds(cap=5, points=[41]), tally))
    assert len(states) == 5
    assert tally.capped_points == 1
    assert [s.token.deviations for s in states] == sorted(
        s.token.deviations for s in states
    )


def test_equal_states_are_kept_once_by_their_simplest_name(scribe):
    scribe.creat("a")
    scribe.write("a", b"same")
    scribe.write("a", b"same")
    history, tally = scribe.history(), Tally()
    states = distinct(history, enumerate_states(history, KILL, tally=tally), tally)
    tokens = [str(s.token) for s in states]
    assert tally.drawn >= tally.by_recipe > tally.by_content == len(states)
    assert "K@3" in tokens
    assert "K@4" not in tokens
    (kept,) = (s for s in states if str(s.token) == "K@3")
    assert str(kept.latest).startswith("K@4")


@given(st.integers(1, 50_000_000))
def test_cuts_lie_inside_the_write(length):
    assert all(0 < cut < length for cut in cuts(length))


def test_a_state_beyond_the_log_is_an_error(scribe):
    scribe.creat("a")
    with pytest.raises(PlanError, match="beyond the 1 recorded ops"):
        build(scribe.history(), StateToken.parse("K@5"))
    with pytest.raises(PlanError, match="no such part"):
        build(scribe.history(), StateToken.parse("K@1+3"))


TOKENS = st.one_of(
    st.builds(
        StateToken, letter=st.just("K"), number=st.integers(1, 99),
        through=st.integers(0, 9999),
        early=st.lists(st.tuples(st.integers(0, 7), st.integers(1, 99)), max_size=2).map(tuple),
    ),
    st.builds(
        StateToken, letter=st.just("E"), number=st.integers(1, 99),
        names_before=st.integers(1, 99),
        levels=st.lists(st.tuples(st.integers(1, 9), st.sampled_from(Level)), max_size=2).map(tuple),
    ),
    st.builds(
        StateToken, letter=st.just("S"), number=st.integers(1, 99),
        base=st.sampled_from("A0"),
        omitted=st.lists(st.integers(1, 99), max_size=2).map(tuple),
        included=st.lists(st.integers(1, 99), max_size=2).map(tuple),
        levels=st.lists(st.tuples(st.integers(1, 9), st.sampled_from(Level)), max_size=2).map(tuple),
    ),
)  # fmt: skip


@given(TOKENS)
def test_a_token_is_read_as_it_is_written(token):
    assert StateToken.parse(str(token)) == token


@pytest.mark.parametrize("text", ["", "K", "K@", "K@x", "Q@1", "E@3", "E@3:n1=0", "S@1:B",
                                  "K@1:m3", "K@3,n1=0", "E@3:m3,-4", "S@3+4:A"])  # fmt: skip
def test_other_texts_name_no_state(text):
    with pytest.raises(PlanError, match="names no crash state"):
        StateToken.parse(text)


def test_simplest_is_kill_then_ext4_then_posix_then_fewest_then_earliest():
    texts = ["K@2", "K@9", "K@1+3", "E@1:m1", "E@1:m1,n2=0", "S@1:A", "S@1:0"]
    tokens = [StateToken.parse(text) for text in texts]
    assert [str(t) for t in sorted(tokens, key=lambda t: t.simplicity)] == texts
