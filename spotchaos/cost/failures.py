"""Times between interruptions that are drawn: exponential and Weibull."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

from spotchaos.cost.traces import Trace
from spotchaos.cost.units import us


class Failures(Protocol):
    """How long one machine lives."""

    def __hash__(self) -> int:
        """Tell it from others, by its values."""

    @property
    def mean_s(self) -> float:
        """Mean seconds from getting a machine to losing it."""

    def draw(self, generator: np.random.Generator, nodes: int, count: int) -> list[int]:
        """Draw how long a gang of so many machines lives, so often, in microseconds."""


@dataclass(frozen=True, slots=True)
class Exponential:
    """A machine that is as likely to be taken now as at any other time."""

    mean_s: float

    def draw(self, generator: np.random.Generator, nodes: int, count: int) -> list[int]:
        """Draw lives of a gang; the first of its machines to be taken ends it."""
        drawn = generator.exponential(us(self.mean_s) / nodes, count)
        return _whole(drawn)

    def __str__(self) -> str:
        return f"one machine is taken every {self.mean_s / 3600:.3g} h, exponential"


@dataclass(frozen=True, slots=True)
class Weibull:
    """A machine that is taken sooner (shape below 1) or later than an exponential one."""

    shape: float
    scale_s: float

    @property
    def mean_s(self) -> float:
        return self.scale_s * math.gamma(1 + 1 / self.shape)

    def draw(self, generator: np.random.Generator, nodes: int, count: int) -> list[int]:
        """Draw lives of a gang, all of whose machines are new at each start."""
        # The least of n Weibull times is Weibull again, of the same shape.
        scale = us(self.scale_s) / nodes ** (1 / self.shape)
        return _whole(generator.weibull(self.shape, count) * scale)

    def __str__(self) -> str:
        said = f"one machine is taken every {self.mean_s / 3600:.3g} h"
        return f"{said}, Weibull of shape {self.shape:g}"


def _whole(drawn: np.ndarray) -> list[int]:
    lives: list[int] = np.clip(np.rint(drawn), 1, 2**62).astype(np.int64).tolist()
    return lives


@lru_cache(maxsize=512)
def drawn_trace(
    failures: Failures,
    nodes: int,
    *,
    down_us: int,
    length_us: int,
    seed: tuple[int, ...],
) -> Trace:
    """Return a trace of machines that each live, are lost, and are there again later.

    Args:
        failures: how long a machine lives.
        nodes: how many there are.
        down_us: from the loss of one until its successor is there.
        length_us: of the trace.
        seed: draws it.
    """
    generator = np.random.default_rng(seed)
    moves: list[tuple[int, int]] = []
    for _ in range(nodes):
        at = 0
        while at < length_us:
            for life in failures.draw(generator, 1, 64):
                at += life
                moves.append((at, -1))
                # However soon its successor is there, the gang has lost one.
                at += max(1, down_us)
                moves.append((at, 1))
    counts: list[tuple[int, int]] = []
    have, before = nodes, 0
    for at, change in sorted(moves):
        end = min(at, length_us)
        if end > before:
            counts.append((have, end - before))
            before = end
        have += change
    return Trace("drawn", 1, tuple(counts))
