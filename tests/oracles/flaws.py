"""The state of the synthetic program, and what may go wrong with it in a resume."""

from __future__ import annotations

import functools
import hashlib
import random
from dataclasses import dataclass, field, replace

BLOCK = 624


def digest(*parts):
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


@functools.lru_cache
def shuffled(count, seed):
    ids = [str(i) for i in range(count)]
    if seed != repr("fixed"):
        random.Random(seed).shuffle(ids)
    return tuple(ids)


@dataclass
class Stream:
    """A Mersenne twister, as far as fingerprints know it."""

    seed: object
    used: int = 0

    def draw(self, words=2):
        value = digest("draw", self.seed, self.used, words)
        self.used += words
        return value

    def mark(self):
        block, position = divmod(self.used, BLOCK)
        return (
            digest("block", self.seed, block),
            digest("block", self.seed, block + 1),
            position,
        )

    def copy(self):
        return Stream(self.seed, self.used)


STREAMS = ("rng.python", "rng.numpy", "rng.torch", "rng.generators")


@dataclass
class State:
    """The whole training state of all ranks after a step."""

    step: int
    weights: str
    buffers: list
    optimizer: str
    scheduler: int
    scaler: str
    averages: str
    streams: list  # for each rank: name -> Stream
    epoch: int = 0
    position: int = 0  # batches of the epoch that were trained on
    order_seed: object = None

    def copy(self):
        return replace(
            self,
            buffers=list(self.buffers),
            streams=[{n: s.copy() for n, s in each.items()} for each in self.streams],
        )


@dataclass(frozen=True)
class Flaw:
    """What goes wrong in a resume; nothing by default.

    lost: components that are left as a fresh start has them; "position" (of the epoch),
        "order" (of the epoch, drawn anew from the stream as it is then), "epoch".
    foreign: components that come from nowhere.
    stale: component -> which checkpoint before the chosen one it comes from (1, 2, ...).
    disturbed: stream -> words drawn between its restore and the first step.
    """

    lost: frozenset = frozenset()
    foreign: frozenset = frozenset()
    stale: dict = field(default_factory=dict)
    disturbed: dict = field(default_factory=dict)
    older: int = 0  # resumes from that many checkpoints before the newest
    ahead: int = 0  # resumes from that many checkpoints after the newest: nobody's
    restarts: bool = False
    skip_batches: int = 0  # fetched and never trained on
    next_epoch: bool = False  # goes on with the epoch after the one that was left
    renumbers: bool = False  # its loader counts what is left of the epoch from 0
    reorders_sum: bool = False  # gradients of the first step differ in the last bits
    hidden: bool = False  # something in no component decides the first step
    scheduler_ahead: int = 0
    ranks: tuple | None = None  # which ranks the flaw strikes; None: all
    extra_steps: int = 0
    dtypes: dict = field(default_factory=dict)
    rank_older: dict = field(default_factory=dict)  # rank -> as `older`, weights too

    def injects(self, rank):
        return self.ranks is None or rank in self.ranks


PERFECT = Flaw()
