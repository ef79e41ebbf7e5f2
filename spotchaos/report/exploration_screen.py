"""What a screen says of an exploration: how many states of which models, and their classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MOST_CLASSES, MOST_DIFFERENCES = 4, 3


def counted(document: Mapping[str, Any]) -> str | None:
    """Return in one sentence which states were resumed; None if none was to be."""
    told = document["coverage"].get("crash_states")
    if not isinstance(told, Mapping):
        return None
    models = ", ".join(f"{name} {count}" for name, count in told["by_model"].items())
    if not told["distinct"]:
        return "No crash state was reached."
    alike = told.get("skipped_by_readset") or 0
    checked = told.get("spot_checked") or 0
    text = (
        f"{_states(told['distinct'])} that a crash could leave"
        f" ({told['drawn']} drawn: {models}): {told.get('run', 0)} resumed from,"
        f" {alike} equal to one of these in all that a resume asks"
    )
    if checked:
        text += f" ({checked} of them run all the same)"
    if told.get("held") is not None:
        text += (
            f"; {told['held']} held, {told['violated']} violated,"
            f" {told['unknown']} unknown"
        )
    return text + "."


def not_visited(document: Mapping[str, Any]) -> list[str]:
    """Return what an exploration left out, in clauses."""
    told = document["coverage"].get("crash_states")
    if not isinstance(told, Mapping):
        return []
    return [f"not visited: {reason}" for reason in told.get("why_not_visited") or ()]


def class_lines(document: Mapping[str, Any]) -> list[str]:
    """Return the classes of states, most telling first, with what is on disk."""
    lines: list[str] = []
    classes = document.get("classes") or ()
    for entry in classes[:MOST_CLASSES]:
        after = f" at {entry['operation']}" if entry.get("operation") else ""
        when = "killed in a resume" if entry.get("during_resume") else entry["severity"]
        lines.append(
            f"{entry['finding']} ({when}): {_states(entry['states'])},"
            f" the simplest {entry['state']}{after}"
        )
        differences = list(entry.get("on_disk") or ())[: 1 + MOST_DIFFERENCES]
        lines += [f"  {line}" for line in differences]
    if len(classes) > MOST_CLASSES:
        lines.append(f"and {len(classes) - MOST_CLASSES} more classes in the report")
    return lines


def _states(count: int) -> str:
    return f"{count} state{'s' if count != 1 else ''}"
