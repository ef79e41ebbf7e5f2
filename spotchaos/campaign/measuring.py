"""The times of a program, from what its attempts left behind: `timing` of a report.

Steps and saves are those of a run with few fingerprints, as the program runs by itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from spotchaos.campaign.baseline import BaselineContext
from spotchaos.campaign.grace_search import uses_in
from spotchaos.launch.isolation.view import View
from spotchaos.model import Attempt, Judgement, RankTrace, SaveMark, Trial
from spotchaos.trace.timing import Measured, Timing
from spotchaos.trial.trial import main_rank


@dataclass(frozen=True, slots=True)
class Resumed:
    """An attempt that found a checkpoint, and how many steps it made again."""

    attempt: Attempt
    lost_steps: int


def campaign_timing(
    baseline_context: BaselineContext, done: Sequence[tuple[Trial, Judgement]]
) -> Timing:
    """Return the times that a campaign has measured besides."""
    baseline = baseline_context.baseline
    usual = baseline.light or baseline.first
    starts = [a for a in (*baseline.runs, usual) if main_rank(a) is not None]
    resumed = [
        Resumed(attempt, resume.lost_steps)
        for trial, judgement in done
        for resume in judgement.resumes
        for attempt in trial.attempts
        if resume.joined and attempt.number == resume.attempt
    ]
    found = timing_of(usual, starts=starts, resumed=resumed)
    return replace(
        found,
        save_bytes=bytes_in(
            baseline_context.trial_context.finished_view, baseline.first
        ),
        notice_s=Measured.of(uses_in(trial for trial, _ in done)),
    )


def timing_of(
    whole: Attempt, *, starts: Sequence[Attempt], resumed: Sequence[Resumed]
) -> Timing:
    """Return the times of steps, saves, starts and resumes.

    Args:
        whole: an uninterrupted run, whose steps and saves are measured.
        starts: attempts that began at the beginning.
        resumed: attempts that did not.
    """
    rank = main_rank(whole)
    if rank is None:
        return Timing()
    steps = list(_steps(rank))
    step_s = median(steps) if steps else 0.0
    fresh = [a for a in starts if a.path != "warm"]
    cold = [s for s in (start_s(a, step_s) for a in fresh) if s is not None]
    return Timing(
        step_s=Measured.of(steps),
        save_stall_s=Measured.of(s for _, s in _stalls_after(rank, step_s)),
        save_end_s=Measured.of(_lengths(rank, step_s)),
        save_every=Measured.of(_intervals(rank)),
        cold_start_s=Measured.of(cold),
        resumed_start_s=Measured.of(_resumed_starts(starts, cold, resumed, step_s)),
        lost_steps=Measured.of(one.lost_steps for one in resumed),
    )


def start_s(attempt: Attempt, step_s: float) -> float | None:
    """Return seconds from an attempt's start to its first step; None: it made none."""
    rank = main_rank(attempt)
    if rank is None or not rank.steps or not rank.steps[0].t_s:
        return None
    return max(0.0, rank.steps[0].t_s - step_s - attempt.started_at_s)


def bytes_in(view: View | None, attempt: Attempt) -> Measured | None:
    """Return the bytes of its saves, as far as their files still lie in its view."""
    rank = main_rank(attempt)
    if view is None or rank is None:
        return None
    sizes = (_size(view, save) for save in rank.saves)
    return Measured.of(size for size in sizes if size)


def _size(view: View, save: SaveMark) -> int:
    try:
        return sum(view.path(path).stat().st_size for path in save.paths)
    except OSError:
        return 0  # a newer save has taken its place


def _resumed_starts(
    starts: Iterable[Attempt],
    cold: Sequence[float],
    resumed: Iterable[Resumed],
    step_s: float,
) -> Iterator[float]:
    """Return the starts of resumes, in fresh processes if there are any.

    A forked one has spared what a fresh one spends on imports: the difference between
    the fresh and the forked starts of an uninterrupted run is added.
    """
    fresh = [one.attempt for one in resumed if one.attempt.path != "warm"]
    forked = [one.attempt for one in resumed if one.attempt.path == "warm"]
    if fresh:
        yield from (s for s in (start_s(a, step_s) for a in fresh) if s is not None)
        return
    warm = [start_s(a, step_s) for a in starts if a.path == "warm"]
    spared = [s for s in warm if s is not None]
    if not cold or not spared:
        return
    imports_s = max(0.0, median(cold) - median(spared))
    for attempt in forked:
        found = start_s(attempt, step_s)
        if found is not None:
            yield found + imports_s


def _saves_within(rank: RankTrace) -> dict[int, list[SaveMark]]:
    """Return the saves that began after each step."""
    found: dict[int, list[SaveMark]] = {}
    for save in rank.saves:
        found.setdefault(save.step, []).append(save)
    return found


def _gaps(rank: RankTrace) -> Iterator[tuple[int, float]]:
    """Return each step but the last, and the seconds from its end to the next one's."""
    for before, after in zip(rank.steps, rank.steps[1:], strict=False):
        if after.step == before.step + 1 and after.t_s > before.t_s > 0:
            yield before.step, after.t_s - before.t_s


def _steps(rank: RankTrace) -> Iterator[float]:
    busy = set(_saves_within(rank))
    for save in rank.saves:
        if save.ended_at_s is not None and save.is_beside:
            # Beside it training goes on, but not at its own pace.
            busy |= {
                m.step for m in rank.steps if save.begun_at_s <= m.t_s < save.ended_at_s
            }
    return (gap_s for step, gap_s in _gaps(rank) if step not in busy)


def _lengths(rank: RankTrace, step_s: float) -> Iterator[float]:
    """Return seconds of each save, without what the probe did meanwhile.

    That it is over is seen when training goes on: one that is made where it trains has
    taken no longer than training was held up.
    """
    stalls = dict(_stalls_after(rank, step_s))
    for save in rank.saves:
        if save.ended_at_s is not None:
            length_s = save.ended_at_s - save.begun_at_s - _probe_s(save)
            held_up_s = stalls.get(save.step, length_s)
            yield length_s if save.is_beside else min(length_s, held_up_s)


def _stalls_after(rank: RankTrace, step_s: float) -> Iterator[tuple[int, float]]:
    """Return each step after which it saved, and the seconds that this cost training."""
    saving = _saves_within(rank)
    for step, gap_s in _gaps(rank):
        if step in saving:
            yield step, max(0.0, gap_s - step_s - sum(map(_probe_s, saving[step])))
    for save in saving.get(rank.completed, ()):
        if save.ended_at_s is not None:
            yield save.step, save.ended_at_s - save.begun_at_s - _probe_s(save)


def _probe_s(save: SaveMark) -> float:
    """Return by how many seconds the probe made a save longer."""
    if save.is_beside or save.ended_at_s is None or save.took_s is None:
        return 0.0
    return max(0.0, save.ended_at_s - save.begun_at_s - save.took_s)


def _intervals(rank: RankTrace) -> Iterator[float]:
    steps = sorted({save.of_step for save in rank.saves})
    for before, after in itertools.pairwise(steps):
        # The one at the end comes when it comes.
        if after < rank.completed or after - before == steps[0]:
            yield float(after - before)
