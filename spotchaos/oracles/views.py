"""One rank of one attempt beside the line that it joined: what is not as it was there."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from spotchaos.model import Attempt, RankTrace, StateMark, StepMark
from spotchaos.trace.format import COMPONENTS, STATE_COMPONENTS
from spotchaos.trace.lookup import (
    STRONG,
    Join,
    Line,
    Looked,
    RankReference,
    disturbance,
    first_columns,
    is_stream,
    look_up,
    origin,
)

# A scheduler that is counted otherwise matters once it changes a rate.
_SILENT: frozenset[str] = frozenset({"scheduler"})


@dataclass(frozen=True, slots=True)
class Difference:
    """One step of one rank that is not as in its line.

    `state` names components of the state before the step, `made` what the step consumed
    and made, both in the order of `COMPONENTS`.
    """

    step: int
    state: tuple[str, ...]
    made: tuple[str, ...]

    @property
    def components(self) -> tuple[str, ...]:
        return (*self.state, *self.made)

    @property
    def matters(self) -> bool:
        """Whether more than random streams and schedulers differ."""
        return any(not is_stream(c) and c not in _SILENT for c in self.components)


@dataclass(frozen=True, slots=True)
class RankView:
    """One rank of one attempt, beside its line."""

    rank: int
    joined: int
    trace: RankTrace
    line: RankReference
    looked: Looked
    restored: Mapping[str, int | str]
    disturbed: Mapping[str, int]
    differences: tuple[Difference, ...]
    final: tuple[str, ...]  # components of the finished state that differ
    dtypes: Mapping[str, tuple[str, str]]  # component -> in the line, in the attempt
    midway: frozenset[str] = (
        frozenset()
    )  # components that are on the way to the next step

    @property
    def wrong(self) -> tuple[str, ...]:
        """Components of the state, random streams apart, that are not of the join."""
        return tuple(
            c for c in STATE_COMPONENTS if c in self.restored and self._is_elsewhere(c)
        )

    @property
    def frozen(self) -> int | str | None:
        """Where the weights came from that the first step used and nothing trains.

        Those of one kind of module that the line's step used and this one did not; None
        if there is none.
        """
        there, here = self.step(self.joined + 1)
        for kind, expected in (there.frozen if there is not None else {}).items():
            found = here.frozen.get(kind, frozenset()) if here is not None else ()
            if found and expected - found and found - expected:
                steps = {
                    step - 1
                    for step, mark in self.line.steps.items()
                    if mark.frozen.get(kind, frozenset()) & (found - expected)
                }
                return origin(frozenset(steps), self.joined)
        return None

    @property
    def streams(self) -> tuple[str, ...]:
        """Random streams that are not where the joined step left them."""
        return tuple(c for c in self.looked if is_stream(c) and self._is_elsewhere(c))

    def _is_elsewhere(self, component: str) -> bool:
        return (
            component not in self.midway and self.joined not in self.looked[component]
        )

    def first(self, *components: str) -> Difference | None:
        """Return the first difference in any of `components`, or None."""
        wanted = frozenset(components)
        return next((d for d in self.differences if wanted & {*d.components}), None)

    def step(self, step: int) -> tuple[StepMark | None, StepMark | None]:
        """Return what step `step` was in the line, and what it was in the attempt."""
        own = {mark.step: mark for mark in self.trace.steps}
        return self.line.steps.get(step), own.get(step - self.joined)


def views_of(
    attempt: Attempt,
    found: Join,
    line: Line,
    leave_out: Sequence[str],
    *,
    saves: Collection[int],
    midway: Mapping[int, frozenset[str]],
) -> dict[int, RankView]:
    """Lay each rank of an attempt beside its line, from where it joined.

    Args:
        attempt: one launch of the program.
        found: where its ranks joined.
        line: what they joined.
        leave_out: components that are not compared.
        saves: steps of which there was a checkpoint when the attempt began.
        midway: rank -> components that are on the way to the next step when it begins.
    """
    views = {}
    for rank, trace in attempt.trace.ranks.items():
        joined, columns = found.ranks.get(rank), first_columns(trace)
        if joined is None or columns is None or rank not in line.ranks:
            continue
        views[rank] = _view(
            rank,
            trace,
            line.ranks[rank],
            columns,
            joined,
            leave_out,
            saves,
            midway.get(rank, frozenset()),
        )
    return views


def _view(
    rank: int,
    trace: RankTrace,
    line: RankReference,
    columns: Mapping[str, str],
    joined: int,
    leave_out: Sequence[str],
    saves: Collection[int],
    midway: frozenset[str],
) -> RankView:
    looked = look_up(line, columns, leave_out=leave_out)
    # Where the line was not sampled at the join, nothing can be said to be wrong.
    weak = line.weak.get(joined)
    sampled = {
        *line.columns(joined),
        *(STRONG & weak.components.keys() if weak else ()),
    }
    looked = {c: steps for c, steps in looked.items() if c in sampled}
    state = trace.states.get(0)
    ordered = [c for c in COMPONENTS if c in looked]
    restored = {
        c: origin(looked[c], joined, fresh=line.starts.get(c, 0))
        for c in (*ordered, *(c for c in looked if c not in ordered))
    }
    disturbed = {}
    restored |= dict.fromkeys(midway & restored.keys(), joined)
    for stream in [c for c in looked if is_stream(c) and joined not in looked[c]]:
        if state is None or stream in midway:
            continue
        # What no checkpoint was there of cannot have been restored from one.
        came = {s for s in looked[stream] if s <= joined or s in saves}
        draws = disturbance(line, stream, state, joined=joined, steps=frozenset(came))
        if draws is not None:
            disturbed[stream] = draws
            restored[stream] = joined
    there = line.states.get(joined)
    return RankView(
        rank=rank,
        joined=joined,
        trace=trace,
        line=line,
        looked=looked,
        restored=restored,
        disturbed=disturbed,
        differences=tuple(_differences(trace, line, joined, leave_out, midway)),
        final=_final(trace, line, joined, leave_out),
        dtypes=_dtypes(there or next(iter(line.states.values()), None), state),
        midway=midway,
    )


def _differences(
    trace: RankTrace,
    line: RankReference,
    joined: int,
    leave_out: Sequence[str],
    midway: Collection[str],
) -> Iterator[Difference]:
    own = {mark.step: mark for mark in trace.steps}
    for local in range(max([*own, *trace.states], default=-1) + 1):
        step = joined + local
        state = _unequal(
            line.states.get(step),
            trace.states.get(local),
            leave_out if local else (*leave_out, *midway),
        )
        made = _unequal(line.steps.get(step + 1), own.get(local + 1), leave_out)
        if state or made:
            yield Difference(step + 1, state, made)


def _final(
    trace: RankTrace, line: RankReference, joined: int, leave_out: Sequence[str]
) -> tuple[str, ...]:
    """Compare how both ended, if they ended at the same step."""
    last = joined + trace.completed
    if last != max(line.steps, default=0):
        return ()
    return tuple(
        c for c in _unequal(line.finish, trace.finish, leave_out) if c in STRONG
    )


def _unequal(
    expected: StateMark | StepMark | None,
    found: StateMark | StepMark | None,
    leave_out: Sequence[str],
) -> tuple[str, ...]:
    if expected is None or found is None:
        return ()
    ours, theirs = expected.components, found.components
    if "batch" in ours and ours["batch"] == theirs.get("batch"):
        # Numbers of samples depend on what the loader was given (a subset of what is
        # left counts from 0 again); equal content is the same samples.
        leave_out = (*leave_out, "samples")
    unequal = {
        c
        for c in ours.keys() & theirs.keys()
        if ours[c] != theirs[c] and c not in leave_out
    }
    ordered = [c for c in COMPONENTS if c in unequal]
    return (*ordered, *sorted(unequal - {*ordered}))


def _dtypes(
    there: StateMark | None, state: StateMark | None
) -> dict[str, tuple[str, str]]:
    if there is None or state is None:
        return {}
    return {
        component: (there.dtypes[component], dtype)
        for component, dtype in state.dtypes.items()
        if component in there.dtypes and there.dtypes[component] != dtype
    }
