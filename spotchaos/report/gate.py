"""What a team has decided beforehand: known findings, and findings that do not count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from spotchaos.config.settings import Settings

Document = Mapping[str, Any]


def known_entries(
    settings: Settings, findings: Iterable[tuple[str, tuple[int, ...]]]
) -> list[dict[str, Any]]:
    """Return the known findings of a campaign, and in which trials each was seen.

    Args:
        settings: whose `known` and `today` decide.
        findings: what the campaign found: names, each with its trials.
    """
    seen = dict(findings)
    return [
        {
            "finding": entry.finding,
            "reason": entry.reason,
            "until": entry.until.isoformat(),
            "expired": entry.has_expired(settings.today),
            "trials": list(seen.get(entry.finding, ())),
        }
        for entry in settings.known
    ]


def uncounted(document: Document) -> set[str]:
    """Return the findings of a report that do not make it `violated`."""
    return {f["name"] for f in document["findings"] if f.get("counts") is False}


def suppression(document: Document, finding: str) -> str | None:
    """Return why a finding does not count; None: it does."""
    if finding not in uncounted(document):
        return None
    for entry in document.get("known") or ():
        if entry["finding"] == finding and not entry["expired"]:
            return f"known until {entry['until']}: {entry['reason']}"
    return "left out by --fail-on"


def gate_remarks(document: Document) -> list[str]:
    """Return a sentence for each known finding: shown, past its date, or gone."""
    said = []
    proved = document["verdict"] != "unknown" and bool(document["trials"])
    for entry in document.get("known") or ():
        name = entry["finding"]
        if entry["trials"] and entry["expired"]:
            said.append(
                f"{name} was known until {entry['until']} and counts again:"
                f" {entry['reason']}"
            )
        elif entry["trials"]:
            said.append(f"{name} is known until {entry['until']}: {entry['reason']}")
        elif proved and document.get("shard") is None:
            said.append(
                f"{name} is listed as known and was not seen: if it is fixed, remove"
                " its entry"
            )
    left_out = [
        name
        for name in uncounted(document)
        if (suppression(document, name) or "").startswith("left out")
    ]
    if left_out:
        said.append(f"left out by --fail-on: {', '.join(sorted(left_out))}")
    return said
