"""The moments at which a kill leaves another state on disk, and which of them plans met.

Between two changes of files all kills leave the same. Such gaps have names that saves
share (after `unlink latest`, before `symlink latest`): a plan that strikes a gap of a
name that no other plan has struck tells more than one more kill between two saves.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest

from spotchaos.config.plan import KillPoint, Plan
from spotchaos.model import Attempt
from spotchaos.oracles.resume_points import pattern_of
from spotchaos.persistence import oplog
from spotchaos.persistence.oplog import DATA_KINDS, NAME_KINDS, FileOp

# What makes or removes a name, or cuts a file: the gap after it is where a marker and
# what it marks, or an old and a new checkpoint, are apart.
_RENAMING = frozenset({"rename", "unlink", "symlink", "link", "trunc"})
_CHANGES = (NAME_KINDS | DATA_KINDS) - {"import", "export", "mwrite"}


@dataclass(frozen=True, slots=True)
class Moment:
    """The gap after one change of files.

    Attributes:
        op: number of the change in the op log.
        gap: the name of the gap; those of all saves that are made alike share it.
        is_early: the program has not yet ended its first step.
        is_renaming: a name was made or removed by the change, or a file was cut.
        is_between: the next change is to another file.
    """

    op: int
    gap: str
    is_early: bool = False
    is_renaming: bool = False
    is_between: bool = False

    @property
    def is_telling(self) -> bool:
        """Whether a resume may well find there what its program never expects."""
        return self.is_early or self.is_renaming or self.is_between

    @property
    def point(self) -> KillPoint:
        """Return the kill point that strikes in it."""
        return KillPoint(site="file-op", occurrence=self.op, over_all=True, cut="after")


@dataclass(frozen=True)
class Moments:
    """All gaps of a recorded run, in order.

    Attributes:
        all: the gaps.
        ends: how many ops had been made as step 1, 2, ... ended.
        saves: of the run, by which ops are shared out.
    """

    all: Sequence[Moment] = ()
    ends: Sequence[int] = ()
    saves: int = 1

    @cached_property
    def gaps(self) -> dict[str, list[Moment]]:
        """Return name -> gaps of that name, names in the order of the run."""
        found: dict[str, list[Moment]] = {}
        for moment in self.all:
            found.setdefault(moment.gap, []).append(moment)
        return found

    @property
    def ops_of_a_save(self) -> int:
        return max(1, (self.all[-1].op if self.all else 1) // max(1, self.saves))

    def after(self, made: int) -> Moment | None:
        """Return the gap in which a kill strikes once so many ops were made."""
        index = bisect_right(self.all, made, key=lambda moment: moment.op)
        return self.all[index - 1] if index else None

    def injected(self, point: KillPoint) -> tuple[Moment | None, str]:
        """Return where a kill of the first attempt strikes, and what else is on disk.

        The second is not empty where a write is cut.
        """
        if point.site == "step-end" and self.ends:
            step = min(max(1, point.occurrence), len(self.ends))
            return self.after(self.ends[step - 1]), ""
        if point.site == "file-op" and point.over_all:
            made = point.occurrence - (point.cut != "after")
            return self.after(made), "" if point.cut in (None, "after") else str(point)
        return None, str(point)

    def not_struck(self, plans: Iterable[Plan]) -> list[str]:
        """Return the names of gaps in which no first kill of these plans strikes."""
        injected = [self.injected(plan.points[0])[0] for plan in plans if plan.points]
        known = {moment.gap for moment in injected if moment is not None}
        return [gap for gap in self.gaps if gap not in known]


def moments_of(log: oplog.OpLog, recorded: Attempt, *, saves: int) -> Moments:
    """Read the gaps of a recorded run.

    Args:
        log: its op log.
        recorded: the run.
        saves: how many saves it made.
    """
    began_s = float(log.header.get("began_s", 0.0))
    traces = list(recorded.trace.ranks.values())
    marks = [mark for trace in traces[:1] for mark in trace.steps]
    step_ends_s = [mark.t_s - began_s for mark in marks]
    ops = [o for o in log.ops if o.number and not o.error and o.kind in _CHANGES]
    renamed = {o.path: o.to for o in ops if o.kind == "rename" and o.path and o.to}

    def role(path: str | None) -> str:
        # Temporary names may be random: they are called by what they become.
        final = renamed.get(path) if path else None
        return f"new {pattern_of(final)}" if final else pattern_of(path or "?")

    def named(op: FileOp) -> str:
        place = op.to if op.kind in ("rename", "link") and op.to else op.path
        return (
            f"{op.kind} {pattern_of(place or '?') if place == op.to else role(place)}"
        )

    found = []
    for op, following in zip_longest(ops, ops[1:]):
        is_early = not step_ends_s or op.at_s < step_ends_s[0]
        is_other = following is not None and role(op.path) != role(following.path)
        found.append(
            Moment(
                op=op.number or 1,
                gap=("before step 1: " if is_early else "")
                + f"after {named(op)}, before "
                + (named(following) if following is not None else "the end"),
                is_early=is_early,
                is_renaming=op.kind in _RENAMING,
                is_between=is_other,
            )
        )
    times = [op.at_s for op in ops]
    numbers = [0, *(op.number or 0 for op in ops)]
    ends = tuple(numbers[bisect_right(times, end_s)] for end_s in step_ends_s)
    return Moments(tuple(found), ends, max(1, saves))


def _short(path: str | None) -> str:
    """Return a path of the log without its folder's number, digits replaced by `#`."""
    return pattern_of((path or "?").partition("/")[2] or path or "?")
