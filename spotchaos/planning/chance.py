"""Plans drawn by chance: seed in, plans out; what none has met before comes first.

As fuzzers do that are led by coverage: of several candidates the one is taken that
strikes where no plan of this campaign has struck, by the gap between two file operations
and by the state that it leaves on disk.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable

from spotchaos.config.plan import KillPoint, Plan
from spotchaos.errors import PlanError
from spotchaos.planning.edges import SiteIndex, edges, step_end
from spotchaos.planning.moments import Moment, Moments

# A plan is chosen among so many that are drawn alike.
CANDIDATES = 4
# Of the plans after the first, so many strike in a gap while there are new ones, and
# once all have been struck.
IN_NEW_GAPS, IN_KNOWN_GAPS = 0.75, 0.25
# How much likelier a gap is where a name was made or removed, or before the first step.
TELLING_WEIGHT = 3


def draw(seed: int, *, trials: int, site_index: SiteIndex) -> list[Plan]:
    """Draw plans of one to three interruptions each, biased to what is new.

    Fewer trials are the first of more.

    Args:
        seed: makes the plans; the report prints it, and `--seed` takes it back.
        trials: how many plans.
        site_index: what the baseline showed.

    Raises:
        PlanError: the horizon leaves no step to be interrupted at.
    """
    if site_index.horizon < 2:
        raise PlanError(
            f"no kill point fits a horizon of {site_index.horizon} steps",
            hint="let the program train for at least 2 steps",
        )
    rng = random.Random(seed)
    met = _Met(site_index.moments)
    plans: list[Plan] = []
    # The first plan always meets a saved state in mid-run: the one question that every
    # reader has. The others are free.
    while len(plans) < trials:
        if not plans:
            first = _after_a_save(rng, site_index)
            plan = Plan(
                (first, *_later(rng, site_index, count=rng.choice((0, 1)))), drawn=True
            )
        elif rng.random() < (IN_NEW_GAPS if met.new_gaps else IN_KNOWN_GAPS):
            plan = _in_a_gap(rng, site_index, met)
        else:
            plan = min(
                [_draw_one(rng, site_index) for _ in range(CANDIDATES)],
                key=met.how_often,
            )
        if plan not in plans or len(plans) >= site_index.horizon:
            plans.append(plan)
            met.add(plan)
    return plans


class _Met:
    """What the plans so far strike."""

    def __init__(self, moments: Moments) -> None:
        self._moments = moments
        self._states: Counter[Hashable] = Counter()
        self._gaps: Counter[str] = Counter()
        self.gaps = moments.gaps

    @property
    def new_gaps(self) -> list[str]:
        return [gap for gap in self.gaps if not self._gaps[gap]]

    def add(self, plan: Plan) -> None:
        self._states[self._state(plan)] += 1
        moment, _ = self._moments.injected(plan.points[0])
        if moment is not None:
            self._gaps[moment.gap] += 1

    def how_often(self, plan: Plan) -> int:
        """Return how many plans leave the same on disk, and go on alike."""
        return self._states[self._state(plan)]

    def _state(self, plan: Plan) -> Hashable:
        moment, cut = self._moments.injected(plan.points[0])
        return (moment.op if moment is not None else 0, cut, plan.points[1:])


def _in_a_gap(rng: random.Random, site_index: SiteIndex, met: _Met) -> Plan:
    gaps = met.new_gaps or list(met.gaps)
    if not gaps:
        return _draw_one(rng, site_index)
    weights = [TELLING_WEIGHT if met.gaps[gap][0].is_telling else 1 for gap in gaps]
    (gap,) = rng.choices(gaps, weights)
    moment = rng.choice(met.gaps[gap])
    later = _later(rng, site_index, count=rng.choice((0, 0, 0, 1)))
    return Plan((moment.point, *later), drawn=True)


def _draw_one(rng: random.Random, site_index: SiteIndex) -> Plan:
    kind = rng.random()
    if kind < 0.55:
        first = rng.choice(_edge_points(site_index))
    elif kind < 0.85:
        first = step_end(rng.randrange(1, site_index.horizon + 1))
    else:
        first = _mid_step(rng, site_index)
    count = rng.choice((0, 0, 1, 1, 2))
    return Plan((first, *_later(rng, site_index, count=count)), drawn=True)


def _later(rng: random.Random, site_index: SiteIndex, *, count: int) -> list[KillPoint]:
    """Draw the kill points of attempts after the first, many of them soon after it."""
    points = []
    for _ in range(count):
        kind = rng.random()
        if kind < 0.25 and site_index.moments.all:
            # In what a resume writes first: its ops are counted anew.
            number = rng.randrange(1, 2 * site_index.moments.ops_of_a_save + 1)
            points.append(Moment(number, "").point)
        elif kind < 0.6:
            points.append(step_end(rng.choice((1, 1, 2, 3))))
        else:
            points.append(
                step_end(rng.randrange(1, max(2, site_index.horizon // 2 + 1)))
            )
    return points


def _after_a_save(rng: random.Random, site_index: SiteIndex) -> KillPoint:
    """Draw a step one to three after a save in the middle of the run."""
    saves = [step for step, _ in site_index.saves if 0 < step < site_index.horizon]
    if not saves:
        return step_end(rng.randrange(1, site_index.horizon))
    step = rng.choice(saves[: max(1, len(saves) - 1)])
    return step_end(min(step + rng.randrange(1, 4), site_index.horizon))


def _edge_points(site_index: SiteIndex) -> list[KillPoint]:
    points = [plan.points[0] for plan in edges(site_index) if plan.points]
    return [*points, *site_index.inside_saves] or [step_end(1)]


def _mid_step(rng: random.Random, site_index: SiteIndex) -> KillPoint:
    """Draw a site within a step; a step has each of them at least once."""
    sites = [
        s for s in ("forward", "backward", "optimizer-step") if site_index.counts.get(s)
    ]
    if not sites:
        return step_end(rng.randrange(1, site_index.horizon + 1))
    site = rng.choice(sites)
    return KillPoint(
        site=site, occurrence=rng.randrange(1, site_index.counts[site] + 1)
    )
