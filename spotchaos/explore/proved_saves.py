"""Saves that nobody saw, told by the resumes that went on from them.

A database, or a writer in C, is not seen to save. But where a resume from one crash state
went on from a step, the checkpoint of that step was whole there, and no later crash may
lead back beyond it. A resume that writes the same after the same step saves it as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from spotchaos.explore.crash_classes import Case, Result
from spotchaos.model import Ended, RankTrace, SaveMark, Verdict
from spotchaos.oracles.resume_points import pattern_of
from spotchaos.persistence.models import KILL
from spotchaos.persistence.oplog import FileOp
from spotchaos.recording.recorded_run import Recorded
from spotchaos.trial.trial import main_rank


def with_proved(
    record: Recorded, cases: Sequence[Case], results: Mapping[int, Result]
) -> Recorded | None:
    """Return a recording with a save for each step that resumes went on from.

    Args:
        record: of a run from its beginning, which was not seen to save.
        cases: all states.
        results: what came of them, by number.

    Returns:
        None: it was seen to save something, or no resume went on from a step of it.
    """
    rank = main_rank(record.attempt)
    if rank is None or _has_saves(record):
        return None
    first: dict[
        int, int
    ] = {}  # step -> number of the first op before which it is whole
    for n, result in results.items():
        token = result.token
        if cases[n].record is not record or result.verdict is not Verdict.HELD:
            continue
        if token.letter != KILL.letter or token.early or token.through:
            continue
        step = went_on_from(result)
        if step is None and _had_nothing_left(result):
            step = result.trial.attempts[-2].trace.completed
        if step and result.finding is None:
            first[step] = min(first.get(step, token.number), token.number)
    saves: list[SaveMark] = []
    for step, number in sorted(first.items()):
        written = [
            op for op in _written_after(record, rank, step) if _number(op) < number
        ]
        if written:
            saves.append(_save(record, len(saves) + 1, step, written))
    return _with(record, rank, saves) if saves else None


def _had_nothing_left(result: Result) -> bool:
    """Tell whether a resume saw that the run had come to its end."""
    attempt = result.trial.attempts[-1]
    return attempt.ended is Ended.FINISHED and not attempt.trace.completed


def with_the_same(record: Recorded, proved: Recorded, joined: int) -> Recorded:
    """Return a recorded resume with a save wherever it writes as the proved run did.

    Args:
        record: of a resume, which was not seen to save.
        proved: the run from the beginning, with what resumes told of it.
        joined: the step from which the resume went on.
    """
    rank, model = main_rank(record.attempt), main_rank(proved.attempt)
    if rank is None or model is None or _has_saves(record):
        return record
    saves: list[SaveMark] = []
    for save in model.saves:
        written = _written_after(record, rank, save.step - joined)
        usual = _written_after(proved, model, save.step)
        if save.step > joined and written and _shape(written) == _shape(usual):
            saves.append(
                _save(record, len(saves) + 1, save.step - joined, written),
            )
    return _with(record, rank, saves)


def went_on_from(result: Result) -> int | None:
    """Return the step from which a resume went on; None: it did not come so far."""
    resumes = result.judgement.resumes
    return resumes[-1].joined if resumes else None


def _has_saves(record: Recorded) -> bool:
    return any(rank.saves for rank in record.attempt.trace.ranks.values())


def _written_after(record: Recorded, rank: RankTrace, step: int) -> list[FileOp]:
    """Return the ops that were made between a step's end and the next one's."""
    ends_s = [mark.t_s - record.began_s for mark in rank.steps]
    if not 1 <= step <= len(ends_s):
        return []
    start_s, end_s = [*ends_s, float("inf")][step - 1 : step + 1]
    return [op for op in record.history.ops if op.number and start_s < op.at_s <= end_s]


def _save(
    record: Recorded, number: int, step: int, written: Sequence[FileOp]
) -> SaveMark:
    """Return a save that is whole after these ops, and not before the last of them."""
    last_s = written[-1].at_s
    later_s = (op.at_s for op in record.history.ops if op.number and op.at_s > last_s)
    return SaveMark(
        number=number,
        step=step,
        paths=(),
        state=None,
        begun_at_s=record.began_s + written[0].at_s,
        ended_at_s=record.began_s + (last_s + next(later_s, last_s + 1.0)) / 2,
    )


def _with(record: Recorded, rank: RankTrace, saves: Sequence[SaveMark]) -> Recorded:
    trace = record.attempt.trace
    number = next(n for n, one in trace.ranks.items() if one is rank)
    ranks = {**trace.ranks, number: replace(rank, saves=tuple(saves))}
    attempt = replace(record.attempt, trace=replace(trace, ranks=ranks))
    return replace(record, attempt=attempt)


def _shape(ops: Iterable[FileOp]) -> list[tuple[str, str]]:
    """Return what is done to which files, however often in a row."""
    told = [(op.kind, pattern_of(op.to or op.path or "")) for op in ops]
    return [one for one, _ in groupby(told)]


def _number(op: FileOp) -> int:
    return op.number or 0
