"""Look-up by content: whose value is this, and where does a resumed attempt join?

A line is the course of training from step 0 on: for each step and rank, a fingerprint of
every component. The baseline is one; the course of a trial whose attempts left the
baseline is another. A resumed attempt's first state is looked up in a line, component by
component, and each look-up yields a *set* of steps, because values repeat: a warm-up from
rate 0 leaves the weights of steps 0 and 1 equal, and a stream that nobody draws from has
one value all run long.

Steps here are steps of the line: the state of step K is that before step K+1, and the
batch of state K is the one that step K+1 trains on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from spotchaos.model import AttemptTrace, RankTrace, StateMark, StepMark
from spotchaos.trace.format import RNG_STREAMS, STATE_COMPONENTS
from spotchaos.trace.training_phases import settled

_Mark = TypeVar("_Mark", StateMark, StepMark)

Columns = Mapping[str, str]  # component -> fingerprint
Looked = Mapping[str, frozenset[int]]  # component -> steps with that value

# What only moves when training moves: where weights fail to tell which run a checkpoint
# is of, one of these can.
STRONG: frozenset[str] = frozenset({"weights", "buffers", "optimizer", "averages"})

# A Mersenne twister makes its numbers in blocks of this many 32-bit words.
BLOCK_WORDS = 624
# A stream this close to where it was left was restored and then moved. Creating an
# iterator draws a seed of two words; a shuffle or a worker seed a few more.
NEAR_WORDS = 8


def is_stream(component: str) -> bool:
    """Tell whether a component is a random stream."""
    return component in RNG_STREAMS or component.startswith("rng.")


@dataclass(frozen=True)
class RankReference:
    """One rank's part of a line: states and steps by step of the line."""

    states: Mapping[int, StateMark]
    steps: Mapping[int, StepMark]
    weak: Mapping[int, StateMark] = field(default_factory=dict)  # at saves, finish
    finish: StateMark | None = None

    def columns(self, step: int) -> Columns:
        """Return what is known of the state of `step`, with the batch that follows it."""
        state, following = self.states.get(step), self.steps.get(step + 1)
        found = dict(state.components) if state is not None else {}
        if following is not None and "batch" in following.components:
            found["batch"] = following.components["batch"]
        return found

    @cached_property
    def starts(self) -> Mapping[str, int]:
        """Component -> the first step that has it: what is made later is fresh there."""
        found: dict[str, int] = {}
        for step in sorted(self.states):
            for component in self.states[step].components:
                found.setdefault(component, step)
        return found

    @cached_property
    def table(self) -> Mapping[str, Mapping[str, frozenset[int]]]:
        """Component -> fingerprint -> the steps that have it."""
        table: dict[str, dict[str, set[int]]] = {}

        def enter(component: str, fingerprint: str, step: int) -> None:
            table.setdefault(component, {}).setdefault(fingerprint, set()).add(step)

        for step in {*self.states, *(n - 1 for n in self.steps)}:
            for component, fingerprint in self.columns(step).items():
                enter(component, fingerprint, step)
        for step, state in self.weak.items():
            if step in self.states:
                continue
            for component in STRONG & state.components.keys():
                # At a save the rate and the random streams are not yet those with
                # which the next step begins; tensors are.
                enter(component, state.components[component], step)
        return {
            component: {f: frozenset(steps) for f, steps in values.items()}
            for component, values in table.items()
        }


@dataclass(frozen=True, slots=True)
class Line:
    """The course of training that attempts are compared with."""

    name: str
    ranks: Mapping[int, RankReference]
    is_baseline: bool = False


def line_of(trace: AttemptTrace, *, name: str = "baseline") -> Line:
    """Return the line of an uninterrupted run."""
    return Line(
        name,
        {
            rank: _rank_line(settled(found), 0, None)
            for rank, found in trace.ranks.items()
        },
        is_baseline=True,
    )


def continued(
    line: Line, trace: AttemptTrace, *, joined: int, name: str, split_at_restarts: bool
) -> Line:
    """Return the line that follows `line` to step `joined`, and the attempt from there.

    Args:
        line: what the attempt joined.
        trace: of the attempt.
        joined: the step of the line at which it joined.
        name: of the new line, for messages.
        split_at_restarts: whether the attempt left the line; if not, the line's own future stays.
    """
    ranks = dict(line.ranks)
    for rank, found in trace.ranks.items():
        before = line.ranks.get(rank)
        if split_at_restarts and before is not None:
            before = RankReference(
                _until(before.states, joined - 1),
                _until(before.steps, joined),
                _until(before.weak, joined - 1),
            )
        ranks[rank] = _rank_line(found, joined, before)
    return Line(name, ranks)


def _rank_line(
    trace: RankTrace, offset: int, before: RankReference | None
) -> RankReference:
    states = {} if before is None else dict(before.states)
    steps = {} if before is None else dict(before.steps)
    weak = {} if before is None else dict(before.weak)
    for step, state in trace.states.items():
        states[offset + step] = state
    for mark in trace.steps:
        steps[offset + mark.step] = mark
    for save in trace.saves:
        if save.state is not None:
            weak[offset + save.step] = save.state
    finish = trace.finish or (before.finish if before is not None else None)
    if trace.finish is not None:
        weak.setdefault(offset + trace.completed, trace.finish)
    return RankReference(states, steps, weak, finish)


def _until(values: Mapping[int, _Mark], last: int) -> dict[int, _Mark]:
    return {step: value for step, value in values.items() if step <= last}


def first_columns(trace: RankTrace) -> Columns | None:
    """Return what an attempt began to train with, or None if it never came so far.

    An attempt that had nothing left to train is known by the state it finished with.
    """
    state = trace.states.get(0)
    if state is None:
        if trace.completed == 0 and trace.finish is not None:
            return {c: f for c, f in trace.finish.components.items() if c in STRONG}
        return None
    found = dict(state.components)
    if trace.steps and trace.steps[0].step == 1:
        batch = trace.steps[0].components.get("batch")
        if batch is not None:
            found["batch"] = batch
    return found


def look_up(
    line: RankReference, columns: Columns, *, leave_out: Collection[str]
) -> Looked:
    """Return for each component the steps of the line that have its value."""
    return {
        component: line.table[component].get(fingerprint, frozenset())
        for component, fingerprint in columns.items()
        if component in line.table and component not in leave_out
    }


Score = tuple[int, int]  # votes of the state, votes of streams and batch


def scores(looked: Looked, partly: Collection[int] = ()) -> dict[int, Score]:
    """Return the steps at which a rank may have joined, with what speaks for each.

    A value of step 0 is what a component has that was *not* restored, so it speaks for
    nothing as long as any other component has a value that only later steps have.

    Args:
        looked: the look-ups of one rank.
        partly: steps of which the line knows no more than `STRONG`; what it does not
            know there speaks against none of them.
    """
    state = [c for c in STATE_COMPONENTS if c in looked]
    others = [c for c in looked if c not in STATE_COMPONENTS]
    informed = _informed(looked, state) or _informed(looked, ["batch"])
    if informed:
        candidates = frozenset[int]().union(*(looked[c] for c in informed))
        state, others = _informed(looked, state), _informed(looked, others)
    else:
        candidates = looked.get("weights", looked.get("optimizer", frozenset()))
    return {
        step: (
            sum(
                step in looked[c] or (step in partly and c not in STRONG) for c in state
            ),
            sum(step in looked[c] for c in others),
        )
        for step in candidates
    }


def _is_mixed(looked: Looked) -> bool:
    """Tell whether parts of the state are of steps after the first, and of no common one."""
    found = [looked[c] for c in _informed(looked, STATE_COMPONENTS)]
    return len(found) > 1 and not frozenset.intersection(*found)


def _informed(looked: Looked, components: Iterable[str]) -> list[str]:
    """Return those components whose value only steps after the first have."""
    return [c for c in components if looked.get(c) and 0 not in looked[c]]


@dataclass(frozen=True, slots=True)
class Join:
    """Where the ranks of one attempt joined a line.

    `step` is the step on which all ranks agree, or None; `ranks` is each rank's own.
    """

    step: int | None
    ranks: Mapping[int, int | None]
    score: Score = (0, 0)

    @property
    def disagrees(self) -> bool:
        """Whether two ranks joined at different steps."""
        return len({step for step in self.ranks.values() if step is not None}) > 1


def join(
    looked: Mapping[int, Looked],
    *,
    saves: Iterable[int] = (),
    fits: int | None = None,
    reached: int | None = None,
    sampled: Mapping[int, Collection[int]] | None = None,
    partly: Mapping[int, Collection[int]] | None = None,
) -> Join:
    """Decide at which step of a line an attempt joined.

    It is the step whose state most components share. Where several steps tie, as on a
    plateau, it is one that was saved (or 0), and of these the one that streams and batch
    share; then the one from which the attempt's steps end at the horizon, then the
    newest. Where the parts of the state are of different steps, streams and batch come
    first: that step is where the program takes itself to be.

    Args:
        looked: the look-ups of each rank.
        saves: steps at which the trial saved, in any order.
        fits: the step from which the attempt, which finished, reaches the horizon.
        reached: the furthest step that any attempt before it has completed; nothing
            later can have been saved.
        sampled: rank -> steps of whose state the line has a fingerprint; a rank has no
            voice on other steps. None: all.
        partly: rank -> steps of which the line knows no more than `STRONG`.
    """
    saved = frozenset(saves) | {0}
    found = {
        rank: scores(columns, (partly or {}).get(rank, ()))
        for rank, columns in looked.items()
    }
    known = {rank: each for rank, each in found.items() if each}
    if not known:
        return Join(None, dict.fromkeys(looked))
    # Where only the rank that saves was sampled, the others' weights are found nowhere:
    # they follow those that are known.
    placed = [rank for rank in known if looked[rank].get("weights")] or [*known]

    mixed = any(_is_mixed(looked[rank]) for rank in known)

    def order(step: int, ranks: Collection[int]) -> tuple[int | bool, ...]:
        state, other = _total(known, step, ranks)
        possible = reached is None or step <= reached
        first = _agree(looked, step, ranks) if mixed else 0
        return (state, possible, first, step in saved, other, step == fits, step)

    # What every rank likes best, judged by its state alone, is where all of them joined.
    best = {
        rank: {
            step
            for step, score in known[rank].items()
            if score[0] == max(other[0] for other in known[rank].values())
        }
        for rank in placed
    }
    # A rank that is only found at steps that nobody had reached was found by chance (a
    # plateau that leads to the end): it follows the others.
    possible = [
        rank for rank, steps in best.items() if reached is None or min(steps) <= reached
    ]
    voices = {rank: best[rank] for rank in possible or best}
    shared = {
        step
        for step in set().union(*voices.values())
        if all(
            step in liked or (sampled is not None and step not in sampled.get(rank, ()))
            for rank, liked in voices.items()
        )
    }
    if shared:
        step = max(shared, key=lambda s: order(s, voices.keys()))
        return Join(step, dict.fromkeys(looked, step), _total(known, step))
    own = {
        rank: max(known[rank], key=lambda s: order(s, [rank]))
        if rank in known
        else None
        for rank in looked
    }
    each_score = [known[r][s] for r, s in own.items() if s is not None]
    score = (sum(s[0] for s in each_score), sum(s[1] for s in each_score))
    steps = {s for s in own.values() if s is not None}
    return Join(steps.pop() if len(steps) == 1 else None, own, score)


def _agree(looked: Mapping[int, Looked], step: int, ranks: Collection[int]) -> int:
    """Count the streams and batches that are those of a step, be they of others as well."""
    return sum(
        step in looked[rank][component]
        for rank in ranks
        for component in looked[rank]
        if component not in STATE_COMPONENTS
    )


def _total(
    known: Mapping[int, Mapping[int, Score]],
    step: int,
    ranks: Collection[int] | None = None,
) -> Score:
    found = [known[r].get(step, (0, 0)) for r in (known if ranks is None else ranks)]
    return sum(s[0] for s in found), sum(s[1] for s in found)


def origin(steps: frozenset[int], joined: int, *, fresh: int = 0) -> int | str:
    """Say where a component's value came from, for the table `restored`.

    Args:
        steps: those that have its value.
        joined: the step at which the attempt joined.
        fresh: the first step that has the component at all.
    """
    if joined in steps:
        return joined
    if fresh in steps:
        return "fresh"
    if steps:
        return min(steps, key=lambda step: (abs(step - joined), step))
    return "foreign"


def draws_between(
    left: tuple[str, str | None, int], now: tuple[str, str | None, int]
) -> int | None:
    """Return by how many draws a stream moved from `left` to `now`, or None if unrelated.

    A draw is one 32-bit word (one offset, on CUDA). Negative: it is behind. Only the
    same block and its neighbours are recognised.
    """
    block, following, position = left
    other, other_following, other_position = now
    if block == other:
        return other_position - position
    if following is not None and following == other:
        return BLOCK_WORDS - position + other_position
    if other_following is not None and other_following == block:
        return -(BLOCK_WORDS - other_position + position)
    return None


def disturbance(
    line: RankReference,
    stream: str,
    state: StateMark,
    *,
    joined: int,
    steps: frozenset[int],
) -> int | None:
    """Return by how many draws a stream was moved after it had been restored.

    None: it was not restored at all. A value that is exactly that of another step is
    that step's, unless it is nearer to the restored one than a shuffle's seed; a value
    nearer to that of step 0 was never restored.
    """
    there, now = line.states.get(joined), state.rng.get(stream)
    left = there.rng.get(stream) if there is not None else None
    if left is None or now is None:
        return None
    draws = draws_between(left, now)
    if not draws:
        return None
    if abs(draws) <= NEAR_WORDS:
        return None if 0 in steps and joined != 0 else draws
    if steps:
        return None
    start = line.states.get(0)
    fresh = start.rng.get(stream) if start is not None else None
    if fresh is not None and joined != 0:
        since_start = draws_between(fresh, now)
        if since_start is not None and abs(since_start) < abs(draws):
            return None
    return draws
