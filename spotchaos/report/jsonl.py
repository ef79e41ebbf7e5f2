"""Events as they happen, one JSON object a line, each written and flushed at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from spotchaos.config.settings import Settings
from spotchaos.events import (
    AttemptEnded,
    BaselineDone,
    Event,
    Outcome,
    PhaseStarted,
    Started,
    TrialDone,
)
from spotchaos.model import Note
from spotchaos.report.document import attempt_entry, make_document, trial_entry
from spotchaos.report.redact import mask_secrets


class JsonLines:
    """Writes each event to a file, which is emptied first.

    Args:
        path: the file.
        redact: applied to each object before it is written; None: tokens are masked
            and nothing else.
    """

    def __init__(self, path: Path, *, redact: Any = None) -> None:
        self._path = path
        self._redact = redact or mask_secrets
        self._notes: tuple[Note, ...] = ()
        self._settings: Settings | None = None
        self._path.write_text("", encoding="utf-8")

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self._settings = event.settings
        elif isinstance(event, BaselineDone):
            self._notes = event.notes
        line = json.dumps(self._redact(self._entry(event)), default=str)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def _entry(self, event: Event) -> dict[str, Any]:
        match event:
            case Started(settings=settings, unprotected=unprotected):
                return {
                    "event": "started",
                    "schema": 1,
                    "command": list(settings.command),
                    "reference_trainer": settings.reference_trainer,
                    "seed": settings.seed,
                    "promise": settings.promise,
                    "unprotected": list(unprotected),
                }
            case PhaseStarted(name=name, plan=plan):
                return {"event": "phase", "name": name, "plan": plan}
            case AttemptEnded(phase=phase, attempt=attempt):
                entry = attempt_entry(attempt, None)
                return {"event": "attempt", "phase": phase, "attempt": entry}
            case BaselineDone(baseline=baseline, notes=notes):
                return {
                    "event": "baseline",
                    "steps": baseline.horizon,
                    "repeatable": baseline.repeatable,
                    "differs_at": baseline.differs_at,
                    "notes": [{"name": n.name, "message": n.message} for n in notes],
                }
            case TrialDone(trial=trial, judgement=judgement):
                assert self._settings is not None  # `Started` is the first event
                entry = trial_entry(trial, judgement, self._settings)
                return {"event": "trial", "trial": entry}
            case Outcome():
                document = make_document(event, notes=self._notes)
                return {"event": "outcome", "report": document}
