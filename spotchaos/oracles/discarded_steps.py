"""Steps that an attempt makes and throws away before it goes on from its checkpoint.

A program may search for a learning rate, or train a teacher, at each of its starts: that
is what the uninterrupted run began with, done again. What it resumes with is the state
that it has afterwards, and steps are counted from there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from spotchaos.model import Attempt, Baseline, Ended, RankTrace
from spotchaos.trace.lookup import Line, RankReference
from spotchaos.trace.training_phases import spelled_as


@dataclass(frozen=True, slots=True)
class DiscardedSteps:
    """How long the preludes of a program are: from attempts that came beyond theirs.

    `known` are those attempts with the lengths that they had, `undone` is the step after
    which the line itself goes on with the weights that it began with, or None.
    """

    known: tuple[tuple[Attempt, int], ...]
    undone: int | None


def preludes_of(
    line: Line, baseline: Baseline, attempts: Iterable[Attempt]
) -> DiscardedSteps:
    """Return what the clean stop and these attempts tell of a program's preludes."""
    control = baseline.control.attempts[1:] if baseline.control is not None else ()
    known: list[tuple[Attempt, int]] = []
    undone = _undone(line)
    tables = {rank: each.table for rank, each in line.ranks.items()}
    for attempt in (*(spelled_as(tables, one) for one in control), *attempts):
        length = _length(line, attempt, undone)
        if length:
            known.append((attempt, length))
    return DiscardedSteps(tuple(known), undone)


def without_discarded_steps(
    line: Line, attempt: Attempt, found: DiscardedSteps
) -> tuple[Attempt, int]:
    """Return the attempt from where its prelude ends, and the steps that it took.

    One that was stopped within its prelude has trained nothing.
    """
    if not found.known or attempt.number == 1:
        return attempt, 0
    length = _length(line, attempt, found.undone)
    if not length and attempt.ended is not Ended.FINISHED:
        done = attempt.trace.completed
        goes_on = done > max(length for _, length in found.known)
        has_begun = any(rank.states for rank in attempt.trace.ranks.values())
        if not goes_on and has_begun:
            begins_alike = any(_begins_as(attempt, one, n) for one, n in found.known)
            if begins_alike or _is_within(line, attempt, found.undone):
                length = done + 1
    if not length:
        return attempt, 0
    ranks = {rank: _from(each, length) for rank, each in attempt.trace.ranks.items()}
    return replace(attempt, trace=replace(attempt.trace, ranks=ranks)), length


def _undone(line: Line) -> int | None:
    """Return the step after which all ranks have the weights again that they began with."""
    found = {
        _returns(each, max(each.states, default=0)) for each in line.ranks.values()
    }
    return found.pop() if len(found) == 1 else None


def _returns(trace: RankReference | RankTrace, last: int) -> int | None:
    """Return the first step up to `last` whose weights are those of step 0, left between."""
    weights = {s: m.components.get("weights") for s, m in trace.states.items()}
    start, has_left = weights.get(0), False
    for step in range(1, last + 1):
        now = weights.get(step)
        if start is None or now is None:
            return None
        if now != start:
            has_left = True
        elif has_left:
            return step
    return None


def _length(line: Line, attempt: Attempt, undone: int | None) -> int:
    """Return how many steps of an attempt are a prelude, 0 if none are."""
    found = {
        _rank_length(line.ranks[rank], trace, undone)
        for rank, trace in attempt.trace.ranks.items()
        if rank in line.ranks
    }
    return found.pop() if len(found) == 1 else 0


def _rank_length(line: RankReference, trace: RankTrace, undone: int | None) -> int:
    begun = _later(line, trace, 0)
    if begun:
        # It began with a checkpoint's weights: does it come back to them, when the line
        # came back to its own, and not from there on as well?
        if not undone or _returns(trace, undone) != undone:
            return 0
        return 0 if _is_in_turns(line, trace, undone) else undone
    same = _repeated(line, trace)
    if same and _later(line, trace, same):
        return same
    # It made a step, so that there are moments to load a checkpoint into, and loaded it:
    # nobody trains to weights that the line has only further on.
    steps = sorted({*trace.states, trace.completed})
    return next((s for s in steps if _leaps(line, trace, s)), 0)


def _is_in_turns(line: RankReference, trace: RankTrace, undone: int) -> bool:
    """Whether the line itself comes back to the weights that an attempt began with.

    Several clients, or tasks, are each trained from the same weights: what leads back to
    them is training then, and no search that every start begins with.
    """
    steps = _steps_of(line, trace, 0)
    return any(step + undone in steps for step in steps)


def _later(line: RankReference, trace: RankTrace, step: int) -> bool:
    """Whether an attempt has weights at `step` that the line only has further on."""
    steps = _steps_of(line, trace, step)
    return bool(steps) and min(steps) > step


def _leaps(line: RankReference, trace: RankTrace, step: int) -> bool:
    """Whether no step of the line leads to the weights that an attempt has at `step`."""
    if step - 1 not in trace.states or not _later(line, trace, step):
        return False
    before = max(_steps_of(line, trace, step - 1), default=-1)
    return min(_steps_of(line, trace, step)) > before + 1


def _steps_of(line: RankReference, trace: RankTrace, step: int) -> frozenset[int]:
    """Return the steps of the line with the weights that an attempt has at `step`."""
    state = trace.states.get(step)
    # Who has nothing left to train ends with what it loaded.
    if state is None and step == trace.completed:
        state = trace.finish
    fingerprint = state.components.get("weights") if state is not None else None
    return line.table.get("weights", {}).get(fingerprint or "", frozenset())


def _repeated(line: RankReference, trace: RankTrace) -> int:
    """Return how many steps from the first on are those of the line, state and all."""
    done = 0
    for mark in trace.steps:
        ours, before = line.steps.get(mark.step), line.states.get(mark.step - 1)
        state = trace.states.get(mark.step - 1)
        if ours is None or before is None or state is None:
            break
        if before.components.get("weights") != state.components.get("weights"):
            break
        made = ours.components.keys() & mark.components.keys() - {"samples"}
        if any(ours.components[c] != mark.components[c] for c in made):
            break
        done = mark.step
    return done


def _begins_as(attempt: Attempt, known: Attempt, length: int) -> bool:
    """Whether all weights of an attempt are those of another one's prelude."""
    done = attempt.trace.completed
    if done > length:
        return False
    for rank, trace in attempt.trace.ranks.items():
        there = known.trace.ranks.get(rank)
        if there is None:
            return False
        for step, state in trace.states.items():
            other = there.states.get(step)
            if step >= length or other is None:
                return False
            if state.components.get("weights") != other.components.get("weights"):
                return False
    return True


def _is_within(line: Line, attempt: Attempt, undone: int | None) -> bool:
    """Whether an attempt began with a checkpoint's weights and left what it then undoes."""
    if undone is None or attempt.trace.completed > undone:
        return False
    return all(
        rank in line.ranks and _later(line.ranks[rank], trace, 0)
        for rank, trace in attempt.trace.ranks.items()
    )


def _from(trace: RankTrace, length: int) -> RankTrace:
    """Return what a rank left behind after `length` steps, counted from there."""
    counts = dict(trace.counts)
    counts["step-end"] = max(0, counts.get("step-end", 0) - length)
    return replace(
        trace,
        states={
            step - length: replace(state, step=step - length)
            for step, state in trace.states.items()
            if step >= length
        },
        finish=trace.finish
        and replace(trace.finish, step=max(0, trace.finish.step - length)),
        steps=tuple(
            replace(mark, step=mark.step - length)
            for mark in trace.steps
            if mark.step > length
        ),
        saves=tuple(
            replace(
                save,
                step=save.step - length,
                holds=None if save.holds is None else max(0, save.holds - length),
            )
            for save in trace.saves
            if save.step >= length
        ),
        loads=tuple(
            replace(load, step=max(0, load.step - length)) for load in trace.loads
        ),
        counts=counts,
        sites=tuple(
            (site, n, max(0, step - length), t) for site, n, step, t in trace.sites
        ),
        tensors={
            s - length: found for s, found in trace.tensors.items() if s >= length
        },
        epochs={s - length: n for s, n in trace.epochs.items() if s >= length},
    )
