"""Real kills of one rank, which say how far the others get without it.

The op log and the ends of steps show some of what binds the ranks of a program; that
one waits for another in the middle of a save, they do not show. So no state in which a
rank was killed earlier than the others is called wrong before a real kill of that rank
has let the others get as far.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from spotchaos.config.plan import KillPoint
from spotchaos.explore.resuming import Starter
from spotchaos.launch.attempt.spec import FileOrders
from spotchaos.persistence import oplog
from spotchaos.persistence.tokens import StateToken
from spotchaos.recording.recorded_run import Recorded
from spotchaos.trial.context import TrialContext
from spotchaos.trial.trial import run_attempt

# Each costs an attempt of fresh processes, whose ranks then wait for the dead one.
MOST_KILLS = 8
GRACE_S = 20.0


class RealKills:
    """Kills ranks early, each at each op once.

    Attributes:
        left_out: ops at which no rank was killed any more, for want of time.
    """

    def __init__(self, starter: Starter, record: Recorded) -> None:
        self._starter = starter
        self._record = record
        self._reached: dict[tuple[int, int], Counter[int] | None] = {}
        self.left_out: set[tuple[int, int]] = set()

    def confirm(self, token: StateToken) -> bool:
        """Tell whether the others really got as far as a state with an early rank says."""
        wanted = Counter(
            op.rank
            for op in self._record.history.log.ops
            if op.number is not None and op.number < token.number
        )
        for rank, number in token.early:
            reached = self._kill(rank, number)
            if reached is None:
                return False
            others = [one for one in wanted if one is not None and one != rank]
            if any(reached[one] < wanted[one] for one in others):
                return False
        return True

    def _kill(self, rank: int, number: int) -> Counter[int] | None:
        """Return how many ops each rank made when one was killed; None: not tried."""
        key = rank, number
        if key not in self._reached:
            if len(self._reached) >= MOST_KILLS:
                self.left_out.add(key)
                return None
            self._reached[key] = self._really(rank, number)
        return self._reached[key]

    def _really(self, rank: int, number: int) -> Counter[int] | None:
        mine = [
            op.number
            for op in self._record.history.log.ops
            if op.number is not None and op.rank == rank
        ]
        point = KillPoint(site="file-op", occurrence=mine.index(number) + 1, rank=rank)
        trial_context = killing(self._starter.cold, rank)
        view = trial_context.new_view(f"early-{rank}-{number}")
        logs: list[oplog.OpLog] = []

        def take(path: Path) -> None:
            logs.append(oplog.read(path))

        try:
            attempt = run_attempt(
                trial_context, view, point, files=FileOrders(), oplog=take
            )
        finally:
            view.close()
        if not attempt.reached or not logs:
            return None
        return Counter(
            op.rank
            for op in logs[0].ops
            if op.number is not None and op.rank is not None
        )


def killing(trial_context: TrialContext, rank: int) -> TrialContext:
    """Return a stage on which one rank is killed and the others may go on for a while."""
    settings = replace(
        trial_context.settings,
        to=f"rank:{rank}",
        signal="KILL",
        notice=None,
        fault=(),
        grace_s=GRACE_S,
        grace_steps=None,
    )
    return replace(trial_context, settings=settings)
