"""A draft of a bug report about one finding, with local paths and secrets removed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from spotchaos.errors import ReportError, shortened
from spotchaos.findings import FINDINGS
from spotchaos.report.github import first_of_each
from spotchaos.report.redact import clean, cleaned, one_line, redact
from spotchaos.report.replaying import replay_line
from spotchaos.report.screen import WIDTH, plain, restored_table

LONGEST_PROSE = 2000
LONGEST_VERSION = 200
MOST_VERSIONS = 50
# What means something within a line of Markdown, or becomes a link by itself.
_ACTIVE = re.compile(
    r"[\\`*_\[\]<>|~$&#@!]|://|(?i:www\.|mailto:|\bGH-\d)|\b[0-9a-f]{7,40}\b"
)
_BEGINS = re.compile(r"[-+=]|\d+[.)]")  # ... and at the beginning of one


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
        f"# After an interruption: {kind.summary if kind else prose(finding['name'])}",
        "## What happens\n\n" + prose(finding["message"]),
        "## What should happen\n\n" + _expected(document),
    ]
    if trial is not None:
        parts.append("## How to see it\n\n" + _block(_steps(document, trial)))
        parts += _observed(trial, finding)
    parts.append("## Versions\n\n" + _block(_versions(document)))
    if finding.get("hint"):
        parts.append("## What may mend it\n\n" + prose(finding["hint"]))
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
    release = shlex.quote(f"spotchaos=={one_line(document['spotchaos'])}")
    lines = [f"pip install {release}"]
    replay = replay_line(document, trial)
    if replay:
        lines.append(one_line(replay))
    else:
        plan = shlex.quote(trial["plan"])
        lines.append(f"spotchaos run --kill-at {plan} -- {command}")
    return "\n".join(lines)


def _observed(trial: Mapping[str, Any], finding: Mapping[str, Any]) -> list[str]:
    said = f"Interrupted at {prose(trial['plan'])}."
    for attempt in trial["attempts"]:
        if not attempt.get("restored"):
            continue
        if finding.get("attempt") not in (None, attempt["number"]):
            continue
        origin = prose(str(attempt["started_from"]))
        said += f" Attempt {attempt['number']} joined step {origin}."
        table = plain(restored_table(attempt, width=WIDTH))
        return [f"## What was restored\n\n{said}\n\n{_block(table.rstrip())}"]
    return [f"## What was seen\n\n{said}"]


def _versions(document: Mapping[str, Any]) -> str:
    lines = [f"spotchaos {document['spotchaos']}"]
    for name, value in list(document["environment"].items())[:MOST_VERSIONS]:
        if isinstance(value, str | int | float) and value not in ("", None):
            said = shortened(one_line(str(value)), LONGEST_VERSION)
            lines.append(f"{shortened(name, LONGEST_VERSION)} {said}")
    return "\n".join(lines)


def prose(text: str) -> str:
    """Return a program's words as Markdown that is read and never acted on.

    A word that could be a mention, a reference to an issue, a link, HTML or any other
    syntax becomes code, which no forge looks into: `@user`, `org/repo#1`, `<b>`.
    """
    words = shortened(one_line(text), LONGEST_PROSE).split()
    return " ".join(
        _as_code(word)
        if _ACTIVE.search(word) or (n == 0 and _BEGINS.match(word))
        else word
        for n, word in enumerate(words)
    )


def _as_code(word: str) -> str:
    kept = word.rstrip(",.;:")
    return f"`{kept.replace('`', chr(39))}`{word[len(kept) :]}" if kept else word


def _block(text: str) -> str:
    """Return a fenced block; no line of the text can end it."""
    return "````text\n" + clean(text).replace("````", "'```") + "\n````"
