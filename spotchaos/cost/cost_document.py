"""A study as data: what `spotchaos cost --json` writes, and its screen and page show."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spotchaos.cost.runs import CAUSES, Run
from spotchaos.cost.simulate import span
from spotchaos.cost.study import BEST, NOW, ON_DEMAND, Question, Study
from spotchaos.cost.summary import Row
from spotchaos.cost.units import hours, seconds, us
from spotchaos.trace.timing import Timing

Document = dict[str, Any]
MOST_BARS = 1500
BINS = 24
# A change of less than that is within what one does not know anyway.
SAME = 0.01


def make_document(
    found: Study, timing: Timing, *, quick: Study | None, slow: Study | None
) -> Document:
    """Return the document of a study.

    Args:
        found: the study at the medians of what was measured.
        timing: what was measured or given.
        quick: the study of its best policy with the times of the quickest tenth.
        slow: the same with those of the slowest tenth.
    """
    question = found.question
    rows = [_row(row, found) for row in found.rows]
    return {
        "schema": 1,
        "kind": "cost",
        "seed": question.seed,
        "runs": question.runs,
        "job": _job(question),
        "where": _where(question),
        "timing": timing.as_report(),
        "policies": rows,
        "left_out": [{"policy": name, "why": why} for name, why in found.left_out],
        "interval": _interval(found),
        "advice": advice(found),
        "sure": _sure(quick, slow),
        "notes": notes(found, timing),
        "timelines": [_timeline(row) for row in found.rows if row.middle is not None],
    }


def _job(question: Question) -> Document:
    job = question.job
    return {
        "steps": job.steps,
        "hours": round(hours(job.work_us), 4),
        "nodes": job.nodes,
        "elastic": job.is_elastic,
        "save_every": question.every,
        "deadline_hours": None
        if question.deadline_us is None
        else round(hours(question.deadline_us), 4),
        "step_s": seconds(job.step_us),
        "save_stall_s": seconds(job.save_stall_us),
        "save_end_s": seconds(job.save_end_us),
        "cold_start_s": seconds(job.cold_us),
        "resumed_start_s": seconds(job.resume_us),
        "provision_s": seconds(job.provision_us),
        "queue_s": seconds(job.queue_us),
        "notice_s": seconds(job.notice_us),
        "notice_needs_s": seconds(job.need_us),
    }


def _where(question: Question) -> Document:
    nodes = question.job.nodes
    mtbf_s = question.gang_mtbf_s
    prices = question.prices
    return {
        "traces": [
            {
                "zone": trace.name,
                "days": round(hours(trace.length_us) / 24, 2),
                "availability": round(trace.availability(nodes), 4),
                "most": trace.most,
                "windows": [[round(hours(s), 4), round(hours(e), 4)] for s, e in shown],
            }
            for trace in question.traces
            for shown in [trace.windows(1 if question.job.is_elastic else nodes)]
        ],
        "failures": None if question.failures is None else str(question.failures),
        "gang_mtbf_hours": None if mtbf_s is None else round(mtbf_s / 3600, 4),
        "prices": None
        if prices is None
        else {
            "spot": prices.spot / 1e9,
            "on_demand": prices.on_demand / 1e9,
            "storage": prices.storage / 1e9,
        },
        "billing": {
            "granularity_s": seconds(question.billing.granularity_us),
            "minimum_s": seconds(question.billing.minimum_us),
            "free_s": seconds(question.billing.free_us),
        },
    }


def _row(row: Row, found: Study) -> Document:
    policy = row.policy
    alone = found.row(ON_DEMAND)
    saving = None
    if row.dollars is not None and alone is not None and alone.dollars is not None:
        usual = alone.dollars.median
        saving = round(100 * (1 - row.dollars.median / usual), 2) if usual else None
    return {
        "policy": policy.name,
        "note": policy.note,
        "every": policy.every or None,
        "finishes": round(row.finishes, 4),
        "why_not": row.why_not,
        "hours": None if row.hours is None else row.hours.as_report(),
        "dollars": None if row.dollars is None else row.dollars.as_report(),
        "saving_percent": saving,
        "goodput": round(row.goodput, 4),
        "paid_hours": round(row.paid_hours, 4),
        "by_cause": {cause: round(row.by_cause.get(cause, 0.0), 4) for cause in CAUSES},
        "interruptions": round(row.interruptions, 3),
        "lost_steps": round(row.lost_steps, 1),
        "meets_deadline": row.meets_deadline,
        "distribution": _bins(row.values),
    }


def _bins(values: tuple[float, ...]) -> list[list[float]]:
    """Return where each bar of the distribution begins, and how many runs are in it."""
    if len(values) < 2:
        return []
    counts, edges = np.histogram(values, bins=BINS)
    pairs = zip(edges.tolist(), counts.tolist(), strict=False)
    return [[round(edge, 4), count] for edge, count in pairs]


def _interval(found: Study) -> Document:
    tried = () if found.searched is None else found.searched.tried
    return {
        "now": found.question.every,
        "best": None if found.searched is None else found.searched.every,
        "young": found.young,
        "daly": found.daly,
        "unit": "paid hours" if found.question.prices is None else "dollars",
        "tried": [
            [every, round(cost, 4) if math.isfinite(cost) else None]
            for every, cost in tried
        ],
    }


def advice(found: Study) -> str:
    """Say in one sentence what to change about the saves; empty: nothing is known."""
    now, best = found.row(NOW), found.row(BEST)
    if best is None or not best.finishes or now is None:
        return ""
    every, usual = best.policy.every, now.policy.every
    instead = f"save every {every:,} steps instead of {usual:,}"
    if not now.finishes:
        return f"{instead}: as it saves now it never finishes"
    paid = now.paid_hours - best.paid_hours
    if paid < SAME * best.paid_hours or every == usual:
        percent = 100 * paid / best.paid_hours
        return (
            f"saving every {usual:,} steps is good enough: every {every:,} would spare"
            f" {max(0.0, percent):.1f} % of what is paid"
        )
    lost = now.by_cause["lost"] - best.by_cause["lost"]
    saving = now.by_cause["saving"] - best.by_cause["saving"]
    length = hours(found.question.job.work_us)
    less = (
        f"{lost:.1f} h less lost work"
        if lost >= saving
        else f"{saving:.1f} h less saving"
    )
    said = f"{instead}: {less} in {length:.3g} h"
    if now.dollars is not None and best.dollars is not None:
        less_dollars = now.dollars.mean - best.dollars.mean
        said += f", ${less_dollars:,.{0 if less_dollars >= 10 else 2}f} less"
    return said


def _sure(quick: Study | None, slow: Study | None) -> Document | None:
    """Return the best policy's cost at the quickest and slowest times measured."""
    if quick is None or slow is None or not quick.rows or not slow.rows:
        return None
    low, high = quick.rows[0], slow.rows[0]
    if low.hours is None or high.hours is None:
        return None
    return {
        "policy": low.policy.name,
        "hours": [round(low.hours.median, 4), round(high.hours.median, 4)],
        "dollars": None
        if low.dollars is None or high.dollars is None
        else [round(low.dollars.median, 4), round(high.dollars.median, 4)],
    }


def notes(found: Study, timing: Timing) -> list[str]:
    """Return what bounds the answer."""
    question, job = found.question, found.question.job
    said = []
    if timing.cold_start_s is None:
        said.append("no start was measured: it counts as 0 s (--start-seconds)")
    elif timing.resumed_start_s is None:
        said.append(
            "no resumed start was measured: it counts as a cold one (--resume-seconds)"
        )
    if question.prices is None:
        said.append("no dollars: --spot-price and --on-demand-price are not both given")
    if job.notice_us and timing.notice_s is None:
        said.append(
            "what a notice needs was not measured: a step and a save,"
            f" {span(job.need_us)} (--notice-needs)"
        )
    least = 1 if job.is_elastic else job.nodes
    said += [
        f"{trace.name} never has {least} machines at once: {trace.most} at most"
        for trace in question.traces
        if trace.most < least
    ]
    repeated = max((row.repeated for row in found.rows), default=0.0)
    if question.traces and repeated:
        shortest = min(trace.length_us for trace in question.traces)
        said.append(
            f"the trace ({span(shortest)}) ends before the work does in up to"
            f" {100 * repeated:.0f} % of the runs: it begins again there"
        )
    alone = found.row(ON_DEMAND)
    if alone is not None and alone.meets_deadline == 0.0:
        said.append("not even on-demand machines meet the deadline")
    said += _unsure(timing)
    return said


def _unsure(timing: Timing) -> list[str]:
    names = {"step_s": "a step", "save_stall_s": "a save"}
    said = []
    for name, what in names.items():
        found = getattr(timing, name)
        if found is not None and found.n and found.p90 > 1.5 * max(found.p10, 1e-9):
            said.append(
                f"{what} took {span(us(found.p10))} to {span(us(found.p90))}: the"
                " machine was busy, or they differ"
            )
    return said


def _timeline(row: Row) -> Document:
    """Return the first leases of the run of median length, in hours."""
    run = row.middle
    assert isinstance(run, Run)
    return {
        "policy": row.policy.name,
        "hours": round(hours(run.elapsed), 4),
        "finished": run.finished,
        "leases_in_all": len(run.leases),
        "leases": [
            {
                "market": lease.market,
                "zone": lease.zone,
                "nodes": lease.nodes,
                "start": round(hours(lease.start), 4),
                "end": round(hours(lease.end), 4),
                "lost": round(hours(lease.lost), 4),
                "ended": lease.ended,
            }
            for lease in run.leases[:MOST_BARS]
        ],
    }
