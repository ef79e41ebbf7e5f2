"""Whom a signal or a reclaim strikes: from the words of `--to` to processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spotchaos.errors import HarnessError
from spotchaos.launch.isolation import process_tree
from spotchaos.launch.isolation.process_tree import Process


def targets_of(
    target: str,
    members: Sequence[Process],
    *,
    leader: int | None,
    leader_group: int | None,
    ranks: Mapping[int, int],
) -> list[int]:
    """Return the pids, here, of the processes that `target` names.

    Args:
        target: "all", "leader", "group", "launcher", "workers", "rank:R" or
            "rank:R,R" (a machine that holds several).
        members: every live process of the program.
        leader: pid of its first process, as the program sees it.
        leader_group: process group of the leader, here.
        ranks: pid, here, of each rank that is known.

    Raises:
        HarnessError: it names nobody.
    """
    if target == "all":
        return [p.pid for p in members]
    if target == "leader":
        found = [p.pid for p in members if p.inner_pid == leader]
    elif target == "group":
        found = [p.pid for p in members if p.group == leader_group]
    elif target == "launcher":
        found = _launchers(members, leader, set(ranks.values()))
    elif target == "workers":
        found = _workers(members, set(ranks.values()))
    else:
        wanted = {ranks.get(int(r)) for r in target.removeprefix("rank:").split(",")}
        found = [p.pid for p in members if p.pid in wanted]
        if len(found) < len(wanted):
            found = []  # one that has ended, or never was
    if not found:
        raise HarnessError(
            f"the attempt has no process that {target!r} names",
            hint="`--to all` reaches every process",
        )
    return found


def _launchers(
    members: Sequence[Process], leader: int | None, ranks: set[int]
) -> list[int]:
    """Return the processes that started ranks and train nothing themselves."""
    parents = {p.parent for p in members if p.pid in ranks}
    found = [p.pid for p in members if p.pid in parents and p.pid not in ranks]
    return found or [p.pid for p in members if p.inner_pid == leader]


def _workers(members: Sequence[Process], ranks: set[int]) -> list[int]:
    """Return the children of ranks that work for them: loader workers and the like."""
    return [
        p.pid
        for p in members
        if p.parent in ranks
        and p.pid not in ranks
        and not any("resource_tracker" in w for w in process_tree.command_line(p.pid))
    ]
