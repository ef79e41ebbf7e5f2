"""Where interruptions can land, and which files are resume points: read from a baseline."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from spotchaos.config.plan import KillPoint
from spotchaos.model import Attempt, RankTrace, Trial
from spotchaos.oracles.resume_points import pattern_of
from spotchaos.persistence import oplog
from spotchaos.planning.edges import SiteIndex
from spotchaos.planning.moments import Moments, moments_of
from spotchaos.trial.context import is_resume_point
from spotchaos.trial.trial import main_rank


def control_step(rank: RankTrace, horizon: int) -> int | None:
    """Return the first step after the middle one of the saves that a run outlives.

    Where none is seen, the last but one: a program may save by what is not followed, as
    a database or a command, and its resume tells.
    """
    steps = [s.step for s in rank.saves if s.step < horizon - 1 and s.ended_at_s]
    if steps:
        return steps[len(steps) // 2] + 1
    return horizon - 1 if horizon > 1 and not rank.saves else None


def site_index_of(
    rank: RankTrace,
    patterns: Sequence[str],
    recorded: Attempt | None = None,
    log: oplog.OpLog | None = None,
) -> SiteIndex:
    """Say where interruptions can land, from what rank 0 of the baseline did.

    Args:
        rank: its trace.
        patterns: of resume points.
        recorded: the run whose file ops were recorded.
        log: its op log; None: there are no file sites.
    """
    inside: list[KillPoint] = []
    moments = Moments()
    saves = [
        (s.step, s.number) for s in rank.saves if is_resume_point(s.paths, patterns)
    ]
    if log is not None and recorded is not None:
        inside = points_inside(log, recorded, patterns)
        moments = moments_of(log, recorded, saves=len(saves))
    return SiteIndex(
        file_ops=None if log is None else log.last,
        inside_saves=inside,
        horizon=rank.completed,
        counts=rank.counts,
        saves=saves,
        moments=moments,
        epoch_ends=[step for step in rank.epochs if step > 0],
    )


def points_inside(
    log: oplog.OpLog, recorded: Attempt, patterns: Sequence[str]
) -> list[KillPoint]:
    """Return kill points in the file ops of a middle save, most telling first.

    In the middle of its largest write, before its last rename, before its last unlink,
    before its last write, and right after its first op.
    """
    rank = main_rank(recorded)
    if rank is None:
        return []
    saves = [
        s for s in rank.saves if s.ended_at_s and is_resume_point(s.paths, patterns)
    ]
    if not saves:
        return []
    save = saves[len(saves) // 2]
    began_s = float(log.header.get("began_s", 0.0))
    begin_s, end_s = save.begun_at_s - began_s, (save.ended_at_s or 0.0) - began_s
    ops = [op for op in log.ops if op.number and begin_s <= op.at_s <= end_s]
    writes = [op for op in ops if op.kind == "write"]
    chosen: list[tuple[oplog.FileOp, str | None]] = []
    if writes:
        chosen.append((max(writes, key=lambda op: op.length), "half"))
    for kind in ("rename", "unlink", "write"):
        found = [op for op in ops if op.kind == kind]
        if found:
            chosen.append((found[-1], None))
    if ops:
        chosen.append((ops[0], "after"))
    points = [
        KillPoint(site="file-op", occurrence=op.number or 1, over_all=True, cut=cut)
        for op, cut in chosen
    ]
    return list(dict.fromkeys(points))


def existing_checkpoints(attempt: Attempt, folder: Path) -> list[str]:
    """Return what a run loaded from the folder although it did not write it itself.

    A numbered name stands for all of its kind: `checkpoint-500/model.pt` hides every
    `checkpoint-#`. A file whose name matches none that the program writes is left (it
    may be a pretrained model), unless the run trained nothing at all.
    """
    rank = main_rank(attempt)
    if rank is None:
        return []
    loaded = [load.path for load in rank.loads if load.step == 0]
    written = {pattern_of(path) for save in rank.saves for path in save.paths}
    found: list[str] = []
    for path in loaded:
        if PurePosixPath(path).is_absolute() or not (folder / path).exists():
            continue
        if pattern_of(path) in written or (not rank.steps and not written):
            found += _siblings(folder, path)
    return list(dict.fromkeys(found))


def _siblings(folder: Path, path: str) -> Iterable[str]:
    """Return every entry that differs from `path` in its first number only."""
    parts = PurePosixPath(path).parts
    for index, part in enumerate(parts):
        if re.search(r"\d", part):
            parent = folder.joinpath(*parts[:index])
            wanted = pattern_of(part)
            return [
                str(PurePosixPath(*parts[:index], entry.name))
                for entry in sorted(parent.iterdir())
                if pattern_of(entry.name) == wanted
            ]
    return [path]


def written_patterns(attempt: Attempt) -> tuple[str, ...]:
    """Return the patterns of every file that its saves wrote, on any rank."""
    return tuple(
        sorted(
            {
                pattern_of(path)
                for rank in attempt.trace.ranks.values()
                for save in rank.saves
                for path in save.paths
            }
        )
    )


def resume_patterns(first: Attempt, control: Trial | None) -> tuple[str, ...]:
    """Return the patterns that the control's resume read, of those the program writes.

    Nothing recognised (an exotic reader, or a resume that failed) leaves every save a
    resume point: a too generous answer accepts an older resume, and convicts nobody.
    """
    written = written_patterns(first)
    if control is None or len(control.attempts) < 2:
        return written
    read = {
        pattern_of(load.path)
        for rank in control.attempts[1].trace.ranks.values()
        for load in rank.loads
        if load.step == 0
    }
    return tuple(p for p in written if p in read) or written
