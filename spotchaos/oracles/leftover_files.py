"""What stays behind for ever when a run is over, and did not when it was left alone.

What an uninterrupted run leaves is its own habit and convicts nobody; neither does what
lies in TMPDIR after a kill, which the next machine does not have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from spotchaos.model import Attempt, Ended, Finding, Left
from spotchaos.oracles.lineage import Case, ResumedAttempt
from spotchaos.oracles.wording import listed

# In TMPDIR only what fills a disk counts: caches and sockets of libraries lie there.
LARGE_BYTES = 1 << 20
_RANDOM = re.compile(r"\d+|(?<=tmp)[a-z0-9_]{6,}|(?<=[._-])[A-Za-z0-9_]{6,}(?=$|\.)")
# Linux chooses ports from here on (net.ipv4.ip_local_port_range).
FIRST_CHOSEN_PORT = 32768
_BY_ITSELF = frozenset({Ended.FINISHED, Ended.EXITED, Ended.FAILED})


def judge_leftovers(case: Case) -> Iterator[Finding]:
    """Name files, memory, ports and uploads that nobody will ever give up."""
    last = case.last
    alone = case.baseline.first
    if case.is_finished and last.attempt.trace.completed:
        yield from _files(case, last, alone)
        yield from _uploads(last, alone)
    for resumed in case.links:
        yield from _of_a_machine(case, resumed, alone)
        yield from _ports(resumed, alone)


def _files(case: Case, last: ResumedAttempt, alone: Attempt) -> Iterator[Finding]:
    """Name temporary files of killed attempts that the finished run has not swept."""
    left, usual = last.attempt.left, alone.left
    if left is None or usual is None or not _has_saved(last.attempt):
        return
    known = {_shape(name) for name, _ in usual.files}
    earlier = {
        name
        for resumed in case.links[: case.links.index(last)]
        if resumed.attempt.left is not None
        for name, _ in resumed.attempt.left.files
    }
    found = [
        (name, size)
        for name, size in left.files
        if size and name in earlier and _shape(name) not in known
    ]
    if found:
        yield _finding(
            last,
            f"what a killed save had begun is still there, {_named(found)}: the run that"
            " went on saved again and finished, and swept nothing",
            "sweep what a killed save left when the program starts, or write to one"
            " name that the next save overwrites",
        )


def _uploads(last: ResumedAttempt, alone: Attempt) -> Iterator[Finding]:
    stored, usual = last.attempt.stored, alone.stored
    if stored is None or usual is None:
        return
    found = sorted(set(stored.abandoned) - set(usual.abandoned))
    if found:
        yield _finding(
            last,
            f"the upload{'s' if len(found) > 1 else ''} of"
            f" {listed(map(repr, found[:3]))} was begun, and neither completed nor"
            " aborted: its parts are kept, and paid for, until somebody aborts it",
            "abort what earlier machines left open when the program starts"
            " (ListMultipartUploads), or give the bucket a lifecycle rule",
        )


def _of_a_machine(
    case: Case, resumed: ResumedAttempt, alone: Attempt
) -> Iterator[Finding]:
    """Name what an attempt left in memory or in TMPDIR although it ended by itself."""
    left, usual = resumed.attempt.left, alone.left
    if left is None or usual is None or resumed.attempt.ended not in _BY_ITSELF:
        return
    before = [k.attempt.left for k in case.links if k.number < resumed.number]
    for kind, what, least in (
        ("memory", "shared memory", 1),
        ("temporary", "TMPDIR", LARGE_BYTES),
    ):
        there = {
            name for one in before if one is not None for name, _ in _of(one, kind)
        }
        known = {_shape(name) for name, _ in _of(usual, kind)}
        found = [
            (name, size)
            for name, size in _of(left, kind)
            if size >= least and name not in there and _shape(name) not in known
        ]
        if found:
            yield _finding(
                resumed,
                f"it ended by itself and left {_named(found)} in {what}, which an"
                " uninterrupted run does not",
                "unlink shared memory and temporary files on the way out of a signal as"
                " well: with try and finally, or atexit, and not os._exit",
            )


def _ports(resumed: ResumedAttempt, alone: Attempt) -> Iterator[Finding]:
    """Name ports that a process keeps which outlived its attempt.

    One that the system chose is in nobody's way; one of a fixed number is in that of the
    next start on the same machine.
    """
    left, usual = resumed.attempt.left, alone.left
    if left is None or usual is None or resumed.attempt.ended not in _BY_ITSELF:
        return
    known = {port for _, port in usual.ports}
    found = [
        (who, port)
        for who, port in left.ports
        if port not in known and port < FIRST_CHOSEN_PORT
    ]
    if found:
        who, port = found[0]
        yield _finding(
            resumed,
            f"port {port} is still taken, by {who!r}, which lives on: a start on the same"
            " machine cannot listen there",
            "close listening sockets and end who holds them on the way out of a signal as"
            " well, or let the system choose the port (port 0)",
        )


def _of(left: Left, kind: str) -> Sequence[tuple[str, int]]:
    found: Sequence[tuple[str, int]] = getattr(left, kind)
    return found


def _has_saved(attempt: Attempt) -> bool:
    return any(
        save.ended_at_s is not None
        for rank in attempt.trace.ranks.values()
        for save in rank.saves
    )


def _shape(name: str) -> str:
    return _RANDOM.sub("#", name)


def _named(found: Sequence[tuple[str, int]]) -> str:
    names = [f"{name!r} ({size} bytes)" for name, size in found[:3]]
    return listed([*names, f"{len(found) - 3} more"] if found[3:] else names)


def _finding(resumed: ResumedAttempt, message: str, hint: str) -> Finding:
    return Finding(
        "leftovers",
        f"after attempt {resumed.number}, {message}",
        hint=hint,
        attempt=resumed.number,
        step=resumed.end,
    )
