"""Where interruptions can land, and the plans that are drawn by rule and not by chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spotchaos.config.plan import KillPoint, Plan
from spotchaos.errors import PlanError
from spotchaos.planning.moments import Moments

# Gaps between file operations, of those of each name, that are struck.
MOST_GAPS = 8


@dataclass(frozen=True, slots=True)
class SiteIndex:
    """What a baseline shows of where interruptions can land, on rank 0.

    `saves` are pairs (steps completed when the save began, its number n). `inside_saves`
    are kill points in the file ops of one of them, most telling first.
    `epoch_ends` are steps after which an epoch ended.
    """

    horizon: int
    counts: Mapping[str, int]
    saves: Sequence[tuple[int, int]] = ()
    epoch_ends: Sequence[int] = ()
    file_ops: int | None = None  # recorded in a run; None: there are no file sites
    inside_saves: Sequence[KillPoint] = ()  # of a middle save: writes, renames, ...
    moments: Moments = field(default_factory=Moments)  # gaps between file ops


def edges(site_index: SiteIndex) -> list[Plan]:
    """Return the plans in which interrupted programs go wrong most often, in order.

    Step 1, before the first save, the begin of a save, inside it (where file sites are),
    right after one, an epoch's end, soon after a resume, during the load, the last step,
    the gaps that a rename, unlink, link or truncate leaves, those before step 1, and a
    start after the finish. None is drawn by chance.
    """
    found: list[list[KillPoint]] = [[step_end(1)]]
    saves = list(site_index.saves)
    if saves:
        first_step = saves[0][0]
        if first_step > 2:
            found.append([step_end(first_step - 1)])
        middle_step, middle_n = saves[len(saves) // 2]
        found.append([KillPoint(site="save-begin", occurrence=middle_n)])
        found += [[point] for point in list(site_index.inside_saves)[:3]]
        found.append([KillPoint(site="save-end", occurrence=middle_n)])
        after = min(middle_step + 1, site_index.horizon)
        found.append([step_end(after)])
        if middle_step + 2 < site_index.horizon:
            found.append([step_end(after), step_end(1)])
            found.append([step_end(after), KillPoint(site="load-begin", occurrence=1)])
    for step in list(site_index.epoch_ends)[:2]:
        if 0 < step < site_index.horizon:
            found.append([step_end(step)])
    found.append([step_end(site_index.horizon)])
    found += [[point] for point in _gap_points(site_index)]
    plans = [Plan(tuple(points), drawn=True) for points in found]
    unique = list(dict.fromkeys(plans))
    return [*unique, Plan((), drawn=True, after_finish=True)]


def _gap_points(site_index: SiteIndex) -> list[KillPoint]:
    """Return a kill point in the middle one of the gaps of each telling name.

    First those in which a name was made or removed, then those before the first step;
    between two files of a save come last.
    """
    chosen = []
    for moments in site_index.moments.gaps.values():
        middle = moments[len(moments) // 2]
        if middle.is_telling:
            chosen.append(middle)
    chosen.sort(key=lambda m: (not m.is_renaming, not m.is_early, m.op))
    return [moment.point for moment in chosen[:MOST_GAPS]]


def every_step(site_index: SiteIndex) -> list[Plan]:
    """Return a plan for each step of the baseline."""
    return [Plan((step_end(n),), drawn=True) for n in range(1, site_index.horizon + 1)]


def every_file_op(site_index: SiteIndex) -> list[Plan]:
    """Return a plan for each recorded file operation.

    Raises:
        PlanError: this machine has no file sites.
    """
    if site_index.file_ops is None:
        raise PlanError(
            "'every-file-op' needs file sites, which are off on this machine",
            hint="ask `spotchaos doctor` why",
        )
    return [
        Plan((KillPoint(site="file-op", occurrence=n, over_all=True),), drawn=True)
        for n in range(1, site_index.file_ops + 1)
    ]


def step_end(n: int) -> KillPoint:
    """Return the kill point at the end of step `n`."""
    return KillPoint(site="step-end", occurrence=n)
