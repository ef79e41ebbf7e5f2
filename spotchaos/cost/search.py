"""The best save interval, searched on the simulation itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

# Intervals are tried in steps of this factor, from this much below a first guess to as
# much above it.
FACTOR = math.sqrt(2)
REACH = 64.0
# Around the best one, a parabola through what is within this factor of it: the cost is
# flat there, and the noise of single points is larger than the differences.
NEAR = 4.0


@dataclass(frozen=True, slots=True)
class Searched:
    """The best interval, and what was tried.

    Attributes:
        every: steps from save to save; None: no interval finishes.
        tried: steps -> cost, in order; infinite: it never finishes.
    """

    every: int | None
    tried: tuple[tuple[int, float], ...]


def best_interval(
    cost: Callable[[int], float], *, steps: int, guess: float
) -> Searched:
    """Return the interval at which `cost` is least.

    Args:
        cost: of saving every so many steps; with the same draws for each, so that
            differences are not noise. Infinite: it never finishes.
        steps: of the run.
        guess: a first one, as Young's.
    """
    guess = min(max(1.0, guess), float(steps))
    reach = round(math.log(REACH, FACTOR))
    wanted = {round(guess * FACTOR**i) for i in range(-reach, reach + 1)}
    found = {every: cost(every) for every in sorted(_within(wanted, steps))}
    if not any(math.isfinite(value) for value in found.values()):
        return Searched(None, tuple(found.items()))
    best = min(found, key=lambda every: found[every])
    near = {round(best * NEAR ** (i / 8)) for i in range(-8, 9)}
    for every in sorted(_within(near, steps) - found.keys()):
        found[every] = cost(every)
    best = min(found, key=lambda every: found[every])
    bottom = _bottom(found, best)
    if bottom is not None and bottom not in found and 1 <= bottom <= steps:
        found[bottom] = cost(bottom)
    tried = tuple(sorted(found.items()))
    return Searched(best if bottom is None else bottom, tried)


def _within(wanted: set[int], steps: int) -> set[int]:
    return {min(max(1, every), steps) for every in wanted}


def _bottom(found: dict[int, float], best: int) -> int | None:
    """Return where a curve through the points near the best one has its minimum.

    Overhead is about a/k + b + c k (saves, restarts, lost steps), whose minimum is at
    the root of a/c.
    """
    points = [
        (every, value)
        for every, value in found.items()
        if best / NEAR <= every <= best * NEAR and math.isfinite(value)
    ]
    if len(points) < 5:
        return None
    k = np.array([p[0] for p in points], dtype=float) / best
    values = np.array([p[1] for p in points])
    basis = np.stack([1 / k, np.ones_like(k), k, k * k], axis=1)
    a, _, c, d = np.linalg.lstsq(basis, values, rcond=None)[0].tolist()
    grid = np.geomspace(1 / NEAR, NEAR, 2001)
    curve = a / grid + c * grid + d * grid * grid
    at = int(curve.argmin())
    if at in (0, len(grid) - 1):
        return None
    return max(1, round(float(grid[at]) * best))
