"""Annotations for GitHub at the program's own lines, and a summary in Markdown."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from spotchaos.findings import FINDINGS
from spotchaos.report.gate import gate_remarks, suppression
from spotchaos.report.redact import clean, one_line
from spotchaos.report.screen import trials_text

Document = Mapping[str, Any]

# GitHub shows ten annotations of a kind for a step and drops the rest.
MOST_ANNOTATIONS = 10
SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"
_MARK = {"held": "✅", "violated": "❌", "unknown": "❔"}


def annotate(document: Document, *, out: TextIO) -> None:
    """Print workflow commands, and append the summary where GitHub wants it."""
    out.writelines(line + "\n" for line in workflow_commands(document))
    path = os.environ.get(SUMMARY_VARIABLE)
    if path:
        with Path(path).open("a", encoding="utf-8", errors="replace") as file:
            file.write(summary(document))


def workflow_commands(document: Document) -> list[str]:
    """Return one workflow command for each kind of finding."""
    lines = []
    for finding in first_of_each(document)[:MOST_ANNOTATIONS]:
        properties = {"title": f"spotchaos: {finding['name']}"}
        where = finding.get("where") or {}
        if where.get("file"):
            properties["file"] = str(where["file"])
            if where.get("line"):
                properties["line"] = str(where["line"])
        text = finding["message"]
        if finding.get("hint"):
            text += f"\nHint: {finding['hint']}"
        level = "error" if document["verdict"] == "violated" else "warning"
        reason = suppression(document, finding["name"])
        if reason is not None:
            level, text = "notice", f"{text}\n{reason}"
        said = ",".join(f"{k}={_property(v)}" for k, v in properties.items())
        lines.append(f"::{level} {said}::{_data(text)}")
    if document["verdict"] == "unknown" and not lines:
        text = document.get("trouble") or "the verdict is unknown"
        lines.append(f"::warning title=spotchaos::{_data(text)}")
    return lines


def first_of_each(document: Document) -> list[dict[str, Any]]:
    """Return each kind of finding once, as its first trial tells it, with all trials."""
    found = []
    for entry in document["findings"]:
        told = next(
            (
                finding
                for trial in document["trials"]
                for finding in trial["findings"]
                if finding["name"] == entry["name"]
            ),
            None,
        )
        if told is None:
            kind = FINDINGS.get(entry["name"])
            message = document.get("trouble") or (kind.summary if kind else "")
            told = {"message": message, "hint": document.get("hint"), "where": None}
        found.append({**told, "name": entry["name"], "trials": entry["trials"]})
    return found


def summary(document: Document) -> str:
    """Return the job summary: verdict, findings and trials as Markdown."""
    verdict = document["verdict"]
    holds = document.get("holds_up_to") or "nothing"
    lines = [
        f"## {_MARK[verdict]} spotchaos: {verdict}",
        "",
        f"Promise `{document['promise']}`; holds up to **{holds}**.",
        "",
    ]
    if document.get("trouble"):
        lines += [_cell(document["trouble"]), ""]
    findings = first_of_each(document)
    if findings:
        lines += [
            "| finding | trials | what happened | hint |",
            "| --- | --- | --- | --- |",
        ]
        lines += [
            f"| {_code(f['name'])} | {trials_text(f['trials']) if f['trials'] else ''}"
            f" | {_cell(f['message'])} | {_cell(f.get('hint') or '')} |"
            for f in findings
        ]
        lines.append("")
    remarks = [f"- {_cell(remark)}" for remark in gate_remarks(document)]
    if remarks:
        lines += [*remarks, ""]
    if document["trials"]:
        lines += ["<details><summary>Trials</summary>", ""]
        lines += ["| trial | plan | verdict | replay |", "| --- | --- | --- | --- |"]
        lines += [
            f"| {t['number']} | {_code(t['plan'])} | {t['verdict']}"
            f" | {_code('spotchaos replay ' + t['replay']) if t['replay'] else ''} |"
            for t in document["trials"]
        ]
        lines += ["", "</details>", ""]
    return "\n".join(lines) + "\n"


def _property(text: str) -> str:
    """Escape a property of a workflow command.

    Source: the functions escapeProperty and escapeData of GitHub's toolkit.
    """
    return _data(one_line(text)).replace(":", "%3A").replace(",", "%2C")


def _data(text: str) -> str:
    escaped = clean(text).replace("%", "%25").replace("\r", "%0D")
    return escaped.replace("\n", "%0A")


def _code(text: str) -> str:
    """Return inline code in a table; Markdown is interpreted within the element too."""
    return f"<code>{_cell(text)}</code>"


def _cell(text: str) -> str:
    """Escape prose for a cell of a Markdown table."""
    escaped = one_line(text).replace("&", "&amp;").replace("<", "&lt;")
    escaped = escaped.replace(">", "&gt;").replace("@", "&#64;")
    for special in "\\`*_[]|!~$":
        escaped = escaped.replace(special, f"\\{special}")
    # A number after a hash would link to an issue of whoever reads it.
    return re.sub(r"(?<!&)#", "&#35;", escaped)
