"""What a sample is called: as in the uninterrupted run, whatever the loader was given.

A loader counts the samples of what it is given, and after a resume that may be what was
left of the epoch: a subset, a slice, a list. Equal content is the same sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from spotchaos.model import Attempt, RankTrace, StepMark
from spotchaos.trace.lookup import Line, RankReference


def numbered_as(line: Line, attempt: Attempt) -> Attempt:
    """Return the attempt with its samples called as the line calls them."""
    if attempt.number == 1:
        return attempt
    ranks = {
        rank: _numbered(trace, line.ranks.get(rank))
        for rank, trace in attempt.trace.ranks.items()
    }
    return replace(attempt, trace=replace(attempt.trace, ranks=ranks))


@dataclass(frozen=True, slots=True)
class _Known:
    """What the line calls the samples of a batch, and of a row."""

    of_batch: Mapping[str, Sequence[StepMark]]
    of_row: Mapping[str, frozenset[str]]
    has_ids: bool


def _known(line: RankReference) -> _Known:
    of_batch: dict[str, list[StepMark]] = {}
    of_row: dict[str, set[str]] = {}
    for mark in line.steps.values():
        batch = mark.components.get("batch")
        if batch is not None:
            of_batch.setdefault(batch, []).append(mark)
        if mark.ids == "index" and mark.rows is not None:
            for sample, row in zip(mark.samples or (), mark.rows, strict=False):
                of_row.setdefault(row, set()).add(sample)
    return _Known(
        of_batch,
        {row: frozenset(samples) for row, samples in of_row.items()},
        any(mark.ids == "index" for mark in line.steps.values()),
    )


def _numbered(trace: RankTrace, line: RankReference | None) -> RankTrace:
    if line is None or not trace.steps:
        return trace
    known = _known(line)
    return replace(trace, steps=tuple(_named(mark, known) for mark in trace.steps))


def _named(mark: StepMark, known: _Known) -> StepMark:
    same = known.of_batch.get(mark.components.get("batch") or "", ())
    if same:
        if any((one.ids, one.samples) == (mark.ids, mark.samples) for one in same):
            return mark
        return replace(mark, samples=same[0].samples, ids=same[0].ids)
    if mark.samples is None:
        return mark
    if mark.ids == "rows":
        found = [known.of_row.get(row, frozenset()) for row in mark.samples]
        if found and all(len(ids) == 1 for ids in found):
            samples = tuple(sample for ids in found for sample in ids)
            return replace(mark, samples=samples, ids="index", rows=mark.samples)
        return mark
    if mark.rows is None or len(mark.rows) != len(mark.samples):
        return mark
    if not known.has_ids:
        return replace(mark, samples=mark.rows, ids="rows")
    return replace(
        mark,
        samples=tuple(
            _own_or_only(sample, known.of_row.get(row, frozenset()))
            for sample, row in zip(mark.samples, mark.rows, strict=True)
        ),
    )


def _own_or_only(sample: str, ids: frozenset[str]) -> str:
    """Return the only id that the line has for a row, or the sample's own.

    Rows that several samples share, or that an augmentation made, tell nothing.
    """
    return next(iter(ids)) if len(ids) == 1 else sample
