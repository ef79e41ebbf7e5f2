"""From the files of a trace folder to the record of one attempt.

Nothing here trusts a file to be whole: a reclaim cuts the last line, leaves out the
farewell, and takes processes that had only just begun. What cannot be read is left out;
what the counters still know is used where the farewell is missing.
"""

from __future__ import annotations

import itertools
import math
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from spotchaos.model import AttemptTrace, Restart
from spotchaos.trace.traced import TracedProcess, read_process


def read_attempt(folder: Path) -> AttemptTrace:
    """Read what all processes of one attempt left behind in `folder`.

    Processes that took no step and are not the one that failed to take any (loader
    workers, launchers, compile workers) are counted and otherwise left out. Where two
    processes claim one rank, the one that trained is believed.

    Args:
        folder: the attempt's trace folder; a missing or empty one is an attempt that
            was never observed.
    """
    return _together(_processes(folder))


def read_restarts(folder: Path, *, injected_at_s: float) -> tuple[Restart, ...]:
    """Read what began to train anew within an attempt, once it had been struck.

    A launcher that outlives a rank (torchrun with `--max-restarts`, a shell's loop) starts
    all of them again: each such start is a resume like any other.

    Args:
        folder: the attempt's trace folder.
        injected_at_s: when the first signal was sent, CLOCK_MONOTONIC.

    Returns:
        What ran until then, and each start after it; empty if there was none.
    """
    processes = _processes(folder)
    mains = [p for p in processes if p.is_main]
    before = [p for p in mains if p.began_at_s < injected_at_s]
    commands = [p.argv for p in before if p.has_trained]
    later: dict[int, list[TracedProcess]] = {}
    for process in sorted(mains, key=lambda p: p.began_at_s):
        is_new = process.began_at_s >= injected_at_s
        if is_new and (process.has_trained or process.argv in commands):
            later.setdefault(process.rank, []).append(process)
    starts = max(map(len, later.values()), default=0)
    if not commands or not starts:
        return ()
    began_s = [
        min(each[n].began_at_s for each in later.values() if len(each) > n)
        for n in range(starts)
    ]
    bounds = [0.0, *began_s, math.inf]
    found = []
    for start_s, end_s in itertools.pairwise(bounds):
        own = [p for p in processes if start_s <= p.began_at_s < end_s]
        found.append(Restart(_together(own), began_at_s=start_s))
    return tuple(found)


def _processes(folder: Path) -> list[TracedProcess]:
    return [p for p in map(read_process, sorted(folder.glob("*.trace"))) if p]


def _together(processes: Sequence[TracedProcess]) -> AttemptTrace:
    """Return what processes did that ran side by side."""
    mains = [p for p in processes if p.is_main]
    trained = [p for p in mains if p.has_trained]
    chosen: dict[int, TracedProcess] = {}
    for process in trained or mains:
        rival = chosen.get(process.rank)
        if rival is None or process.claim > rival.claim:
            chosen[process.rank] = process
    for process in chosen.values():
        process.adopt(mains)
    sizes = [p.world_size for p in chosen.values() if p.world_size]
    ranks = {rank: chosen[rank].finished() for rank in sorted(chosen)}
    for rank, trace in ranks.items():
        cause = _cause(chosen[rank], mains)
        if cause is not chosen[rank]:
            ranks[rank] = replace(trace, exception=cause.exception)
    return AttemptTrace(
        ranks=ranks,
        world_size=max(sizes, default=len(chosen)),
        processes=len(processes),
        torch_seen=any(p.torch for p in processes),
        in_turn=max((_in_turn(trained, rank) for rank in ranks), key=len, default=()),
    )


def _in_turn(trained: Iterable[TracedProcess], rank: int) -> tuple[str, ...]:
    """Return the commands of those that trained a rank once the one before had ended."""
    found: list[TracedProcess] = []
    own = (p for p in trained if p.rank == rank and p.made_steps)
    for process in sorted(own, key=lambda p: p.began_at_s):
        if not found or process.began_at_s >= found[-1].ended_at_s:
            found.append(process)
    if len(found) < 2:
        return ()
    return tuple(shlex.join(p.argv) for p in found)


# What a launcher raises of which a child failed: it tells the command, not the reason.
_OF_A_CHILD = frozenset(
    ("CalledProcessError", "ChildFailedError", "ProcessExitedException", "SystemExit")
)


def _cause(process: TracedProcess, mains: Iterable[TracedProcess]) -> TracedProcess:
    """Return the child whose failure a launcher reports, else the process itself."""
    found = process.exception
    if found is None or found.type not in _OF_A_CHILD:
        return process
    failed = [
        p
        for p in mains
        if p.hello.get("ppid") == process.hello.get("pid")
        and p is not process
        and p.exception is not None
    ]
    last = max(failed, key=lambda p: float((p.bye or {}).get("t") or 0.0), default=None)
    return process if last is None else _cause(last, mains)
