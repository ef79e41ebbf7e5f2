"""A draft of a bug report about one finding, with local paths and secrets removed."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from spotchaos.errors import ReportError
from spotchaos.findings import FINDINGS
from spotchaos.report.github import first_of_each
from spotchaos.report.redact import clean, cleaned, one_line, redact
from spotchaos.report.replaying import replay_line
from spotchaos.report.screen import WIDTH, plain, restored_table


def draft(document: Mapping[str, Any], *, number: int) -> str:
    """Return a report about the finding `number`, counted from 1, ready to paste.

    Raises:
        ReportError: the report has no such finding.
    """
    document = cleaned(redact(document), one_line)
    findings = first_of_each(document)
    if not 1 <= number <= len(findings):
        names = ", ".join(f"{n} {f['name']}" for n, f in enumerate(findings, 1))
        raise ReportError(
            f"the report has no finding {number}",
            hint=f"choose one of: {names}" if names else "it has none at all",
        )
    finding = findings[number - 1]
    kind = FINDINGS.get(finding["name"])
    trial = next(
        (t for t in document["trials"] if t["number"] in finding["trials"]), None
    )
    parts = [
        f"# After an interruption: {kind.summary if kind else finding['name']}",
        "## What happens\n\n" + one_line(finding["message"]),
        "## What should happen\n\n" + _expected(document),
    ]
    if trial is not None:
        parts.append("## How to see it\n\n" + _block(_steps(document, trial)))
        parts += _observed(trial, finding)
    parts.append("## Versions\n\n" + _block(_versions(document)))
    if finding.get("hint"):
        parts.append("## What may mend it\n\n" + one_line(finding["hint"]))
    return "\n\n".join(parts) + "\n"


def _expected(document: Mapping[str, Any]) -> str:
    after = {
        "resumes": "the program comes back from its newest whole checkpoint and finishes",
        "state": "every component of the state is that of the step it resumes from",
        "samples": "each sample is trained on exactly as often as without interruption",
        "bitwise": "from the resume on, every step is bit for bit that of the same"
        " command without an interruption",
    }
    said = after.get(document["promise"], "the promise is kept")
    return said[:1].upper() + said[1:] + "."


def _steps(document: Mapping[str, Any], trial: Mapping[str, Any]) -> str:
    command = " ".join(shlex.quote(one_line(w)) for w in document["command"])
    lines = [f"pip install spotchaos=={document['spotchaos']}"]
    replay = replay_line(document, trial)
    if replay:
        lines.append(one_line(replay))
    else:
        plan = shlex.quote(trial["plan"])
        lines.append(f"spotchaos run --kill-at {plan} -- {command}")
    return "\n".join(lines)


def _observed(trial: Mapping[str, Any], finding: Mapping[str, Any]) -> list[str]:
    said = f"Interrupted at {one_line(trial['plan'])}."
    for attempt in trial["attempts"]:
        if not attempt.get("restored"):
            continue
        if finding.get("attempt") not in (None, attempt["number"]):
            continue
        origin = attempt["started_from"]
        said += f" Attempt {attempt['number']} joined step {origin}."
        table = plain(restored_table(attempt, width=WIDTH))
        return [f"## What was restored\n\n{said}\n\n{_block(table.rstrip())}"]
    return [f"## What was seen\n\n{said}"]


def _versions(document: Mapping[str, Any]) -> str:
    lines = [f"spotchaos {document['spotchaos']}"]
    for name, value in document["environment"].items():
        if isinstance(value, str | int | float) and value not in ("", None):
            lines.append(f"{name} {one_line(str(value))}")
    return "\n".join(lines)


def _block(text: str) -> str:
    """Return a fenced block; no line of the text can end it."""
    return "````text\n" + clean(text).replace("````", "'```") + "\n````"
