"""What happened when: the moments of a trial, and the losses of its attempts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spotchaos.events import Outcome
from spotchaos.model import Attempt, Ended, Resume, Trial

# A plot of more points shows nothing more and makes the page large.
POINTS_OF_BASELINE = 400
POINTS_OF_ATTEMPT = 100

_LAST_MOMENT = {
    Ended.FINISHED: "finish",
    Ended.EXITED: "exit",
    Ended.FAILED: "failure",
    Ended.RECLAIMED: "reclaim",
    Ended.HUNG: "hang",
}


def timeline(trial: Trial, resumes: Mapping[int, Resume]) -> list[dict[str, Any]]:
    """Return the moments of a trial in order, in seconds since its first attempt began."""
    if not trial.attempts:
        return []
    zero = trial.attempts[0].started_at_s
    moments: list[dict[str, Any]] = []
    for attempt in trial.attempts:
        moments += _moments(attempt, resumes.get(attempt.number), zero=zero)
    return sorted(moments, key=lambda moment: float(moment["t_s"]))


def _moments(
    attempt: Attempt, resume: Resume | None, *, zero: float
) -> list[dict[str, Any]]:
    joined = resume.joined if resume is not None and resume.joined is not None else 0

    def moment(
        at_s: float, what: str, step: int | None, rank: int | None = None
    ) -> dict[str, Any]:
        return {
            "t_s": round(max(0.0, at_s - zero), 3),
            "what": what,
            "step": None if step is None else joined + step,
            "rank": rank,
            "attempt": attempt.number,
        }

    began_s = attempt.started_at_s
    found = [moment(began_s, "start", 0)]
    rank = attempt.trace.ranks.get(0)
    if rank is not None:
        found += [moment(m.t_s, "first-step", m.step, 0) for m in rank.steps[:1]]
        found += [moment(m.t_s, "load", None, 0) for m in rank.loads[:1]]
        for save in rank.saves:
            found.append(moment(save.begun_at_s, "save-begin", save.step, 0))
            if save.ended_at_s is not None:
                found.append(moment(save.ended_at_s, "save-end", save.step, 0))
    completed = attempt.trace.completed
    if attempt.notice_at_s is not None:
        what = "signal" if attempt.signal else "notice"
        found.append(moment(attempt.notice_at_s, what, attempt.signalled_step))
    for sent in attempt.sent:
        if sent.at_s != attempt.notice_at_s:
            told = {"signal": sent.signal, "to": sent.target}
            found.append({**moment(sent.at_s, "signal", sent.step), **told})
    for fault in attempt.injected:
        if fault.times and fault.at_s is not None:
            done = 0 if rank is None else sum(m.t_s <= fault.at_s for m in rank.steps)
            found.append(moment(fault.at_s, "fault", done))
    ended_s = attempt.reclaimed_at_s
    if ended_s is None:
        ended_s = began_s + attempt.wall_s
    found.append(moment(ended_s, _LAST_MOMENT[attempt.ended], completed))
    return found


def loss_series(outcome: Outcome) -> dict[str, list[list[float]]]:
    """Return [step, loss] pairs of the baseline and of each attempt after the first.

    Steps are the baseline's. Attempts are named `TRIAL.ATTEMPT`.
    """
    series: dict[str, list[list[float]]] = {}
    if outcome.baseline is not None:
        losses = _losses(outcome.baseline.first, joined=0)
        if losses:
            series["baseline"] = _thin(losses, POINTS_OF_BASELINE)
    for trial, said in outcome.trials:
        joined = {r.attempt: r.joined for r in said.resumes}
        for attempt in trial.attempts:
            start = joined.get(attempt.number)
            if start is None:
                continue
            losses = _losses(attempt, joined=start)
            if losses:
                name = f"{trial.number}.{attempt.number}"
                series[name] = _thin(losses, POINTS_OF_ATTEMPT)
    return series


def _losses(attempt: Attempt, *, joined: int) -> list[list[float]]:
    rank = attempt.trace.ranks.get(0)
    if rank is None:
        return []
    return [
        [joined + mark.step, round(mark.loss, 6)]
        for mark in rank.steps
        if mark.loss is not None and abs(mark.loss) < float("inf")
    ]


def _thin(points: list[list[float]], most: int) -> list[list[float]]:
    """Keep at most about `most` points, with the first and the last."""
    stride = max(1, -(-len(points) // most))
    kept = points[::stride]
    return kept if kept[-1] == points[-1] else [*kept, points[-1]]
