"""SARIF 2.1.0, as code scanning reads it: one rule a kind of finding, one result each.

Source: OASIS SARIF 2.1.0, sections 3.14 (run), 3.27 (result), 3.49 (reportingDescriptor).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from spotchaos.findings import FINDINGS, UNKNOWN
from spotchaos.report.gate import suppression
from spotchaos.report.github import first_of_each
from spotchaos.report.redact import clean, cleaned, one_line
from spotchaos.report.screen import trials_text

SCHEMA_URI = "https://json.schemastore.org/sarif-2.1.0.json"


def render(document: Mapping[str, Any]) -> str:
    """Return the report as a SARIF log with one run."""
    document = cleaned(document)
    findings = first_of_each(document)
    log = {
        "$schema": SCHEMA_URI,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "spotchaos",
                        "version": str(document["spotchaos"]),
                        "rules": [_rule(finding["name"]) for finding in findings],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "invocations": [
                    {
                        "executionSuccessful": document["verdict"] != "unknown",
                        "arguments": [one_line(str(w)) for w in document["command"]],
                    }
                ],
                "results": [
                    _result(finding, index, document)
                    for index, finding in enumerate(findings)
                ],
                "properties": {
                    "verdict": document["verdict"],
                    "promise": document["promise"],
                    "holdsUpTo": document.get("holds_up_to"),
                },
            }
        ],
    }
    return json.dumps(log, indent=1) + "\n"


def _rule(name: str) -> dict[str, Any]:
    kind = FINDINGS.get(name)
    summary = kind.summary if kind is not None else name
    return {
        "id": name,
        "shortDescription": {"text": summary[:1].upper() + summary[1:] + "."},
        "help": {"text": f"`spotchaos explain {name}` says how to mend it."},
        "defaultConfiguration": {"level": "note" if name in UNKNOWN else "error"},
    }


def _result(
    finding: Mapping[str, Any], index: int, document: Mapping[str, Any]
) -> dict[str, Any]:
    text = finding["message"]
    if finding["trials"]:
        text += f" ({trials_text(finding['trials'])})"
    if finding.get("hint"):
        text += f"\nHint: {finding['hint']}"
    result: dict[str, Any] = {
        "ruleId": finding["name"],
        "ruleIndex": index,
        "level": "note" if finding["name"] in UNKNOWN else "error",
        "message": {"text": clean(text)},
        "locations": [_location(finding.get("where"), document["command"])],
        "partialFingerprints": {"spotchaos/v1": _fingerprint(finding, document)},
    }
    replays = [
        t["replay"] for t in document["trials"] if t["number"] in finding["trials"]
    ]
    if replays:
        result["properties"] = {"replay": replays[0]}
    reason = suppression(document, finding["name"])
    if reason is not None:
        result["suppressions"] = [{"kind": "external", "justification": clean(reason)}]
    return result


def _location(where: Mapping[str, Any] | None, command: list[str]) -> dict[str, Any]:
    """Return where the finding is shown: its own line, else the program's script.

    Code scanning drops results that have no location.
    """
    physical: dict[str, Any]
    if where and where.get("file"):
        physical = {"artifactLocation": {"uri": _uri(str(where["file"]))}}
        line = where.get("line")
        if isinstance(line, int) and line >= 1:
            physical["region"] = {"startLine": line}
    else:
        script = next((w for w in command if str(w).endswith(".py")), command[0])
        physical = {
            "artifactLocation": {"uri": _uri(str(script))},
            "region": {"startLine": 1},
        }
    return {"physicalLocation": physical}


def _uri(path: str) -> str:
    return quote(str(PurePosixPath(one_line(path).replace("\\", "/"))), safe="/._-~")


def _fingerprint(finding: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    """Return what stays the same over runs: the finding, its component, its program."""
    parts = [finding["name"], finding.get("component") or "", *document["command"]]
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:32]
