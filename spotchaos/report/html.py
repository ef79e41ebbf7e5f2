"""The report as one self-contained page: no network, readable with scripts off."""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from spotchaos.explanations import page
from spotchaos.report import exploration_screen, grace, svg
from spotchaos.report.gate import gate_remarks, suppression
from spotchaos.report.github import first_of_each
from spotchaos.report.redact import cleaned, one_line
from spotchaos.report.replaying import replay_line
from spotchaos.report.screen import is_amiss, trials_text

_FOLDER = resources.files(__package__).joinpath("templates")


def render(document: Mapping[str, Any]) -> str:
    """Return the page of a report."""
    document = cleaned(document)
    script = _asset("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    findings = [
        {**finding, "suppressed": suppression(document, finding["name"])}
        for finding in first_of_each(document)
    ]
    trials = document["trials"]
    baseline = document.get("baseline") or {}
    loss = (document.get("series") or {}).get("loss") or {}
    return _template().render(
        report=document,
        findings=findings,
        baseline=baseline,
        pages={f["name"]: _explanation(f["name"]) for f in findings},
        counts={v: sum(t["verdict"] == v for t in trials) for v in _VERDICTS},
        losses=svg.losses(loss),
        curves=[svg.curve_name(n) for n in list(loss)[: svg.MOST_SERIES + 1]],
        differences=svg.differences(loss),
        weights=svg.weights_apart(trials),
        remarks=gate_remarks(document),
        states=exploration_screen.counted(document),
        map=crash_map(document.get("classes") or ()),
        grace=grace.draw(trials),
        strip=svg.kill_strip(trials, baseline.get("steps") or 0),
        style=Markup(_asset("report.css")),
        script=Markup(script),
        script_digest=digest,
    )


_VERDICTS = ("violated", "unknown", "held")


def heat(attempt: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of the restored-from table: component, and a cell for each rank."""
    ranks: Mapping[str, Mapping[str, Any]] = attempt.get("restored") or {}
    joined = attempt.get("started_from")
    components = dict.fromkeys(c for row in ranks.values() for c in row)
    rows = []
    for component in components:
        cells = []
        for row in ranks.values():
            value = row.get(component)
            cells.append(
                {
                    "text": _origin(value),
                    "kind": _kind(component, value, joined),
                }
            )
        rows.append({"component": component, "cells": cells})
    return rows


def crash_map(classes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return classes of crash states as a table: operations by persistence models."""
    models = list(dict.fromkeys(str(entry.get("model")) for entry in classes))
    rows: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for entry in classes:
        operation = str(entry.get("operation") or "before the first operation")
        cells = rows.setdefault(operation, {model: [] for model in models})
        cells[str(entry.get("model"))].append(entry)
    return {
        "models": models,
        "rows": [
            {"operation": operation, "cells": list(cells.values())}
            for operation, cells in rows.items()
        ],
    }


def _origin(value: Any) -> str:
    if value is None:
        return "-"
    return f"step {value}" if isinstance(value, int) else str(value)


def _kind(component: str, value: Any, joined: Any) -> str:
    if value is None:
        return "none"
    if not is_amiss(value, joined):
        return "good"
    return value if value in ("fresh", "foreign") else "elsewhere"


def _explanation(name: str) -> Markup | None:
    """Return the page of a finding as HTML; raw HTML in it is shown, not interpreted."""
    from markdown_it import MarkdownIt

    try:
        text = page(name)
    except KeyError:
        return None
    # The page is shown below the finding's own heading, of the third level.
    text = text.partition("\n")[2] if text.startswith("# ") else text
    text = text.replace("\n## ", "\n#### ")
    rendered: str = MarkdownIt("commonmark", {"html": False}).render(text)
    return Markup(rendered)


def _shell_line(words: list[str]) -> str:
    return shlex.join([one_line(str(word)) for word in words])


def _again(report: Mapping[str, Any], trial: Mapping[str, Any]) -> str:
    return one_line(replay_line(report, trial) or "")


def _asset(name: str) -> str:
    return _FOLDER.joinpath(name).read_text(encoding="utf-8")


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals.update(heat=heat, timeline=svg.timeline)
    environment.filters.update(
        trials_text=trials_text,
        one_line=one_line,
        shell=_shell_line,
        again=_again,
    )
    return environment.from_string(_asset("report.html"))
