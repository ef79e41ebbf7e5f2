"""A rank that died earlier: the others get as far as they can without it."""

import pytest

from spotchaos.persistence.crash_states import build
from spotchaos.persistence.rank_cuts import Barrier, early_tokens, is_possible, ranks
from spotchaos.persistence.tokens import StateToken


@pytest.fixture
def two_ranks(scribe):
    """Each rank writes its shard; rank 0 then writes and renames the metadata."""
    for rank in (0, 1):
        scribe.rank = rank
        scribe.creat(f"shard-{rank}")  # 1, 3
        scribe.write(f"shard-{rank}", b"%d" % rank * 10)  # 2, 4
    scribe.rank = 0
    scribe.creat("meta.tmp")  # 5
    scribe.write("meta.tmp", b"both")  # 6
    scribe.rename("meta.tmp", "meta")  # 7
    scribe.rank = 1
    scribe.creat("shard-1b")  # 8
    return scribe.history()


def test_without_a_barrier_the_others_may_publish_what_the_dead_rank_lacks(two_ranks):
    assert ranks(two_ranks) == [0, 1]
    tokens = {str(t) for t in early_tokens(two_ranks)}
    assert "K@8,r1=4" in tokens
    layout = build(two_ranks, StateToken.parse("K@8,r1=4"))
    assert layout.things["shard-1"].content.size == 0
    assert layout.things["meta"].content.size == 4


def test_nobody_passes_a_barrier_that_the_dead_rank_has_not_reached(two_ranks):
    # Both have written before rank 0 begins the metadata.
    barriers = [Barrier(((0, 5), (1, 8)))]
    tokens = {str(t) for t in early_tokens(two_ranks, barriers)}
    assert not {t for t in tokens if t.startswith("K@8,r1=4")}
    assert not is_possible(two_ranks, StateToken.parse("K@8,r1=4"), barriers)
    assert is_possible(two_ranks, StateToken.parse("K@5,r1=3"), barriers)


def test_an_op_on_what_the_dead_rank_made_cannot_have_happened(scribe):
    scribe.rank = 1
    scribe.creat("theirs")  # 1
    scribe.write("theirs", b"x")  # 2
    scribe.rank = 0
    scribe.creat("mine")  # 3
    scribe.rename("theirs", "taken")  # 4
    scribe.creat("later")  # 5
    history = scribe.history()
    tokens = {str(t) for t in early_tokens(history)}
    assert "K@4,r1=1" in tokens
    assert "K@4,r1=2" in tokens
    assert not {t for t in tokens if t.startswith(("K@5", "K@6"))}


def test_every_state_that_is_drawn_is_possible(two_ranks):
    barriers = [Barrier(((0, 5), (1, 8)))]
    tokens = list(early_tokens(two_ranks, barriers))
    assert tokens
    assert all(is_possible(two_ranks, token, barriers) for token in tokens)
