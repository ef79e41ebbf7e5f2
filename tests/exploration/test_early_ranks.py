"""No state of an early rank is called wrong before a real kill has let the others get there."""

from collections import Counter
from types import SimpleNamespace

import pytest

from spotchaos.explore import early_ranks
from spotchaos.explore.early_ranks import RealKills
from spotchaos.persistence.history import History
from spotchaos.persistence.oplog import Entry, FileOp, OpLog
from spotchaos.persistence.tokens import StateToken

# Rank 1 writes its shard; rank 0 waits for it, then names the checkpoint.
MADE = [(0, "shard-0"), (1, "shard-1"), (0, "meta"), (0, "later")]


@pytest.fixture
def record():
    ops = tuple(
        FileOp(kind="creat", number=n, node=n + 1, path=path, rank=rank)
        for n, (rank, path) in enumerate(MADE, 1)
    )
    start = (Entry(path="", node=1, kind="dir"),)
    return SimpleNamespace(history=History(OpLog(start=start, ops=ops)))


class Kills(RealKills):
    """Says what real kills would: rank 0 gets no further than its first op."""

    really = 0

    def _really(self, rank, number):
        self.really += 1
        return Counter({0: 1, rank: 0})


def test_what_the_others_did_not_reach_is_no_state(record):
    kills = Kills(None, record)
    assert not kills.confirm(StateToken.parse("K@4,r1=2"))  # meta without shard-1
    assert kills.confirm(StateToken.parse("K@3,r1=2"))
    assert kills.really == 1  # one kill tells of all states of that rank and op


def test_no_more_ranks_are_killed_than_there_is_time_for(record, monkeypatch):
    monkeypatch.setattr(early_ranks, "MOST_KILLS", 0)
    kills = Kills(None, record)
    assert not kills.confirm(StateToken.parse("K@3,r1=2"))
    assert kills.left_out == {(1, 2)}
