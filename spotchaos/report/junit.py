"""JUnit XML: the baseline and each trial as a test case of one suite.

Source: the schema that CI systems agree on, `junit-10.xsd` of the Jenkins xUnit plugin.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Mapping
from typing import Any

from spotchaos.report.redact import clean, one_line
from spotchaos.report.replaying import replay_line


def render(document: Mapping[str, Any]) -> str:
    """Return the report as a JUnit file; violated is a failure, unknown an error."""
    cases = [_baseline_case(document)]
    cases += [_trial_case(trial, document) for trial in document["trials"]]
    suite = ET.Element(
        "testsuite",
        {
            "name": "spotchaos",
            "tests": str(len(cases)),
            "failures": str(sum(c.find("failure") is not None for c in cases)),
            "errors": str(sum(c.find("error") is not None for c in cases)),
            "skipped": "0",
            "time": _seconds(document.get("wall_s")),
        },
    )
    properties = ET.SubElement(suite, "properties")
    for name in ("promise", "holds_up_to", "seed", "verdict"):
        value = one_line(str(document.get(name) or "none"))
        ET.SubElement(properties, "property", {"name": name, "value": value})
    suite.extend(cases)
    root = ET.Element("testsuites", {"name": "spotchaos"})
    root.append(suite)
    ET.indent(root)
    text = ET.tostring(root, encoding="unicode")
    return f"<?xml version='1.0' encoding='utf-8'?>\n{text}\n"


def _baseline_case(document: Mapping[str, Any]) -> ET.Element:
    """Return the case of the uninterrupted runs; what went wrong there is an error."""
    baseline = document.get("baseline") or {}
    case = _case("baseline", baseline.get("wall_s"))
    if document.get("trouble"):
        of_none = [f["name"] for f in document["findings"] if not f["trials"]]
        _add(
            case,
            "error",
            kind=", ".join(of_none) or "unknown",
            message=document["trouble"],
            text="\n".join(filter(None, (document["trouble"], document.get("hint")))),
        )
    return case


def _trial_case(trial: Mapping[str, Any], document: Mapping[str, Any]) -> ET.Element:
    case = _case(f"trial {trial['number']} [{trial['plan']}]", trial.get("wall_s"))
    told = trial["findings"]
    if trial["verdict"] != "held":
        _add(
            case,
            "failure" if trial["verdict"] == "violated" else "error",
            kind=", ".join(dict.fromkeys(f["name"] for f in told)) or "unknown",
            message=told[0]["message"] if told else trial["verdict"],
            text=_text(told, trial, document),
        )
    return case


def _text(
    findings: list[dict[str, Any]],
    trial: Mapping[str, Any],
    document: Mapping[str, Any],
) -> str:
    lines = []
    for finding in findings:
        where = finding.get("where") or {}
        place = f"{where['file']}:{where.get('line')}: " if where.get("file") else ""
        lines.append(f"{place}{finding['name']}: {finding['message']}")
        if finding.get("hint"):
            lines.append(f"Hint: {finding['hint']}")
    replay = replay_line(document, trial)
    if replay:
        lines.append(f"Replay: {replay}")
    return "\n".join(lines)


def _case(name: str, wall_s: Any) -> ET.Element:
    return ET.Element(
        "testcase",
        {"classname": "spotchaos", "name": one_line(name), "time": _seconds(wall_s)},
    )


def _add(case: ET.Element, tag: str, *, kind: str, message: str, text: str) -> None:
    attributes = {"type": one_line(kind), "message": one_line(message)}
    ET.SubElement(case, tag, attributes).text = clean(text)


def _seconds(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, int | float) else "0.000"
