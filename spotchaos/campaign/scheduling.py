"""Which plans a campaign carries out, which first, and how many side by side."""

from __future__ import annotations

import os
from collections.abc import Sequence

from spotchaos.campaign.baseline import BaselineContext
from spotchaos.config.plan import Plan
from spotchaos.config.settings import DEFAULT_KILL_AT, Settings
from spotchaos.errors import HarnessError
from spotchaos.planning.chance import draw
from spotchaos.planning.edges import SiteIndex, edges, every_file_op, every_step
from spotchaos.trial.context import plan_of_faults

# What one attempt of a program on torch holds in memory by itself, at the least.
LEAST_MEMORY_BYTES = 512 << 20


def plans_of(baseline_context: BaselineContext, settings: Settings) -> list[Plan]:
    """Return the plans of a campaign, in the order in which they were asked for."""
    site_index = baseline_context.site_index
    if baseline_context.places is not None:
        return baseline_context.places.plans(settings)
    if settings.fault and settings.kill_at == DEFAULT_KILL_AT:
        return [plan_of_faults(baseline_context.trial_context, site_index)]
    plans: list[Plan] = []
    for text in settings.kill_at:
        if text == "random":
            plans += draw(settings.seed, trials=settings.trials, site_index=site_index)
        elif text == "edges":
            plans += edges(site_index)
        elif text == "every-step":
            plans += every_step(site_index)
        elif text == "every-file-op":
            plans += every_file_op(site_index)
        else:
            plans.append(Plan.parse(text).at(site_index.horizon))
    return plans


def own_part(settings: Settings, plans: Sequence[Plan]) -> list[tuple[int, Plan]]:
    """Number the plans, and keep those of this shard.

    Numbers are those of the whole campaign, so that the reports of all shards can be put
    together.

    Raises:
        HarnessError: the shard has no plan.
    """
    numbered = list(enumerate(plans, 1))
    if settings.shard is None:
        return numbered
    part, of = settings.shard
    own = numbered[part - 1 :: of]
    if not own:
        raise HarnessError(
            f"part {part}/{of} has none of the {len(plans)} plans",
            hint="give fewer parts, or more --trials",
        )
    return own


def jobs_for(baseline_context: BaselineContext) -> int:
    """Return how many trials fit side by side: by cores, ranks and memory."""
    import psutil  # slow to import, and not for `--help`

    cores = len(os.sched_getaffinity(0)) // max(1, baseline_context.baseline.world_size)
    cores //= max(1, baseline_context.trial_context.settings.threads)
    need = LEAST_MEMORY_BYTES * max(1, baseline_context.baseline.world_size)
    room = int(psutil.virtual_memory().available) // need
    return max(1, min(cores, room))


def most_telling_first(
    plans: Sequence[tuple[int, Plan]], site_index: SiteIndex
) -> list[tuple[int, Plan]]:
    """Order plans for a short budget: named ones, edges, new kinds, then the rest."""
    known = {plan.points[0] for plan in edges(site_index) if plan.points}
    kinds: set[object] = set()

    def rank(plan: Plan) -> int:
        kind = (len(plan.points), plan.points[0].site if plan.points else None)
        is_new = kind not in kinds
        kinds.add(kind)
        if not plan.drawn:
            return 0
        if plan.after_finish or plan.points[0] in known:
            return 1
        return 2 if is_new else 3

    ranked = [(rank(plan), number, plan) for number, plan in plans]
    ranked.sort(key=lambda entry: entry[:2])
    return [(number, plan) for _, number, plan in ranked]
