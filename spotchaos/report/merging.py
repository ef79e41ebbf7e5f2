"""The reports of all shards of one campaign, put together into the report of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spotchaos.errors import ReportError
from spotchaos.findings import PROMISES
from spotchaos.model import Verdict, worst
from spotchaos.report.document import Document

# What all shards of one campaign have in common.
_COMMON = ("command", "resume_command", "seed", "promise")
_ADDED_UP = ("kill_points", "plans", "plans_run", "skipped_as_equal", "not_reached")


def are_shards(documents: Sequence[Document]) -> bool:
    """Tell whether reports are to be merged: each says which part of a campaign it is."""
    return len(documents) > 1 and all(d.get("shard") for d in documents)


def merge(documents: Sequence[Document]) -> Document:
    """Return the report of the campaign whose shards these are, in any order.

    A shard that is missing makes the verdict `unknown`, unless another is violated.

    Raises:
        ReportError: they are not of one campaign, or one shard is there twice.
    """
    parts = _parts(documents)
    first = documents[0]
    of = next(iter(parts.values()))[1]
    trials = sorted(
        (trial for d in documents for trial in d["trials"]), key=lambda t: t["number"]
    )
    missing = [n for n in range(1, of + 1) if n not in parts]
    verdicts = [Verdict(d["verdict"]) for d in documents]
    trouble = [d["trouble"] for d in documents if d.get("trouble")]
    hint = next((d["hint"] for d in documents if d.get("hint")), None)
    if missing:
        verdicts.append(Verdict.UNKNOWN)
        names = ", ".join(f"{n}/{of}" for n in missing)
        trouble.append(f"the report of shard {names} is missing")
    merged: Document = {
        **first,
        "verdict": str(worst(verdicts)),
        "holds_up_to": _weakest(documents),
        "trials": trials,
        "classes": [entry for d in documents for entry in d.get("classes") or ()],
        "series": {"loss": _losses(documents)},
        "ledger": _ledger(documents),
        "coverage": _coverage(documents),
        "notes": _named(documents, "notes"),
        "findings": _named(documents, "findings"),
        "known": _known(documents),
        "unprotected": _distinct(documents),
        "shard": f"{','.join(str(n) for n in sorted(parts))}/{of}" if missing else None,
        "trouble": "; ".join(dict.fromkeys(trouble)) or None,
        "hint": hint,
        "wall_s": max(d.get("wall_s") or 0 for d in documents),
        "cpu_s": sum(d.get("cpu_s") or 0 for d in documents),
        "interrupted": any(d.get("interrupted") for d in documents),
    }
    return merged


def _parts(documents: Sequence[Document]) -> dict[int, tuple[Document, int]]:
    first = documents[0]
    found: dict[int, tuple[Document, int]] = {}
    of = None
    for document in documents:
        part, _, total = str(document["shard"]).partition("/")
        if not (part.isdecimal() and total.isdecimal()) or of not in (None, total):
            raise ReportError(
                f"shard {document['shard']!r} does not belong to the others",
                hint="merge the reports of one campaign: 1/N to N/N",
            )
        of = total
        if int(part) in found:
            raise ReportError(f"shard {document['shard']} is given twice")
        found[int(part)] = (document, int(total))
        for key in _COMMON:
            if document.get(key) != first.get(key):
                raise ReportError(
                    f"the shards have different values of {key!r}: {first.get(key)!r}"
                    f" and {document.get(key)!r}",
                    hint="merge the reports of one campaign on one program",
                )
    baselines = [d["baseline"] for d in documents if d.get("baseline")]
    lengths = {int(baseline["steps"]) for baseline in baselines}
    if len(lengths) > 1:
        raise ReportError(
            "the shards are of different programs: their baselines have"
            f" {' and '.join(str(n) for n in sorted(lengths))} steps"
        )
    return found


def _weakest(documents: Sequence[Document]) -> str | None:
    held = [d.get("holds_up_to") for d in documents if d["trials"]]
    if not held or None in held:
        return None
    return min((str(p) for p in held), key=PROMISES.index)


def _losses(documents: Sequence[Document]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for document in documents:
        for name, points in ((document.get("series") or {}).get("loss") or {}).items():
            found.setdefault(name, points)
    return found


def _ledger(documents: Sequence[Document]) -> dict[str, Any]:
    ledgers = [d.get("ledger") or {} for d in documents]
    return {
        "repeated": sum(ledger.get("repeated", 0) for ledger in ledgers),
        "skipped": sum(ledger.get("skipped", 0) for ledger in ledgers),
        "epochs": [epoch for ledger in ledgers for epoch in ledger.get("epochs", ())],
    }


def _coverage(documents: Sequence[Document]) -> dict[str, Any]:
    total = dict(documents[0]["coverage"])
    for key in _ADDED_UP:
        if key in total:
            total[key] = sum(d["coverage"].get(key) or 0 for d in documents)
    if "not_run" in total:
        left = (d["coverage"].get("not_run") or () for d in documents)
        total["not_run"] = [plan for each in left for plan in each]
    if "gaps_not_struck" in total:
        # Struck by no part.
        parts = [d["coverage"].get("gaps_not_struck") or () for d in documents]
        total["gaps_not_struck"] = [
            gap for gap in parts[0] if all(gap in part for part in parts)
        ]
    return total


def _named(documents: Sequence[Document], key: str) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for document in documents:
        for entry in document[key]:
            own = found.setdefault(entry["name"], {**entry, "trials": []})
            own["trials"] = sorted({*own["trials"], *entry["trials"]})
    return list(found.values())


def _known(documents: Sequence[Document]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for document in documents:
        for entry in document.get("known") or ():
            own = found.setdefault(entry["finding"], {**entry, "trials": []})
            own["trials"] = sorted({*own["trials"], *entry["trials"]})
    return list(found.values())


def _distinct(documents: Sequence[Document]) -> list[str]:
    said = (text for d in documents for text in d.get("unprotected") or ())
    return list(dict.fromkeys(said))
