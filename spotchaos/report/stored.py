"""Stored reports: read back, checked, and compared before and after a change."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from spotchaos.config.untrusted import check, parse_json, read_bounded
from spotchaos.errors import ReportError, shortened
from spotchaos.report.document import SCHEMA, Document
from spotchaos.report.gate import uncounted
from spotchaos.report.redact import one_line
from spotchaos.report.schema import Report
from spotchaos.report.screen import trials_text

# No report that we write comes near; what does was not written by us.
MOST_BYTES = 256 << 20
_WRITE_AGAIN = "give a whole file that `spotchaos run --json FILE` wrote"


def read_report(path: Path) -> Document:
    """Read a report of schema 1.

    Raises:
        ReportError: it is not there, no report, damaged, or of a newer schema.
    """
    name = shortened(repr(str(path)), 80)
    try:
        raw = read_bounded(path, most_bytes=MOST_BYTES)
    except FileNotFoundError:
        raise ReportError(
            f"there is no report {name}",
            hint="`spotchaos run --json FILE` writes one",
        ) from None
    except OSError as error:
        raise ReportError(f"cannot read the report {name}: {error.strerror}") from None
    if raw is None:
        raise ReportError(
            f"{name} is larger than {MOST_BYTES >> 20} MiB, too large to be a report"
        )
    what = f"the report {name}"
    document = parse_json(raw, what=what, error=ReportError, hint=_WRITE_AGAIN)
    if not isinstance(document, dict) or "schema" not in document:
        raise ReportError(
            f"{what} is damaged: it is no report of spotchaos", hint=_WRITE_AGAIN
        )
    schema = document["schema"]
    if isinstance(schema, int) and schema > SCHEMA:
        raise ReportError(
            f"{name} has schema {shortened(str(schema), 20)}, and this release reads"
            f" schema {SCHEMA}",
            hint="install a newer spotchaos",
        )
    if schema != SCHEMA or isinstance(schema, bool | float):
        raise ReportError(
            f"{what} is damaged at $.schema: it is {shortened(repr(schema), 40)}",
            hint=_WRITE_AGAIN,
        )
    check(document, Report, what=what, error=ReportError, hint=_WRITE_AGAIN)
    return document


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
