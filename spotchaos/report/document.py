"""The report as data: from the outcome of a campaign to the JSON of schema 1.

Every other format is rendered from this document alone, so that a stored report can be
rendered again. Keys are those of the interface; what the interface does not name is
optional for readers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from spotchaos import __version__
from spotchaos.config.replay_token import make_token
from spotchaos.config.settings import Settings
from spotchaos.events import Outcome
from spotchaos.model import Attempt, Baseline, Finding, Judgement, Note, Resume, Trial
from spotchaos.report.gate import known_entries
from spotchaos.report.redact import mask_secrets
from spotchaos.report.timeline import loss_series, timeline

SCHEMA = 1

Document = dict[str, Any]


def make_document(outcome: Outcome, *, notes: Iterable[Note] = ()) -> Document:
    """Return the report of a campaign, with tokens and passwords masked.

    Args:
        outcome: what the campaign found.
        notes: notes of the baseline, which the outcome names without their messages.
    """
    settings = outcome.settings
    document = {
        "schema": SCHEMA,
        "spotchaos": __version__,
        "seed": settings.seed,
        "promise": settings.promise,
        "holds_up_to": outcome.holds_up_to,
        "command": list(settings.command),
        "resume_command": list(settings.resume_cmd or settings.command),
        "reference_trainer": settings.reference_trainer,
        "durable": settings.durable,
        "verdict": str(outcome.verdict),
        "environment": dict(outcome.environment),
        "baseline": None
        if outcome.baseline is None
        else _baseline(outcome.baseline, kept=_kept_notes(notes)),
        "trials": [trial_entry(t, said, settings) for t, said in outcome.trials],
        "classes": list(outcome.extra.get("classes", ())),
        "grace": outcome.extra.get("grace"),
        "timing": None if outcome.timing is None else outcome.timing.as_report(),
        "series": {"loss": loss_series(outcome)},
        "ledger": _ledger(outcome),
        "coverage": dict(outcome.coverage),
        "notes": _named_notes(outcome),
        "findings": [
            {"name": n, "trials": list(t), "counts": settings.counts(n)}
            for n, t in outcome.findings
        ],
        "known": known_entries(settings, outcome.findings),
        "shard": None
        if settings.shard is None
        else f"{settings.shard[0]}/{settings.shard[1]}",
        "traces": None if settings.keep is None else str(settings.keep),
        "trouble": outcome.trouble,
        "hint": outcome.hint,
        "unprotected": list(outcome.unprotected),
        "wall_s": round(outcome.wall_s, 3),
        "cpu_s": round(outcome.cpu_s, 3),
        "interrupted": outcome.interrupted,
    }
    masked: Document = mask_secrets(document)
    return masked


def _named_notes(outcome: Outcome) -> list[dict[str, Any]]:
    """Return names and trials; of those that no trial has, what they say as well."""
    late = {note.name: {"message": note.message} for note in outcome.late_notes}
    return [
        {"name": name, "trials": list(trials), **({} if trials else late.get(name, {}))}
        for name, trials in outcome.notes
    ]


def _kept_notes(notes: Iterable[Note]) -> list[dict[str, Any]]:
    return [{"name": note.name, "message": note.message} for note in notes]


def _baseline(baseline: Baseline, *, kept: list[dict[str, Any]]) -> dict[str, Any]:
    first = baseline.first
    rank = first.trace.ranks.get(0)
    return {
        "runs": len(baseline.runs),
        "repeatable": baseline.repeatable,
        "differs_at": baseline.differs_at,
        "steps": baseline.horizon,
        "world_size": baseline.world_size,
        "saves": 0 if rank is None else len(rank.saves),
        "wall_s": round(first.wall_s, 3),
        "observer_effect": baseline.observer_effect,
        "not_compared": list(baseline.not_compared),
        "resume_points": list(baseline.patterns),
        "notes": kept,
        "outputs": None
        if baseline.outputs is None
        else {
            "said": baseline.outputs.counted,
            "files": len(baseline.outputs.sizes),
            "records": baseline.outputs.records,
            "written": baseline.outputs.written,
            "alone": baseline.outputs.is_alone,
        },
    }


def trial_entry(trial: Trial, said: Judgement, settings: Settings) -> dict[str, Any]:
    """Return what a report says of one trial."""
    resumes = {resume.attempt: resume for resume in said.resumes}
    return {
        "number": trial.number,
        "plan": trial.plan,
        "verdict": str(said.verdict),
        "wall_s": round(trial.wall_s, 3),
        "path": trial.path,
        "holds_up_to": said.holds_up_to,
        "attempts": [
            attempt_entry(a, resumes.get(a.number), settings=settings)
            for a in trial.attempts
        ],
        "timeline": timeline(trial, resumes),
        "findings": [_finding(finding) for finding in said.findings],
        "notes": _kept_notes(said.notes),
        "dropped": list(trial.dropped),
        "ledger": dict(said.ledger),
        "replay": trial.replay or make_token(trial.plan, settings),
    }


def attempt_entry(
    attempt: Attempt, resume: Resume | None, *, settings: Settings | None = None
) -> dict[str, Any]:
    """Return what a report says of one attempt; `resume` is None if it is not judged."""
    first = attempt.number == 1
    joined = 0 if resume is None and first else resume.joined if resume else None
    found: dict[str, Any] = {
        "number": attempt.number,
        "started_from": joined,
        "ended": str(attempt.ended),
        "exit_code": attempt.exit_code,
        "steps": attempt.trace.completed,
        "lost_steps": resume.lost_steps if resume else 0,
        "kill_point": attempt.kill_point,
        "wall_s": round(attempt.wall_s, 3),
    }
    if attempt.signal is not None:
        found["signal"] = attempt.signal
    if attempt.notice_at_s is not None and settings is not None:
        found["grace_s"] = settings.grace_s
    if attempt.notice is not None:
        played = attempt.notice
        found["notice"] = {
            "story": played.story,
            "provider": played.provider,
            "grace_s": played.grace_s,
            "time_scale": round(played.time_scale, 3),
            "reclaimed": played.reclaimed,
            "asked": played.asked,
            "asked_after": played.asked_after,
            "refused": played.refused,
        }
    if attempt.injected:
        found["faults"] = [
            {"fault": o.fault, "kind": o.kind, "struck": o.times, "path": o.path}
            for o in attempt.injected
        ]
    if attempt.trouble is not None:
        found["trouble"] = attempt.trouble
    if str(attempt.ended) in ("failed", "hung", "exited") and attempt.output_tail:
        found["output_tail"] = attempt.output_tail[-2000:]
    if resume is None:
        return found
    found["newest_resume_point"] = resume.newest_resume_point
    found["restored"] = {
        str(rank): dict(components) for rank, components in resume.restored.items()
    }
    if resume.divergence is not None:
        split_at_restarts = resume.divergence
        found["divergence"] = {
            "step": split_at_restarts.step,
            "rank": split_at_restarts.rank,
            "components": list(split_at_restarts.components),
            "tensor": split_at_restarts.tensor,
            "elements": split_at_restarts.elements,
            "max_ulp": split_at_restarts.max_ulp,
            "curve": [
                {"step": step, "elements": elements, "max_ulp": ulp}
                for step, elements, ulp in split_at_restarts.curve
            ],
        }
    return found


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "name": finding.name,
        "attempt": finding.attempt,
        "step": finding.step,
        "rank": finding.rank,
        "component": finding.component,
        "message": finding.message,
        "hint": finding.hint,
        "where": None if finding.where is None else dict(finding.where),
    }


def _ledger(outcome: Outcome) -> dict[str, Any]:
    """Add up the ledgers of the trials; each epoch keeps the number of its trial."""
    total: dict[str, Any] = {"repeated": 0, "skipped": 0, "epochs": []}
    for trial, said in outcome.trials:
        for key in ("repeated", "skipped"):
            total[key] += _count(said.ledger.get(key))
        for epoch in said.ledger.get("epochs", ()):
            if isinstance(epoch, Mapping):
                total["epochs"].append({"trial": trial.number, **epoch})
    return total


def _count(value: Any) -> int:
    """Return how many samples a ledger's entry names, as a count or as their ids."""
    if isinstance(value, int):
        return value
    return len(value) if isinstance(value, list | tuple | dict | set) else 0
