"""Stored reports: read back, checked, and compared before and after a change."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotchaos.errors import ReportError
from spotchaos.report.document import SCHEMA, Document
from spotchaos.report.gate import uncounted
from spotchaos.report.redact import one_line
from spotchaos.report.screen import trials_text

# What every renderer relies on: key -> type of its value.
_NEEDED: dict[str, type | tuple[type, ...]] = {
    "verdict": str,
    "promise": str,
    "command": list,
    "trials": list,
    "findings": list,
    "notes": list,
    "coverage": dict,
    "environment": dict,
}
_NEEDED_OF_TRIAL: dict[str, type | tuple[type, ...]] = {
    "number": int,
    "plan": str,
    "verdict": str,
    "attempts": list,
    "findings": list,
    "replay": str,
}
_NEEDED_OF_KNOWN: dict[str, type | tuple[type, ...]] = {
    "finding": str,
    "reason": str,
    "until": str,
    "expired": bool,
    "trials": list,
}
_VERDICTS = ("held", "violated", "unknown")
# No report that we write comes near; what does was not written by us.
MOST_BYTES = 512 * 2**20


def read_report(path: Path) -> Document:
    """Read a report of schema 1.

    Raises:
        ReportError: it is not there, no report, damaged, or of a newer schema.
    """
    name = str(path)
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ReportError(f"{name!r} is too large to be a report")
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ReportError(
            f"there is no report {name!r}",
            hint="`spotchaos run --json FILE` writes one",
        ) from None
    except OSError as error:
        raise ReportError(
            f"cannot read the report {name!r}: {error.strerror}"
        ) from None
    except (ValueError, RecursionError):
        raise ReportError(
            f"{name!r} is no JSON",
            hint="give a file that `spotchaos run --json FILE` wrote, whole",
        ) from None
    return _checked(document, name)


def _checked(document: Any, name: str) -> Document:
    if not isinstance(document, dict) or "schema" not in document:
        raise ReportError(
            f"{name!r} is no report of spotchaos",
            hint="give a file that `spotchaos run --json FILE` wrote",
        )
    schema = document["schema"]
    if isinstance(schema, int) and schema > SCHEMA:
        raise ReportError(
            f"{name!r} has schema {schema}, and this release reads schema {SCHEMA}",
            hint="install a newer spotchaos",
        )
    damaged = schema != SCHEMA or _lacks(document, _NEEDED)
    damaged = damaged or document["verdict"] not in _VERDICTS
    if not damaged:
        damaged = any(
            _lacks(trial, _NEEDED_OF_TRIAL) or trial["verdict"] not in _VERDICTS
            for trial in document["trials"]
        )
    known = document.get("known") or []
    damaged = damaged or not isinstance(known, list)
    damaged = damaged or any(_lacks(entry, _NEEDED_OF_KNOWN) for entry in known)
    if damaged:
        raise ReportError(
            f"the report {name!r} is damaged: keys are missing or of another type",
            hint="write it again with `spotchaos run --json FILE`",
        )
    return document


def _lacks(value: Any, needed: dict[str, type | tuple[type, ...]]) -> bool:
    return not isinstance(value, dict) or any(
        not isinstance(value.get(key), kind) for key, kind in needed.items()
    )


@dataclass(frozen=True, slots=True)
class Comparison:
    """Findings of two reports: what came, what went, what stayed."""

    before: str  # verdicts
    after: str
    new: tuple[str, ...]
    fixed: tuple[str, ...]
    remaining: tuple[str, ...]
    trials: dict[str, list[int]]  # of the second report, of the first for what is fixed
    remarks: tuple[str, ...] = ()


def compare(before: Document, after: Document) -> Comparison:
    """Compare two reports of one program, before and after a change."""
    old = {f["name"]: list(f["trials"]) for f in before["findings"]}
    new = {f["name"]: list(f["trials"]) for f in after["findings"]}
    apart = uncounted(after)
    remarks = [
        f"{key} was {before.get(key)!r} and is {after.get(key)!r}"
        for key in ("promise", "seed")
        if before.get(key) != after.get(key)
    ]
    if before["command"] != after["command"]:
        remarks.append("the two reports are of different commands")
    return Comparison(
        before=before["verdict"],
        after=after["verdict"],
        new=tuple(name for name in new if name not in old and name not in apart),
        fixed=tuple(name for name in old if name not in new),
        remaining=tuple(name for name in new if name in old or name in apart),
        trials={**old, **new},
        remarks=tuple(remarks),
    )


def comparison_text(found: Comparison) -> str:
    """Return a comparison as lines for a terminal."""
    lines = [f"{found.before} before, {found.after} after", ""]
    for label, names in (
        ("new", found.new),
        ("fixed", found.fixed),
        ("remaining", found.remaining),
    ):
        if not names:
            lines.append(f"  {label:<10} none")
        for name in names:
            trials = found.trials[name]
            where = f"  {trials_text(trials)}" if trials else ""
            lines.append(f"  {label:<10} {one_line(name)}{where}")
    lines += [f"  Note: {one_line(remark)}" for remark in found.remarks]
    return "\n".join(lines) + "\n"
