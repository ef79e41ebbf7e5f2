"""Which saves a resume could start from, and which of them were whole at the kill.

A save is all checkpoint writes of all ranks between two steps. It is a resume point if
it wrote what the control's resume read. It is whole once every part has ended that the
baseline's saves have, and settled once the program was seen to move on after it: until
then it counts as in flight, and both it and the one before are right to resume from.
Training moves on beside a thread that saves: what that writes has settled once the same
was begun of a later step, and never where nobody knows of which step it is. Where no
save has all that a resume reads, a pointer lags behind what a helper writes: it is moved
at the next save, and until that is whole nobody knows what it leads to.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from spotchaos.model import (
    Attempt,
    AttemptTrace,
    Ended,
    RankTrace,
    Request,
    SaveMark,
)

_DIGITS = re.compile(r"\d+")
# What uuid, digests and tempfile put into names; each time another.
_RANDOM = re.compile(
    r"(?<![0-9A-Za-z])(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    r"|(?=[a-f]*\d)[0-9a-f]{8,}|tmp[a-z0-9_]{8}(?!_))(?![0-9A-Za-z])"
)
_TEMPORARY = re.compile(
    r"[._-]?(tmp|temp|part|partial|incomplete)[._#-]*$", re.IGNORECASE
)


def pattern_of(path: str) -> str:
    """Return a path with `#` for each number or random name, and no temporary suffix."""
    path = _DIGITS.sub("#", _RANDOM.sub("#", path))
    return _TEMPORARY.sub("", path).removeprefix("./")


# Kinds of requests that put an object into a store.
WRITES = frozenset({"write", "commit"})
# With these an upload in parts begins, or begins again.
BEGINS = frozenset({"CreateMultipartUpload", "StartUpload"})


@dataclass(frozen=True, slots=True)
class Saved:
    """All writes of one attempt between two steps, over all of its ranks."""

    step: int  # of the line
    attempt: int
    is_whole: bool
    is_settled: bool
    patterns: frozenset[str]
    begun_at_s: float
    ended_at_s: float | None
    written: frozenset[int] = frozenset()  # steps of the line at which it was written
    is_opaque: bool = False  # nobody could look at what was written


@dataclass(frozen=True, slots=True)
class Habit:
    """How the baseline saves: what every whole resume point has.

    `steps` are those at which the baseline saved one between its first step and its
    last (what is saved before any step, as by a rate finder, saves nobody any); `writes` is
    what each save puts into a store, see `writes_per_save`. `is_split`: what a resume
    reads is written between different steps, all of it between no two.
    """

    patterns: tuple[str, ...]
    writers: frozenset[int]
    parts: frozenset[str]
    steps: tuple[int, ...]
    writes: Mapping[str, int] = field(default_factory=dict)
    is_split: bool = False


def last_written(trace: AttemptTrace, step: int) -> frozenset[str]:
    """Return the names, digits apart, that saves after the last step have in the end."""
    return frozenset(
        _DIGITS.sub("#", _RANDOM.sub("#", path))
        for rank in trace.ranks.values()
        for save in rank.saves
        for path in save.paths
        if step in (save.step, save.of_step)
    )


def habit_of(trace: AttemptTrace, patterns: Sequence[str]) -> Habit:
    """Learn from the baseline what a whole resume point consists of."""
    wanted = tuple(pattern_of(p) for p in patterns)
    by_step = _by_step(trace)
    if wanted and not any(
        _matches(_parts(saves.values()), wanted) for saves in by_step.values()
    ):
        # What the control read has no name that a save ever had: then any save may be it.
        wanted = ()
    has_names = any(_parts(saves.values()) for saves in by_step.values())
    points = {
        step: saves
        for step, saves in by_step.items()
        if _matches(_parts(saves.values()), wanted)
        and (_parts(saves.values()) or not has_names)
    }
    writers = [frozenset(saves) for saves in points.values()]
    parts = [_parts(saves.values()) for saves in points.values()]
    return Habit(
        patterns=wanted,
        writers=frozenset.intersection(*writers) if writers else frozenset(),
        parts=frozenset.intersection(*parts) if parts else frozenset(),
        steps=tuple(s for s in sorted(points) if 0 < s < trace.completed),
        is_split=_is_split(
            [_parts(s.values()) for n, s in points.items() if n], wanted
        ),
    )


def _is_split(points: Sequence[frozenset[str]], wanted: Sequence[str]) -> bool:
    """Tell whether no save has all parts that are saved and that a resume reads."""
    read = [frozenset(p for p in parts if _matches([p], wanted)) for parts in points]
    union = frozenset().union(*read)
    return bool(wanted) and len(union) > 1 and union not in read


def saves_of(
    trace: AttemptTrace, *, attempt: int, joined: int, ended: Ended, habit: Habit
) -> list[Saved]:
    """Return the resume points that an attempt began to write, in order."""
    found = []
    by_step = _by_step(trace)
    for local, saves in sorted(by_step.items()):
        parts = _parts(saves.values())
        begun = {rank: save.ended_at_s for rank, save in saves.items()}
        if not _matches(parts, habit.patterns) and None not in begun.values():
            continue
        ends = [end for end in begun.values() if end is not None]
        whole = (
            len(ends) == len(begun)
            and habit.writers <= begun.keys()
            and habit.parts <= parts
        )
        ended_at_s = max(ends) if whole else None
        moved_on = ended in (Ended.FINISHED, Ended.EXITED) or any(
            _moved_on(trace.ranks[rank], save, ended_at_s)
            for rank, save in saves.items()
        )
        if any(save.is_of_unknown_step for save in saves.values()):
            moved_on = False
        found.append(
            Saved(
                step=joined + local,
                attempt=attempt,
                is_whole=whole,
                is_settled=whole and moved_on,
                patterns=parts,
                begun_at_s=min(save.begun_at_s for save in saves.values()),
                ended_at_s=ended_at_s,
                written=frozenset(joined + save.step for save in saves.values()),
                is_opaque=all(
                    save.holds is None and not save.is_beside for save in saves.values()
                ),
            )
        )
    if not habit.is_split or ended is Ended.FINISHED:
        return found
    return [
        replace(
            one,
            is_settled=one.is_settled
            and any(
                later.is_whole and not later.patterns.isdisjoint(one.patterns)
                for later in found[at:]
            ),
        )
        for at, one in enumerate(found, 1)
    ]


def lagging(saved: Iterable[Saved], lag: int) -> list[Saved]:
    """Return saves with the oldest step that they can be of, where nobody saw into them.

    Args:
        saved: those of one attempt, in order.
        lag: by how many steps a save of the program was seen to be behind; see
            `lineage.lag_of`. It may be more another time, but a copy is taken after the
            one before it was written.
    """
    found: list[Saved] = []
    last: int | None = None
    for one in saved:
        step = one.step
        if lag and one.is_opaque:
            step = max(0, step - lag if last is None else min(step - lag, last))
        last = one.step
        found.append(replace(one, step=step))
    return found


def is_corrupted(
    save: SaveMark, attempt: Attempt, *, writes: Mapping[str, int]
) -> bool:
    """Tell whether a fault struck this save, or its upload was under way at the kill.

    Args:
        save: the one in question.
        attempt: which made it.
        writes: what a save puts into a store, see `writes_per_save`.
    """
    if _is_under_way(save, attempt, writes):
        return True
    for injected in attempt.injected:
        if injected.kind == "store" and injected.times:
            if _was_given_up(save, attempt, injected.at_s or 0.0):
                return True
            continue
        if injected.kind == "damage" and any(
            injected.path == path or (injected.path or "").startswith(f"{path}/")
            for path in save.paths
        ):
            return True
        if injected.kind in ("error", "delay") and injected.at_s is not None:
            ended_s = save.ended_at_s
            if save.begun_at_s <= injected.at_s and (
                ended_s is None or injected.at_s <= ended_s
            ):
                return True
    return False


def writes_per_save(attempt: Attempt) -> dict[str, int]:
    """Return what every save of an uninterrupted run puts into its store: shape, how often.

    Uploads in the background may lag behind: what counts is that in the end there are as
    many of a shape as saves, or twice as many, and so on.
    """
    begun_s = _begins(attempt).values()
    if attempt.stored is None or not begun_s:
        return {}
    counts = Counter(
        _name_of(request)
        for request in _accepted(attempt.stored.requests)
        if request.at_s >= min(begun_s)
    )
    whole = {shape: divmod(count, len(begun_s)) for shape, count in counts.items()}
    return {shape: each for shape, (each, rest) in whole.items() if not rest}


def _is_under_way(save: SaveMark, attempt: Attempt, writes: Mapping[str, int]) -> bool:
    """Tell whether a kill came before all of a save's objects were in the store.

    Writes that the store refused, and that nobody repeated, are not under way. Uploads in
    the background may lag behind by more than a save, but come in the order of saves.
    """
    stored = attempt.stored
    if stored is None or attempt.ended is not Ended.RECLAIMED or unsaved(attempt):
        return False
    begun = _begins(attempt)
    own = [begin for step, begin in begun.items() if step <= save.step]
    for shape, each in writes.items():
        came_at_s = [
            request.at_s
            for request in _accepted(stored.requests)
            if _name_of(request) == shape
        ]
        since = sum(at_s >= own[-1] for at_s in came_at_s)
        in_all = sum(at_s >= own[0] for at_s in came_at_s)
        if since < each or in_all < each * len(own):
            return True
    # What is on its way in parts is of the newest save that had begun by then.
    return any(
        own[-1] == max((b for b in begun.values() if b <= at_s), default=None)
        for at_s in _on_their_way(stored.requests)
    )


def _on_their_way(requests: Iterable[Request]) -> list[float]:
    """Return when each upload in parts was begun that was not complete in the end."""
    begun_s: dict[str, float] = {}
    for request in requests:
        if request.part or request.operation in BEGINS:
            begun_s.setdefault(request.path, request.at_s)
        elif request.kind in WRITES and request.is_accepted:
            begun_s.pop(request.path, None)
    return list(begun_s.values())


def unsaved(attempt: Attempt) -> list[Request]:
    """Return the last write of each object that was refused, and never tried again well.

    The program's own retries count: only what it left so is returned.
    """
    if attempt.stored is None:
        return []
    last: dict[str, Request] = {}
    for request in attempt.stored.requests:
        if request.kind in WRITES:
            last[request.path] = request
        elif request.operation in BEGINS:
            last.pop(request.path, None)
    return [r for r in last.values() if not r.is_accepted and r.fault]


def _name_of(request: Request) -> str:
    """Return the shape of an object's last name; folders may be a machine's own."""
    return pattern_of(request.path.rpartition("/")[2])


def _accepted(requests: Iterable[Request]) -> list[Request]:
    """Return what put an object into the store; parts are none yet."""
    return [request for request in requests if request.made_object]


def _begins(attempt: Attempt) -> dict[int, float]:
    """Return when each save of an attempt began, over all ranks, by its step."""
    begun_s: dict[int, float] = {}
    for rank in attempt.trace.ranks.values():
        for save in rank.saves:
            earlier = begun_s.get(save.step, save.begun_at_s)
            begun_s[save.step] = min(earlier, save.begun_at_s)
    return dict(sorted(begun_s.items()))


def _was_given_up(save: SaveMark, attempt: Attempt, at_s: float) -> bool:
    """Tell whether an error of the store in or after this save ended the attempt.

    A program that exits for it has not said that the save is done.
    """
    later = [
        other.begun_at_s
        for rank in attempt.trace.ranks.values()
        for other in rank.saves
        if other.step > save.step
    ]
    is_of_this_save = save.begun_at_s <= at_s < min(later, default=float("inf"))
    by_itself = attempt.ended in (Ended.FAILED, Ended.EXITED)
    return is_of_this_save and by_itself and attempt.exit_code != 0


def newest(saved: Iterable[Saved]) -> int | None:
    """Return the step of the newest resume point that is certainly whole, or None."""
    settled = [save.step for save in saved if save.is_settled]
    return settled[-1] if settled else None


def oldest_acceptable(saved: Iterable[Saved]) -> int | None:
    """Return the step before which a resume is stale, or None if nothing is certain.

    After an attempt that resumed from an older checkpoint the last one written is not
    the one of the highest step; either is a fair choice.
    """
    settled = [save.step for save in saved if save.is_settled]
    return min(settled[-1], max(settled)) if settled else None


def _by_step(trace: AttemptTrace) -> dict[int, dict[int, SaveMark]]:
    by_step: dict[int, dict[int, SaveMark]] = {}
    for rank, found in trace.ranks.items():
        for save in found.saves:
            saves = by_step.setdefault(save.of_step, {})
            saves[rank] = _joined(saves[rank], save) if rank in saves else save
    return by_step


def _joined(one: SaveMark, other: SaveMark) -> SaveMark:
    """Return two pieces of one rank's save of a step as one."""
    ends = [one.ended_at_s, other.ended_at_s]
    return replace(
        one,
        paths=(*one.paths, *other.paths),
        state=one.state or other.state,
        ended_at_s=None if None in ends else max(end for end in ends if end),
        is_beside=one.is_beside or other.is_beside,
        holds=one.holds if other.holds is None else other.holds,
        is_of_unknown_step=one.is_of_unknown_step or other.is_of_unknown_step,
    )


def _parts(saves: Iterable[SaveMark]) -> frozenset[str]:
    return frozenset(pattern_of(path) for save in saves for path in save.paths)


def _matches(parts: Collection[str], wanted: Collection[str]) -> bool:
    """Whether any part is, holds or lies in what is wanted; nothing wanted is anything."""
    if not wanted:
        return True
    return any(
        part == want or part.startswith(f"{want}/") or want.startswith(f"{part}/")
        for part in parts
        for want in wanted
    )


def _moved_on(trace: RankTrace, save: SaveMark, ended_at_s: float | None) -> bool:
    if save.is_beside:
        return any(
            other.begun_at_s > save.begun_at_s
            and other.of_step > save.of_step
            and not _parts([other]).isdisjoint(_parts([save]))
            for other in trace.saves
        )
    if trace.completed > save.step:
        return True
    state = trace.states.get(save.step)
    return state is not None and ended_at_s is not None and state.t_s > ended_at_s
