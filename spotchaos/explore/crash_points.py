"""Where a recorded run is cut: around its saves, the first ones first."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import groupby

from spotchaos.model import RankTrace
from spotchaos.persistence.oplog import FileOp
from spotchaos.persistence.rank_cuts import Barrier
from spotchaos.recording.recorded_run import Recorded
from spotchaos.trial.context import is_resume_point
from spotchaos.trial.trial import main_rank

# Crash points of one recording; those of the first saves come first.
MOST_POINTS = 400
# A state costs as much as there are ops before it: a program of very many small writes
# is cut at fewer points, so that drawing its states takes seconds.
LEAST_POINTS, MOST_WORK = 20, 400_000
# Of a run of writes to one file so many are cut: its first, some amid it, its last.
MOST_IN_RUN = 6
# Of a run that trains nothing, so many of its first ops, and of the rest.
MOST_UNTRAINED = 16


def crash_points(
    record: Recorded, patterns: Sequence[str], *, saves: int | None
) -> list[int]:
    """Return the op numbers before which to crash: around saves, the first ones first.

    Each save counts from its begin to the begin of the next, so that what is deleted
    after it belongs to it. Without `saves`, the first two, the first that deletes
    something, and the last are taken: they hold nearly all distinct behaviour. What a
    run did before its first save goes with that save. Of these but the first, the inner
    ones of many writes to one file are left out. Where no save was seen, what is written
    between two steps is taken for one.
    """
    windows = _windows(record, patterns) or _written_between_steps(record)
    if not windows and not record.attempt.trace.observed:
        return _all_written(record)
    chosen: list[int] = []
    for place, index in enumerate(_chosen_windows(windows, saves)):
        window = windows[index]
        last = max(op.number or 0 for op in window)
        if place and saves is None:
            window = _without_inner_writes(window)
        chosen += [*(op.number or 0 for op in window), last + 1]
    most = MOST_WORK // max(1, len(record.history.ops))
    most = min(MOST_POINTS, max(LEAST_POINTS, most))
    return spread(list(dict.fromkeys(chosen)), most)


def _without_inner_writes(window: Sequence[FileOp]) -> list[FileOp]:
    """Leave out ops amid a run of writes to one file: it is torn there as it was before."""
    kept: list[FileOp] = []
    for (kind, _), run in groupby(window, key=lambda op: (op.kind, op.node)):
        ops = list(run)
        if kind == "write" and len(ops) > MOST_IN_RUN:
            half = MOST_IN_RUN // 3
            middle = [ops[i] for i in spread(range(half, len(ops) - half), half)]
            ops = [*ops[:half], *middle, *ops[-half:]]
        kept += ops
    return kept


def spread(points: Sequence[int], most: int) -> list[int]:
    """Return at most so many of the points, evenly spread, in order."""
    if len(points) > most:
        stride = len(points) / most
        points = [points[int(i * stride)] for i in range(most)]
    return sorted(points)


def _windows(record: Recorded, patterns: Sequence[str]) -> list[list[FileOp]]:
    rank = main_rank(record.attempt)
    if rank is None:
        return []
    first: dict[int, float] = {}  # a step may be saved in pieces, by several threads
    for save in rank.saves:
        if is_resume_point(save.paths, patterns):
            first.setdefault(save.of_step, save.begun_at_s - record.began_s)
    starts_s = _starts(record, rank, sorted(first.values()))
    ops = [op for op in record.history.ops if op.number]
    windows: list[list[FileOp]] = []
    for index, start_s in enumerate(starts_s):
        if not index:
            start_s = float("-inf")
        end_s = starts_s[index + 1] if index + 1 < len(starts_s) else float("inf")
        windows.append([op for op in ops if start_s <= op.at_s < end_s])
    return [window for window in windows if window]


def _starts(record: Recorded, rank: RankTrace, begins: Sequence[float]) -> list[float]:
    """Return when each save starts: after the end of the step before it begins.

    What a program writes in between, a counter or a marker, is of the same save.
    """
    ends_s = [step.t_s - record.began_s for step in rank.steps]
    found: list[float] = []
    for begin_s, before_s in zip(begins, [float("-inf"), *begins], strict=False):
        after = bisect_right(ends_s, begin_s)
        end_s = ends_s[after - 1] if after else float("-inf")
        is_own = end_s > before_s
        found.append(math.nextafter(end_s, math.inf) if is_own else begin_s - 0.001)
    return found


def sees_saves(record: Recorded, patterns: Sequence[str]) -> bool:
    """Tell whether a recorded run was seen to save what a resume could start from."""
    return bool(_windows(record, patterns))


def _written_between_steps(record: Recorded) -> list[list[FileOp]]:
    """Return what was written after each step, the first with what came before it."""
    rank = main_rank(record.attempt)
    if rank is None:
        return []
    ends_s = [step.t_s - record.began_s for step in rank.steps]
    windows: dict[int, list[FileOp]] = {}
    for op in record.history.ops:
        if op.number:
            after = bisect_right(ends_s, op.at_s)
            windows.setdefault(after, []).append(op)
    before = windows.pop(0, [])
    found = [windows[after] for after in sorted(windows)]
    return [[*before, *found[0]], *found[1:]] if found else []


def _all_written(record: Recorded) -> list[int]:
    """Return where to cut a run that trains nothing: its first ops, and others spread."""
    numbers = [op.number for op in record.history.ops if op.number]
    if not numbers:
        return []
    first, rest = numbers[:MOST_UNTRAINED], numbers[MOST_UNTRAINED:]
    return [*first, *spread(rest, MOST_UNTRAINED), numbers[-1] + 1]


def _chosen_windows(
    windows: Sequence[Sequence[FileOp]], saves: int | None
) -> list[int]:
    count = len(windows)
    if saves is not None:
        if saves >= count:
            return list(range(count))
        return sorted(
            {round(i * (count - 1) / max(1, saves - 1)) for i in range(saves)}
        )
    deleting = next(
        (
            i
            for i, window in enumerate(windows)
            if i > 1 and any(op.kind in ("unlink", "rmdir") for op in window)
        ),
        None,
    )
    chosen = [0, 1, deleting, count - 1]
    return sorted({i for i in chosen if i is not None and 0 <= i < count})


def barriers(record: Recorded) -> list[Barrier]:
    """Return the ends of steps, which no rank of a collective program passes alone."""
    found = []
    ranks = record.attempt.trace.ranks
    steps = min((len(rank.steps) for rank in ranks.values()), default=0)
    for index in range(steps):
        reached = []
        for number, rank in ranks.items():
            moment_s = rank.steps[index].t_s - record.began_s
            later = next(
                (
                    op.number
                    for op in record.history.ops
                    if op.number and op.rank == number and op.at_s >= moment_s
                ),
                None,
            )
            if later is not None:
                reached.append((number, later))
        found.append(Barrier(tuple(reached)))
    return found
