"""Resumes from within an accumulation window: a state between two steps is a state too.

The first step after such a resume is made of the last micro-batches alone. Whether the
gradients of those before came back shows in the gradients with which the step is made.
"""

from __future__ import annotations

from dataclasses import replace

from spotchaos.model import Attempt, RankTrace, StepMark
from spotchaos.trace.lookup import Line, RankReference

# What is of all micro-batches of a step.
_OF_ALL = ("batch", "samples", "loss")


def begun(expected: StepMark | None, found: StepMark | None) -> int:
    """Return how many samples of a step are missing if only its last ones are there.

    Args:
        expected: the step in the line.
        found: the step in the attempt.
    """
    if expected is None or found is None:
        return 0
    want, have = tuple(expected.samples or ()), tuple(found.samples or ())
    if not have or found.micro >= expected.micro or want[-len(have) :] != have:
        return 0
    return len(want) - len(have)


def with_whole_windows(line: Line, attempt: Attempt, *, joined: int) -> Attempt:
    """Return an attempt whose first step has all samples that its gradients are made of."""
    ranks = {
        rank: _with_whole_window(line.ranks.get(rank), trace, joined)
        for rank, trace in attempt.trace.ranks.items()
    }
    return replace(attempt, trace=replace(attempt.trace, ranks=ranks))


def _with_whole_window(
    line: RankReference | None, trace: RankTrace, joined: int
) -> RankTrace:
    if line is None or not trace.steps or trace.steps[0].step != 1:
        return trace
    expected, found = line.steps.get(joined + 1), trace.steps[0]
    if expected is None or not begun(expected, found):
        return trace
    gradients = expected.components.get("gradients")
    if gradients is None or found.components.get("gradients") != gradients:
        return trace
    of_all = {c: v for c, v in expected.components.items() if c in _OF_ALL}
    whole = replace(
        found,
        components={**found.components, **of_all},
        loss=expected.loss,
        samples=expected.samples,
        rows=expected.rows,
        ids=expected.ids,
        micro=expected.micro,
    )
    return replace(trace, steps=(whole, *trace.steps[1:]))


def on_the_way(
    line: Line, attempt: Attempt, *, joined: int
) -> dict[int, frozenset[str]]:
    """Return for each rank what is between two states of the line when an attempt begins.

    It begins within a window, and at the window's end they are where the line has them.
    """
    return {
        rank: _on_the_way(line.ranks[rank], trace, joined)
        for rank, trace in attempt.trace.ranks.items()
        if rank in line.ranks
    }


def _on_the_way(line: RankReference, trace: RankTrace, joined: int) -> frozenset[str]:
    first = trace.steps[0] if trace.steps else None
    now, there = trace.states.get(0), line.states.get(joined)
    if now is None or there is None or first is None or first.step != 1:
        return frozenset()
    if not begun(line.steps.get(joined + 1), first):
        return frozenset()
    then, wanted = trace.states.get(1), line.states.get(joined + 1)
    return frozenset(
        component
        for component, value in now.components.items()
        if value != there.components.get(component)
        and (
            then is None
            or wanted is None
            or then.components.get(component) == wanted.components.get(component)
        )
    )
