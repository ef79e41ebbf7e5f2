"""Whether, in a recorded line, a batch was drawn from an RNG state."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from laying import PLAIN

from spotchaos.model import StateMark, StepMark
from spotchaos.oracles.drawn import is_drawn, is_within_an_order
from spotchaos.trace.lookup import RankReference

SAMPLES, BATCH = 160, 8
STATE = next(iter(PLAIN.baseline().first.trace.ranks[0].states.values()))
STEP = PLAIN.baseline().first.trace.ranks[0].steps[0]


def line(order, *, moves, epochs=None, words=700):
    """Return a line whose stream moves before the batches after these steps.

    Args:
        order: samples, in the order in which they are trained on.
        moves: steps after which the stream is read.
        epochs: how many steps an epoch has; None: none is known.
        words: how many are drawn each time.
    """
    steps: dict[int, StepMark] = {}
    states: dict[int, StateMark] = {}
    used = 0
    for step in range(len(order) // BATCH + 1):
        used += words * (step in moves)
        states[step] = _state(step, used)
        if step:
            mine = tuple(map(str, order[(step - 1) * BATCH : step * BATCH]))
            epoch = 0 if epochs is None else (step - 1) // epochs
            steps[step] = _step(step, mine, epoch)
    return RankReference(states, steps)


def _state(step, used):
    return replace(
        STATE,
        step=step,
        components={"rng.torch": f"block.{used}"},
        rng={"rng.torch": ("block", None, used)},
    )


def _step(step, samples, epoch):
    return replace(STEP, step=step, samples=samples, epoch=epoch)


def permutations(count, *, seed=0):
    rng = random.Random(seed)
    return [i for _ in range(count) for i in rng.sample(range(SAMPLES), SAMPLES)]


@pytest.mark.parametrize("seed", range(10))
def test_idle_draws_within_an_order_have_drawn_nothing_of_it(seed):
    # One order is 20 steps long; an evaluation draws after each tenth.
    recorded = line(permutations(2, seed=seed), moves={5, 10, 15})
    assert is_drawn(recorded, "rng.torch", 11) is None
    assert is_within_an_order(recorded, 10)


@pytest.mark.parametrize("seed", range(10))
def test_an_order_that_begins_where_a_stream_moved_may_be_drawn_from_it(seed):
    recorded = line(permutations(2, seed=seed), moves={20})
    assert is_drawn(recorded, "rng.torch", 21)
    assert is_drawn(recorded, "rng.torch", 27)
    assert not is_within_an_order(recorded, 20)


def test_batches_that_are_drawn_in_each_step_are_drawn_from_what_moves_in_each():
    rng = random.Random(3)
    order = [rng.randrange(SAMPLES) for _ in range(40 * BATCH)]
    assert is_drawn(line(order, moves=set(range(41))), "rng.torch", 18)


def test_a_stream_that_stands_still_before_an_epoch_has_not_drawn_its_order():
    recorded = line(permutations(2), moves={20}, epochs=10)
    assert is_drawn(recorded, "rng.torch", 21)
    assert is_drawn(recorded, "rng.torch", 31) is False
    assert is_drawn(recorded, "rng.torch", 31, is_order=False) is False


def test_the_seed_of_an_iterator_is_no_order_and_may_be_an_augmentation():
    recorded = line(permutations(2), moves={20}, epochs=10, words=2)
    assert is_drawn(recorded, "rng.torch", 21) is False
    assert is_drawn(recorded, "rng.torch", 21, is_order=False)


def test_few_samples_tell_nothing_of_where_an_order_begins():
    order = list(range(40 * BATCH))  # each is seen once
    assert is_drawn(line(order, moves={10}), "rng.torch", 11)
