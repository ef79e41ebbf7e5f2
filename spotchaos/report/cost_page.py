"""The page of `spotchaos cost --html`: timelines, cost against interval, distributions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from spotchaos.report.cost_screen import (
    CAUSES,
    duration,
    heading,
    number,
    remarks,
    sentence,
    spent,
)
from spotchaos.report.svg import WIDTH, draw_svg, is_number

MOST_ROWS = 14
LEFT = 160


def render(document: Mapping[str, Any]) -> str:
    """Return the page of a study."""
    policies = document["policies"]
    return _template().render(
        study=document,
        heading=heading(document),
        advice=sentence(document["advice"]) if document["advice"] else "",
        causes=CAUSES,
        timelines=timelines(document),
        interval=interval(document),
        distribution=distribution(policies, document["interval"]["unit"]),
        remarks=[sentence(text) for text in remarks(document)],
        style=Markup(_asset("report.css")),
    )


def timelines(document: Mapping[str, Any]) -> Markup:
    """Draw the trace, and above one another the middle run of each policy."""
    shown = [t for t in document["timelines"] if t["leases"]][:MOST_ROWS]
    finished = [t["hours"] for t in shown if t["finished"]]
    if not shown:
        return Markup()
    end_h = max(finished, default=max(t["hours"] for t in shown)) or 1.0
    parts: list[Markup] = []
    for row, line in enumerate(shown):
        parts += _leases(line, y=24 * row + 6, end_h=end_h)
    height = 24 * len(shown) + 24
    parts.append(_text(LEFT, height - 6, "0 h", "start"))
    parts.append(_text(WIDTH - 4, height - 6, f"{end_h:.4g} h", "end"))
    label = (
        f"The run of median length of {len(shown)} policies over time: spot and"
        " on-demand machines, and what was lost of each lease"
    )
    return draw_svg(parts, height=height, label=label)


def _leases(line: Mapping[str, Any], *, y: int, end_h: float) -> list[Markup]:
    def x(hours: float) -> float:
        return LEFT + (WIDTH - LEFT - 6) * min(hours, end_h) / end_h

    parts = [
        _text(4, y + 13, line["policy"], "start"),
        Markup(
            '<rect class="none" x="{:.1f}" y="{}" width="{:.1f}" height="16"/>'
        ).format(x(0.0), y, x(line["hours"]) - x(0.0)),
    ]
    for lease in line["leases"]:
        if lease["start"] > end_h:
            break
        begin, end = x(lease["start"]), x(lease["end"])
        kind = "spot" if lease["market"] == "spot" else "demand"
        said = (
            f"{lease['market']}, {lease['nodes']} machines"
            f" {lease['zone']}: {lease['start']:.2f} to {lease['end']:.2f} h,"
            f" {lease['ended']}, {lease['lost']:.2f} h lost"
        )
        parts.append(
            Markup(
                '<g><rect class="{}" x="{:.1f}" y="{}" width="{:.1f}" height="16"/>'
            ).format(kind, begin, y, max(0.6, end - begin))
            + Markup("<title>{}</title></g>").format(said)
        )
        if lease["lost"]:
            lost = x(lease["end"] - lease["lost"])
            parts.append(
                Markup(
                    '<rect class="lost" x="{:.1f}" y="{}" width="{:.1f}" height="16"/>'
                ).format(lost, y, max(0.4, end - lost))
            )
    return parts


def capacity(document: Mapping[str, Any]) -> Markup:
    """Draw when each zone's trace has enough machines."""
    zones = document["where"]["traces"]
    if not zones:
        return Markup()
    days = max(zone["days"] for zone in zones) or 1.0
    parts: list[Markup] = []
    for row, zone in enumerate(zones):
        y = 24 * row + 6
        parts.append(_text(4, y + 13, zone["zone"], "start"))
        scale = (WIDTH - LEFT - 6) / (24 * days)
        path = "".join(
            f"M{LEFT + start * scale:.1f} {y}h{max(0.3, (end - start) * scale):.1f}v16"
            f"H{LEFT + start * scale:.1f}z"
            for start, end in zone["windows"]
        )
        parts.append(
            Markup('<rect class="none" x="{}" y="{}" width="{}" height="16"/>').format(
                LEFT, y, WIDTH - LEFT - 6
            )
            + Markup('<path class="spot" d="{}"><title>{}</title></path>').format(
                path, f"{zone['zone']}: {100 * zone['availability']:.0f} % of the time"
            )
        )
    height = 24 * len(zones) + 24
    parts.append(_text(WIDTH - 4, height - 6, f"{days:.3g} days", "end"))
    label = f"When enough machines can be had in {len(zones)} zones"
    return draw_svg(parts, height=height, label=label)


def interval(document: Mapping[str, Any]) -> Markup:
    """Draw the cost against the save interval, with the best and today's marked."""
    found = document["interval"]
    points = [
        (math.log10(every), cost)
        for every, cost in found["tried"]
        if is_number(cost) and every > 0
    ]
    if len(points) < 2:
        return Markup()
    least = min(cost for _, cost in points)
    # What is far above the bottom would flatten it.
    points = [p for p in points if p[1] <= 2 * least] or points
    low, high = least, max(cost for _, cost in points)
    left, right = points[0][0], points[-1][0]
    height, wide, tall = 240, max(right - left, 1e-9), (high - low) or 1.0

    def x(at: float) -> float:
        return float(70 + (WIDTH - 90) * (at - left) / wide)

    def y(cost: float) -> float:
        return float(30 + (height - 70) * (high - cost) / tall)

    line = " ".join(f"{x(at):.1f},{y(cost):.1f}" for at, cost in points)
    parts = [
        Markup('<path class="frame" d="M70 22V{0}H{1}"/>').format(
            height - 36, WIDTH - 12
        ),
        Markup('<polyline class="curve c2" points="{}"/>').format(line),
        _text(64, 34, number(high), "end"),
        _text(64, height - 38, number(low), "end"),
        _text(4, 14, found["unit"], "start"),
        _text(70, height - 20, f"every {10**left:,.0f} steps", "start"),
        _text(WIDTH - 12, height - 20, f"{10**right:,.0f}", "end"),
    ]
    marks = (("best", found["best"], "good"), ("now", found["now"], "bad"))
    for place, (word, every, kind) in enumerate(marks):
        if not every or not left - 1e-9 <= math.log10(every) <= right + 1e-9:
            continue
        at = x(math.log10(every))
        parts.append(
            Markup('<path class="mark {}" d="M{:.1f} 22V{}"/>').format(
                kind, at, height - 36
            )
        )
        # Each is named on the side away from the other.
        is_right = every == max(found["now"] or 0, found["best"] or 0)
        anchor, shift = ("start", 4) if is_right else ("end", -4)
        parts.append(
            _text(at + shift, 34 + 14 * place, f"{word}: every {every:,}", anchor)
        )
    label = f"{found['unit']} against the save interval; least at {found['best']} steps"
    return draw_svg(parts, height=height, label=label)


def distribution(policies: Sequence[Mapping[str, Any]], unit: str) -> Markup:
    """Draw how the runs of each policy spread."""
    shown = [row for row in policies if row["distribution"]][:MOST_ROWS]
    unit = "dollars" if unit == "dollars" else "hours"
    if not shown:
        return Markup()
    edges = [edge for row in shown for edge, _ in row["distribution"]]
    low, high = min(edges), max(max(edges), min(edges) + 1e-9)
    bars: list[Markup] = []
    for number_, row in enumerate(shown):
        y = 40 * number_ + 4
        bars.append(_text(4, y + 30, row["policy"], "start"))
        bins = row["distribution"]
        most = max(count for _, count in bins) or 1
        step = bins[1][0] - bins[0][0] if len(bins) > 1 else high - low
        scale = (WIDTH - LEFT - 12) / (high - low + step)
        for edge, count in bins:
            tall = 32 * count / most
            bars.append(
                Markup(
                    '<rect class="spot" x="{:.1f}" y="{:.1f}" width="{:.1f}"'
                    ' height="{:.1f}"/>'
                ).format(
                    LEFT + (edge - low) * scale,
                    y + 32 - tall,
                    max(1.0, step * scale - 0.5),
                    tall,
                )
            )
    height = 40 * len(shown) + 22
    bars.append(_text(LEFT, height - 4, f"{number(low)} {unit}", "start"))
    bars.append(_text(WIDTH - 4, height - 4, number(high), "end"))
    label = f"How the {unit} of each run spread, for {len(shown)} policies"
    return draw_svg(bars, height=height, label=label)


def _text(x: float, y: float, text: str, anchor: str) -> Markup:
    return Markup(
        '<text class="axis" x="{:.1f}" y="{}" text-anchor="{}">{}</text>'
    ).format(x, y, anchor, text)


def _asset(name: str) -> str:
    folder = resources.files(__package__).joinpath("templates")
    return folder.joinpath(name).read_text(encoding="utf-8")


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(number=number, duration=duration)
    environment.globals.update(capacity=capacity, spent=spent)
    return environment.from_string(_asset("cost.html"))
