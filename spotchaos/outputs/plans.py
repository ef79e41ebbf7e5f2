"""Where a program that trains nothing is interrupted: at its records, files and times."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from spotchaos.config.plan import KillPoint, Plan
from spotchaos.config.settings import Settings
from spotchaos.errors import PlanError
from spotchaos.model import Attempt
from spotchaos.outputs.watching import Watch, is_record
from spotchaos.persistence.oplog import OpLog
from spotchaos.planning.edges import SiteIndex, every_file_op

# Of the ops between two records, so many are interrupted at.
MOST_BETWEEN = 4


class Places:
    """Where one program can be interrupted, from what an uninterrupted run did.

    Args:
        first: the run.
        log: file ops of a run; None: file sites are off.
        watch: knows which files are outputs.
    """

    def __init__(self, first: Attempt, log: OpLog | None, watch: Watch) -> None:
        self._first = first
        ops = [] if log is None else [op for op in log.ops if op.number]
        self._last = max((op.number or 0 for op in ops), default=0)
        labels = watch.labels
        self._writes = {op.number for op in ops if op.kind == "write" and op.length > 1}
        self.records = [op.number or 0 for op in ops if is_record(op, labels)]
        counts = [rank.counts.get("forward", 0) for rank in first.trace.ranks.values()]
        self._forwards = min(counts, default=0)
        requests = () if first.stored is None else first.stored.requests
        self._uploads = sum(request.made_object for request in requests)

    def site_index(self, file_ops: int | None) -> SiteIndex:
        """Return what reports say of it: a record is what a step is in a training."""
        return SiteIndex(
            horizon=len(self.records),
            counts={"record": len(self.records), "forward": self._forwards},
            file_ops=file_ops,
        )

    def plans(self, settings: Settings) -> list[Plan]:
        """Return the plans of a campaign, in the order in which they were asked for.

        Raises:
            PlanError: this machine has no file sites, and one is asked for.
        """
        found: list[Plan] = []
        site_index = self.site_index(self._last or None)
        for text in settings.kill_at:
            if text == "random":
                found += self._drawn(random.Random(settings.seed), settings.trials)
            elif text == "edges":
                found += self._edges()
            elif text == "every-step":
                found += [Plan((one,), drawn=True) for one in self._every_record()]
            elif text == "every-file-op":
                found += every_file_op(site_index)
            else:
                found.append(self._settled(Plan.parse(text)))
        return found

    def _settled(self, plan: Plan) -> Plan:
        """Turn shares of the run into records, or into seconds where none is known."""
        points: list[KillPoint] = []
        for point in plan.points:
            if point.share is not None:
                point = self._at_share(point.share)
            count = len(self.records)
            is_beyond = point.site == "record" and count and point.occurrence > count
            if is_beyond and not points:
                raise PlanError(
                    f"kill point '{point}' lies beyond the end: {count} records are"
                    " written",
                    hint=f"choose record:1 to record:{count}",
                )
            points.append(point)
        return replace(plan, points=tuple(points))

    def _at_share(self, share: float) -> KillPoint:
        if self.records:
            at = min(len(self.records), max(1, round(share * len(self.records))))
            return KillPoint(site="record", occurrence=at)
        return KillPoint(after_s=max(0.001, share * self._first.wall_s))

    def _every_record(self) -> list[KillPoint]:
        return [
            KillPoint(site="record", occurrence=n + 1) for n in range(len(self.records))
        ]

    # --- around a record ---

    def _torn(self, at: int) -> KillPoint:
        number = self.records[at]
        return _file_op(number, "half" if number in self._writes else None)

    def _written(self, at: int) -> KillPoint:
        return _file_op(self.records[at], "after")

    def _between(self, at: int) -> list[KillPoint]:
        """Return the ops after a record and up to the next: markers, cursors, renames."""
        number = self.records[at]
        later = self.records[at + 1 : at + 2] or [self._last]
        found = [_file_op(n) for n in range(number + 1, later[0] + 1)]
        return found[:MOST_BETWEEN] if len(found) > MOST_BETWEEN else found

    def _edges(self) -> list[Plan]:
        points: list[list[KillPoint]]
        if not self.records:
            points = [[self._at_share(share)] for share in (0.1, 0.5, 0.9)]
            if self._uploads:
                at = self._uploads // 2 + 1
                points.append([KillPoint(site="upload-part", occurrence=at)])
        else:
            middle, last = len(self.records) // 2, len(self.records) - 1
            points = [[self._torn(0)], [self._written(0)], [self._torn(middle)]]
            points += [[self._written(middle)], *([p] for p in self._between(middle))]
            points += [[self._written(middle), self._torn(0)], [self._torn(last)]]
            points += [[self._written(last)], [_file_op(self._last, "after")]]
        plans = [Plan(tuple(each), drawn=True) for each in points]
        return [*dict.fromkeys(plans), Plan((), drawn=True, after_finish=True)]

    def _drawn(self, rng: random.Random, trials: int) -> list[Plan]:
        """Draw plans: each round has every kind of place once, in an order of its own."""
        plans: list[Plan] = []
        kinds = self._kinds(rng)
        order: list[Callable[[], KillPoint]] = []
        for _ in range(trials):
            if not order:
                order = rng.sample(kinds, len(kinds))
            first = order.pop()()
            count = rng.choice((0, 0, 0, 1, 1, 2))
            later = [self._later(rng) for _ in range(count)]
            plans.append(Plan((first, *later), drawn=True))
        return plans

    def _kinds(self, rng: random.Random) -> list[Callable[[], KillPoint]]:
        def by_time() -> KillPoint:
            return KillPoint(
                after_s=round(rng.uniform(0.2, 0.95) * self._first.wall_s, 3)
            )

        def at_upload() -> KillPoint:
            at = rng.randrange(1, self._uploads + 1)
            return KillPoint(site="upload-part", occurrence=at)

        if not self.records:
            return [by_time, at_upload] if self._uploads else [by_time]

        def middle() -> int:
            """Draw a record that is neither the first nor the last, if there is one."""
            count = len(self.records)
            return rng.randrange(1, count - 1) if count > 2 else rng.randrange(count)

        def between() -> KillPoint:
            at = middle()
            return rng.choice(self._between(at) or [self._written(at)])

        def before_next() -> KillPoint:
            at = middle()
            return _file_op(self.records[min(at + 1, len(self.records) - 1)])

        kinds = [
            lambda: self._torn(middle()),
            lambda: self._written(middle()),
            before_next,
            between,
            lambda: _file_op(rng.randrange(1, self._last + 1)),
        ]
        if self._forwards:
            n = self._forwards
            kinds.append(
                lambda: KillPoint(site="forward", occurrence=rng.randrange(1, n + 1))
            )
        return kinds

    def _later(self, rng: random.Random) -> KillPoint:
        if not self.records:
            return self._at_share(rng.uniform(0.2, 0.8))
        most = max(2, len(self.records) // 2)
        return KillPoint(site="record", occurrence=rng.randrange(1, most + 1))


def _file_op(number: int, cut: str | None = None) -> KillPoint:
    return KillPoint(site="file-op", occurrence=number, over_all=True, cut=cut)
