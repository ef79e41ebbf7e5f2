"""Was a batch of the recorded line drawn from an RNG state?

An RNG state that a resume lost is a cause only if what differs was drawn from it: in the
uninterrupted run it moved where that was made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from spotchaos.model import StepMark
from spotchaos.trace.lookup import RankReference, draws_between

# Creating a loader's iterator draws one seed of two words for its workers. A shuffle by
# the sampler draws more.
ITERATOR_WORDS = 2
# Two stretches of independent draws that share no sample although so many are expected
# to be shared: by chance once in 150 (e^-5).
EXPECTED_SHARED = 5.0


def is_drawn(
    line: RankReference, stream: str, step: int, *, is_order: bool = True
) -> bool | None:
    """Tell whether the batch of `step` may have been drawn from an RNG state.

    Args:
        line: the recorded run.
        stream: the component of the RNG state.
        step: whose batch it is, from 1 up.
        is_order: which samples are asked about, else what they contain.

    Returns:
        None where it was drawn before the first recorded state, if at all.
    """
    begin = _begin_of_epoch(line.steps, step)
    is_one_epoch = len({mark.epoch for mark in line.steps.values()}) < 2
    places = range(1, step) if is_one_epoch and is_order else (step - 1, begin - 1)
    for place in places:
        if place < 1 or not _moved(line, stream, place):
            continue
        if not is_order:
            return True
        is_begin = place == begin - 1
        if is_begin and _is_iterator_only(line, stream, place):
            continue
        if is_begin or not _goes_on(line.steps, place):
            return True
    return None if begin == 1 else False


def is_within_an_order(line: RankReference, step: int) -> bool:
    """Tell whether the samples after `step` go on with an order that began before it."""
    if len({mark.epoch for mark in line.steps.values()}) < 2:
        return _goes_on(line.steps, step)
    return _begin_of_epoch(line.steps, step + 1) != step + 1


def _begin_of_epoch(steps: Mapping[int, StepMark], step: int) -> int:
    """Return the first step of the epoch of `step`."""
    mark = steps.get(step)
    if mark is None:
        return step
    return min(s for s, other in steps.items() if other.epoch == mark.epoch)


def _moved(line: RankReference, stream: str, place: int) -> bool:
    """Whether an RNG state moved between the states of `place` - 1 and `place`.

    That is where the batch of `place` + 1 is made. What was not sampled may have moved.
    """
    before, after = line.states.get(place - 1), line.states.get(place)
    if before is None or after is None:
        return True
    return before.components.get(stream) != after.components.get(stream)


def _is_iterator_only(line: RankReference, stream: str, place: int) -> bool:
    """Whether no more was drawn than what making a loader's iterator draws."""
    before, after = line.states.get(place - 1), line.states.get(place)
    if stream != "rng.torch" or before is None or after is None:
        return False
    there, now = before.rng.get(stream), after.rng.get(stream)
    if there is None or now is None:
        return False
    return draws_between(there, now) == ITERATOR_WORDS


def _goes_on(steps: Mapping[int, StepMark], place: int) -> bool:
    """Whether an order without repetition goes on after step `place`.

    The samples before and after are then disjoint, as those of independent draws would
    hardly be. An order may begin or end close by: few steps beside many tell as well.
    """
    drawn = [sample for step in sorted(steps) for sample in steps[step].samples or ()]
    size = _size(len(drawn), len(set(drawn)))
    before, after = _reach(steps, place, -1), _reach(steps, place + 1, 1)
    for few in after:
        many = next(
            (b for b in before if len(b) * len(few) >= EXPECTED_SHARED * size), None
        )
        if many is not None and not many & few:
            return True
    return False


def _reach(
    steps: Mapping[int, StepMark], step: int, direction: int
) -> list[frozenset[str]]:
    """Return the samples of one step, of two, and so on, in one direction."""
    found: list[frozenset[str]] = []
    while step in steps:
        more = frozenset(steps[step].samples or ())
        found.append(found[-1] | more if found else more)
        step += direction
    return found


def _size(drawn: int, distinct: int) -> float:
    """Estimate how many samples there are, of which `drawn` at random are `distinct`."""
    if distinct >= drawn:
        return math.inf
    low, high = float(distinct), float(drawn) * drawn
    for _ in range(60):
        middle = (low + high) / 2
        if middle * -math.expm1(-drawn / middle) < distinct:
            low = middle
        else:
            high = middle
    return high
