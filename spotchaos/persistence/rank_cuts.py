"""Which ranks can have been killed earlier than the others, and at which of their ops.

A rank that is killed stops; the others go on until they need it. Two things bind them:
an op on what an op of the dead rank has made cannot have happened, and nobody passes a
barrier (a collective, a step's end) that not all have reached. The log shows the first;
the second comes from the marks of the probe.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spotchaos.persistence.history import History
from spotchaos.persistence.oplog import FileOp
from spotchaos.persistence.tokens import StateToken


@dataclass(frozen=True, slots=True)
class Barrier:
    """A moment that no rank passes before all have reached it.

    `reached` is rank -> number of the first op which that rank made after it; a rank
    that made none later is left out.
    """

    reached: tuple[tuple[int, int], ...]

    def of(self, rank: int) -> int | None:
        """Return the rank's first op after the barrier."""
        return dict(self.reached).get(rank)


def ranks(history: History) -> list[int]:
    """Return the ranks that made ops."""
    return sorted({op.rank for op in history.ops if op.rank is not None and op.number})


def early_tokens(
    history: History, barriers: Sequence[Barrier] = ()
) -> Iterator[StateToken]:
    """Yield the kill states in which one rank was killed earlier than the others.

    Args:
        history: a run of two ranks or more.
        barriers: in order; none means that the ranks share nothing but their files.

    Yields:
        `K@N,rR=M`: rank R was killed before its op M, and the others got as far as
        before op N: one state for each N at which they still could be.
    """
    for rank in ranks(history):
        mine = [op.number for op in history.ops if op.rank == rank and op.number]
        for number in mine:
            limit = _last_reachable(history, rank, number, barriers)
            for end in range(number + 1, limit + 1):
                op = history.op(end - 1)
                if op is not None and op.rank != rank:
                    yield StateToken(letter="K", number=end, early=((rank, number),))


def is_possible(
    history: History, token: StateToken, barriers: Sequence[Barrier] = ()
) -> bool:
    """Tell whether a state with early ranks respects what came before what."""
    return all(
        number <= token.number <= _last_reachable(history, rank, number, barriers)
        for rank, number in token.early
    )


def _last_reachable(
    history: History, rank: int, number: int, barriers: Sequence[Barrier]
) -> int:
    """Return the last N such that all ops before N of other ranks could happen."""
    limit = history.log.last + 1
    for barrier in barriers:
        first_after = barrier.of(rank)
        if first_after is not None and first_after <= number:
            continue  # it may have died when it had passed this one
        beyond = [n for other, n in barrier.reached if other != rank]
        limit = max(number, min([limit, *beyond]))
        break
    touched: set[object] = set()
    for op in history.ops:
        if op.number is None or op.number < number:
            continue
        if op.number >= limit:
            break
        if op.rank == rank:
            touched |= _marks_of(op)
        elif _needs(op) & touched:
            return op.number
    return limit


def _marks_of(op: FileOp) -> set[object]:
    """Return what an op makes that another may need: nodes and names."""
    names = {name for name in (op.path, op.to) if name is not None}
    return {*names, *({("node", op.node)} if op.node is not None else ())}


def _needs(op: FileOp) -> set[object]:
    needed: set[object] = set()
    for name in (op.path, op.to):
        while name:
            needed.add(name)
            name = name.rpartition("/")[0]
    if op.node is not None:
        needed.add(("node", op.node))
    return needed
