"""The screen of `spotchaos cost`: what to change, and all policies in a table."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from spotchaos.report.screen import Line

WIDTH = 102
MOST_REASONS = 3
CAUSES = {"lost": "again", "saving": "saves", "restarting": "boots", "waiting": "waits"}


def cost_screen(document: Mapping[str, Any]) -> list[Line]:
    """Return the screen of a study, the best policy first."""
    lines: list[Line] = [[(heading(document), "bold")]]
    lines += [[(line, "")] for line in _measured(document)]
    if document["advice"]:
        lines += [[], *_wrapped(sentence(document["advice"]), style="bold green")]
    lines.append([])
    lines += _table(document)
    lines += [[], *_below(document)]
    return lines


def sentence(text: str) -> str:
    """Return a clause as a sentence."""
    return f"{text[:1].upper()}{text[1:]}."


def heading(document: Mapping[str, Any]) -> str:
    """Say what is trained and where."""
    job, where = document["job"], document["where"]
    nodes = f" on {job['nodes']} nodes" if job["nodes"] > 1 else ""
    nodes += ", elastic" if job["elastic"] else ""
    zones = [trace["zone"] for trace in where["traces"]]
    if zones:
        source = zones[0] if len(zones) == 1 else f"{len(zones)} zones"
        days = max(trace["days"] for trace in where["traces"])
        source = f"{source}, {days:.3g} days"
    else:
        source = where["failures"] or "nothing interrupts"
    return (
        f"{job['hours']:.4g} h of training{nodes}: {job['steps']:,} steps of"
        f" {duration(job['step_s'])}; {source}"
    )


def duration(seconds: float) -> str:
    """Return seconds as people say them."""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def _measured(document: Mapping[str, Any]) -> list[str]:
    """Say what was measured, and how far it spreads."""
    names = {
        "step_s": "a step",
        "save_stall_s": "a save stalls",
        "save_end_s": "is whole after",
        "cold_start_s": "a start",
        "resumed_start_s": "a resume",
        "notice_s": "a notice needs",
    }
    parts = []
    for name, what in names.items():
        found = document["timing"].get(name)
        if found is None:
            continue
        said = f"{what} {duration(found['median'])}"
        if found["n"] > 1:
            low, high = duration(found["p10"]), duration(found["p90"])
            said += f" ({low} to {high}, n={found['n']})"
        elif not found["n"]:
            said += " (given)"
        parts.append(said)
    return textwrap.wrap(
        "; ".join(parts), WIDTH, initial_indent="  ", subsequent_indent="  "
    )


def _table(document: Mapping[str, Any]) -> list[Line]:
    has_prices = document["where"]["prices"] is not None
    has_deadline = document["job"]["deadline_hours"] is not None
    head = f"  {'policy':<22}{'every':>7}{'hours':>7}{'5-95 %':>10}"
    head += f"{'dollars':>8}{'saved':>6}" if has_prices else ""
    head += f"{'useful':>7}" + "".join(f"{word:>6}" for word in CAUSES.values())
    head += f"{'cuts':>5}" + (f"{'late':>5}" if has_deadline else "")
    lines: list[Line] = [[(head, "dim")]]
    for place, row in enumerate(document["policies"]):
        style = "green" if not place else ""
        name = f"  {row['policy']:<22}"
        every = f"{row['every']:,}" if row["every"] else "-"
        if row["hours"] is None:
            lines.append([(f"{name}{every:>7}   never finishes", "red")])
            continue
        span = f"{number(row['hours']['p5'])}-{number(row['hours']['p95'])}"
        text = f"{name}{every:>7}{number(row['hours']['median']):>7}{span:>10}"
        if has_prices:
            saved = row["saving_percent"]
            text += f"{row['dollars']['median']:>8,.0f}"
            text += f"{'-' if saved is None else f'{saved:.0f}%':>6}"
        text += f"{100 * row['goodput']:>6.0f}%"
        text += "".join(f"{number(spent(row, c)):>6}" for c in CAUSES)
        text += f"{number(row['interruptions']):>5}"
        if has_deadline:
            text += f"{100 - 100 * row['meets_deadline']:>4.0f}%"
        lines.append([(text, style)])
    return lines


def spent(row: Mapping[str, Any], cause: str) -> float:
    """Return hours of a cause; what is left of a notice after its save counts to saves."""
    causes = row["by_cause"]
    return float(causes[cause] + (causes["idle"] if cause == "saving" else 0.0))


def number(value: float) -> str:
    """Return a number with one decimal, or without one if it is large."""
    if abs(value) >= 10_000:
        return f"{value:.0e}".replace("e+0", "e")
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}"


def remarks(document: Mapping[str, Any]) -> list[str]:
    """Return what bounds the table: why some never finish, and how sure it all is."""
    said = []
    for row in document["policies"]:
        if row["why_not"]:
            none = f" in {100 - 100 * row['finishes']:.0f} % of the runs"
            share = none if row["finishes"] else ""
            said.append(f"{row['policy']} never finishes{share}: {row['why_not']}")
    sure = document["sure"]
    if sure is not None:
        low, high = sure["hours"]
        text = "with the quickest and slowest tenth of what was measured,"
        text += f" '{sure['policy']}' takes {low:.4g} to {high:.4g} h"
        if sure["dollars"] is not None:
            text += " and ${:,.0f} to ${:,.0f}".format(*sure["dollars"])
        said.append(text)
    interval = document["interval"]
    if interval["best"] and interval["young"]:
        said.append(
            f"closed forms for exponential failures: every {interval['young']:,} steps"
            f" (Young), {interval['daly']:,} (Daly)"
        )
    return said + list(document["notes"])


def _below(document: Mapping[str, Any]) -> list[Line]:
    lines: list[Line] = []
    for text in remarks(document):
        lines += _wrapped(f"Note: {text}", most=2)
    return lines


def _wrapped(text: str, *, style: str = "", most: int = 3) -> list[Line]:
    wrapped = textwrap.wrap(
        text,
        WIDTH,
        initial_indent="  ",
        subsequent_indent="  ",
        max_lines=most,
        placeholder=" ...",
    )
    return [[(line, style)] for line in wrapped]
