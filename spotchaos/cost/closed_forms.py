"""Closed forms for exponential interruptions: Young 1974, Daly 2006, and the exact ones.

Times are seconds of the gang: `mtbf_s` is that of one machine, divided by their number.

Sources: J. W. Young, "A first order approximation to the optimum checkpoint interval",
CACM 17(9), 1974; J. T. Daly, "A higher order estimate of the optimum checkpoint interval
for restart dumps", FGCS 22(3), 2006: equations 37 (interval) and 20 (the full model).
"""

from __future__ import annotations

import math


def young_interval_s(save_s: float, mtbf_s: float) -> float:
    """Return seconds of training between two saves, to the first order."""
    return math.sqrt(2 * save_s * mtbf_s)


def daly_interval_s(save_s: float, mtbf_s: float) -> float:
    """Return the same to a higher order."""
    if save_s >= 2 * mtbf_s:
        return mtbf_s
    x = save_s / (2 * mtbf_s)
    return math.sqrt(2 * save_s * mtbf_s) * (1 + math.sqrt(x) / 3 + x / 9) - save_s


def segment_s(
    length_s: float, mtbf_s: float, *, restart_s: float, down_s: float = 0.0
) -> float:
    """Return the exact mean time until `length_s` passes without an interruption.

    After each, `down_s` pass in which there can be none, then `restart_s` in which there
    can.
    """
    again = math.exp(restart_s / mtbf_s)
    return again * (mtbf_s + down_s) * math.expm1(length_s / mtbf_s)


def expected_s(
    *,
    steps: int,
    step_s: float,
    every: int,
    save_s: float,
    mtbf_s: float,
    cold_s: float = 0.0,
    restart_s: float = 0.0,
    down_s: float = 0.0,
) -> float:
    """Return the exact mean time to finish: Daly's full model, in whole steps.

    Training starts with `cold_s`, saves after each `every` steps and at the end (0: only
    there); saves, starts and restarts can be interrupted like everything else. With
    `cold_s` 0, `down_s` 0 and `every` a divisor of `steps` this is Daly's equation 20.
    """
    every = every or steps
    parts = [every] * (steps // every) + ([steps % every] if steps % every else [])
    first = parts[0] * step_s + save_s
    # Until a checkpoint is there, each start is a cold one, and part of what is tried.
    total = segment_s(cold_s + first, mtbf_s, restart_s=0.0, down_s=down_s)
    return total + sum(
        segment_s(part * step_s + save_s, mtbf_s, restart_s=restart_s, down_s=down_s)
        for part in parts[1:]
    )


def exact_interval_s(save_s: float, mtbf_s: float) -> float:
    """Return the interval at which Daly's full model has its minimum.

    It does not depend on restarts: the derivative vanishes where
    (1 - t/M) e^((t+d)/M) = 1.
    """
    low, high = 0.0, mtbf_s
    for _ in range(200):
        middle = (low + high) / 2
        value = (1 - middle / mtbf_s) * math.exp((middle + save_s) / mtbf_s)
        low, high = (middle, high) if value > 1 else (low, middle)
    return (low + high) / 2
