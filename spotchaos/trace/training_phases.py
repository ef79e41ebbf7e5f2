"""Phases of training: an optimizer that has stepped its last is no part of the state.

A teacher is trained, a rate is searched for, then another optimizer takes over, and the
first one lives on. A resume needs nothing of it, and may not even make it. Which is so is
told by all steps of a run: it steps never again, and those that do began after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from spotchaos.model import Attempt, RankTrace, StateMark, StepMark

Table = Mapping[str, Mapping[str, frozenset[int]]]
Span = tuple[int, int]


def settled(trace: RankTrace) -> RankTrace:
    """Return a run to its end without what had stepped its last, in each of its states."""
    if not any(mark.less for mark in _states(trace)):
        return trace
    spans = _spans(trace.steps)
    begun = _begun(trace.steps, spans)
    # At the end all have stepped their last: what counts there is the last step's.
    last = begun.get(trace.completed - 1, 0)

    def settle(state: StateMark) -> StateMark:
        found = state.less.get(_idle(begun.get(state.step, last), spans))
        if found is None or trace.finish is None:
            return replace(state, less={})
        return replace(state, components={**state.components, **found}, less={})

    return _with_states(trace, settle)


def spelled_as(tables: Mapping[int, Table], attempt: Attempt) -> Attempt:
    """Return an attempt whose states are told without what a line no longer has.

    Args:
        tables: of the line, by rank: component -> fingerprint -> the steps that have it.
        attempt: whose own optimizers that step no more are not known: it may have been
            stopped, or have made one that it never uses.
    """
    ranks = {
        rank: _spelled(tables[rank], trace) if rank in tables else trace
        for rank, trace in attempt.trace.ranks.items()
    }
    return replace(attempt, trace=replace(attempt.trace, ranks=ranks))


def _spelled(table: Table, trace: RankTrace) -> RankTrace:
    if not any(mark.less for mark in _states(trace)):
        return trace

    def spell(state: StateMark) -> StateMark:
        found = dict(state.components)
        for component, value in state.components.items():
            known = table.get(component, {})
            if value in known:
                continue
            others = (each.get(component, value) for each in state.less.values())
            found[component] = next((o for o in others if o in known), value)
        return replace(state, components=found, less={})

    return _with_states(trace, spell)


def _states(trace: RankTrace) -> list[StateMark]:
    found = [*trace.states.values(), *(s.state for s in trace.saves), trace.finish]
    return [state for state in found if state is not None]


def _with_states(
    trace: RankTrace, change: Callable[[StateMark], StateMark]
) -> RankTrace:
    return replace(
        trace,
        states={step: change(state) for step, state in trace.states.items()},
        saves=tuple(
            replace(save, state=save.state and change(save.state))
            for save in trace.saves
        ),
        finish=trace.finish and change(trace.finish),
    )


def _spans(steps: tuple[StepMark, ...]) -> dict[int, Span]:
    spans: dict[int, Span] = {}
    for mark in steps:
        for index, (first, last) in mark.by.items():
            spans[index] = (spans.get(index, (first, last))[0], last)
    return spans


def _begun(steps: tuple[StepMark, ...], spans: Mapping[int, Span]) -> dict[int, int]:
    """Return, for the state before each step, when the first of those began that go on."""
    found: dict[int, int] = {}
    for mark in reversed(steps):
        turns = [spans[index][0] for index in mark.by]
        if mark.step in found:
            turns.append(found[mark.step])
        found[mark.step - 1] = min(turns, default=0)
    return found


def _idle(begun: int, spans: Mapping[int, Span]) -> frozenset[int]:
    """Return the optimizers that had stepped their last before another began."""
    return frozenset(i for i, (_, last) in spans.items() if last < begun)
