"""Drawings of a report as inline SVG: timelines, losses, and where the kills landed.

Everything that comes from a report is a number here, or is escaped; each drawing says
in words what it shows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

WIDTH = 720
MOST_SERIES = 8
MOST_SAVES = 40

_MARKS = {
    "start": "start",
    "first-step": "first step",
    "load": "load",
    "notice": "notice",
    "fault": "fault",
    "signal": "signal",
    "reclaim": "reclaim",
    "finish": "finish",
    "exit": "exit",
    "failure": "failure",
    "hang": "hang",
}

Points = Sequence[Sequence[float]]


def timeline(trial: Mapping[str, Any]) -> Markup:
    """Draw the attempts of a trial as bars over time, with saves and what ended them."""
    moments = [m for m in trial.get("timeline", ()) if is_number(m.get("t_s"))]
    if not moments:
        return Markup()
    end_s = max(m["t_s"] for m in moments) or 1.0
    attempts = sorted({int(m.get("attempt", 1)) for m in moments})
    height = 26 * len(attempts) + 24
    parts = []
    for row, number in enumerate(attempts):
        own = [m for m in moments if m.get("attempt", 1) == number]
        parts += _attempt_row(number, own, y=26 * row + 6, end_s=end_s)
    parts.append(
        Markup('<text class="axis" x="{}" y="{}" text-anchor="end">{} s</text>').format(
            WIDTH - 4, height - 6, f"{end_s:.2f}"
        )
    )
    label = f"Timeline of trial {trial['number']}: {len(attempts)} attempts"
    return draw_svg(parts, height=height, label=label)


def _attempt_row(
    number: int, moments: list[Mapping[str, Any]], *, y: int, end_s: float
) -> list[Markup]:
    def x(t_s: float) -> float:
        return 76 + (WIDTH - 100) * t_s / end_s

    begin, end = moments[0]["t_s"], moments[-1]["t_s"]
    parts = [
        Markup('<text class="axis" x="4" y="{}">attempt {}</text>').format(
            y + 13, number
        ),
        Markup(
            '<rect class="bar" x="{:.1f}" y="{}" width="{:.1f}" height="18"/>'
        ).format(x(begin), y, max(2.0, x(end) - x(begin))),
    ]
    saves = [m for m in moments if m["what"] in ("save-begin", "save-end")]
    parts += [
        Markup('<path class="{}" d="M{:.1f} {}v18"/>').format(
            moment["what"], x(moment["t_s"]), y
        )
        for moment in saves[-2 * MOST_SAVES :]
    ]
    for moment in moments:
        if moment["what"] in ("save-begin", "save-end"):
            continue
        name = _MARKS.get(moment["what"], moment["what"])
        step = "" if moment.get("step") is None else f", step {moment['step']}"
        parts.append(
            Markup('<g class="m {0}"><circle cx="{1:.1f}" cy="{2}" r="5"/>').format(
                moment["what"], x(moment["t_s"]), y + 9
            )
            + Markup("<title>{} at {:.2f} s{}</title></g>").format(
                name, moment["t_s"], step
            )
        )
    return parts


def losses(series: Mapping[str, Points]) -> Markup:
    """Draw the loss of the baseline and of resumed attempts over the baseline's steps."""
    shown = _shown(series)
    if not shown:
        return Markup()
    return _plot(
        shown,
        label=f"Loss over steps: the baseline and {len(shown) - 1} resumed attempts",
        unit="loss",
    )


def differences(series: Mapping[str, Points]) -> Markup:
    """Draw how far the losses of resumed attempts are from the baseline's (log scale)."""
    baseline = {p[0]: p[1] for p in series.get("baseline", ()) if _is_point(p)}
    curves = {}
    for name, points in _shown(series).items():
        if name == "baseline":
            continue
        apart = [
            [p[0], math.log10(max(abs(p[1] - baseline[p[0]]), 1e-9))]
            for p in points
            if p[0] in baseline
        ]
        if any(p[1] > -9 for p in apart):
            curves[name] = apart
    if not curves:
        return Markup()
    return _plot(
        curves,
        label=f"Difference of loss from the baseline, {len(curves)} attempts, as a"
        " power of ten",
        unit="10^",
    )


def weights_apart(trials: Sequence[Mapping[str, Any]]) -> Markup:
    """Draw how far the weights of resumed attempts lie from the baseline's, in bits.

    The distance is the largest in units in the last place, shown as its logarithm to
    the base of 2: so many of the last bits are wrong.
    """
    curves: dict[str, list[list[float]]] = {}
    for trial in trials:
        for attempt in trial.get("attempts", ()):
            points = [
                [p["step"], math.log2(1 + p["max_ulp"])]
                for p in (attempt.get("divergence") or {}).get("curve") or ()
                if is_number(p.get("max_ulp"))
            ]
            if points and len(curves) < MOST_SERIES:
                curves[f"{trial['number']}.{attempt['number']}"] = points
    if not curves:
        return Markup()
    return _plot(
        curves,
        label="Largest distance of a weight from the baseline's in bits,"
        f" {len(curves)} attempts",
        unit="bits",
    )


def kill_strip(trials: Sequence[Mapping[str, Any]], steps: int) -> Markup:
    """Draw where in the run each interruption landed, coloured by its trial's verdict."""
    parts = [
        Markup('<rect class="bar" x="4" y="10" width="{}" height="12"/>').format(
            WIDTH - 8
        )
    ]
    count = 0
    for trial in trials:
        for moment in trial.get("timeline", ()):
            if moment.get("what") != "reclaim" or not is_number(moment.get("step")):
                continue
            count += 1
            x = 4 + (WIDTH - 8) * min(1.0, moment["step"] / max(1, steps))
            parts.append(
                Markup('<g class="kill {}"><path d="M{:.1f} 4v24"/>').format(
                    trial["verdict"], x
                )
                + Markup("<title>trial {}: step {}, {}</title></g>").format(
                    trial["number"], moment["step"], trial["verdict"]
                )
            )
    if not count:
        return Markup()
    label = f"{count} interruptions over the {steps} steps of the baseline"
    return draw_svg(parts, height=32, label=label)


def _shown(series: Mapping[str, Points]) -> dict[str, list[Sequence[float]]]:
    names = ["baseline", *(n for n in series if n != "baseline")][: MOST_SERIES + 1]
    found = {n: [p for p in series.get(n, ()) if _is_point(p)] for n in names}
    return {name: points for name, points in found.items() if points}


def _plot(curves: Mapping[str, Points], *, label: str, unit: str) -> Markup:
    every = [p for points in curves.values() for p in points]
    left, right = min(p[0] for p in every), max(p[0] for p in every)
    low, high = min(p[1] for p in every), max(p[1] for p in every)
    wide, tall = max(right - left, 1), (high - low) or 1.0
    height = 220

    def at(point: Sequence[float]) -> str:
        x = 56 + (WIDTH - 72) * (point[0] - left) / wide
        y = 12 + (height - 44) * (high - point[1]) / tall
        return f"{x:.1f},{y:.1f}"

    parts = [
        Markup('<path class="frame" d="M56 8V{0}H{1}"/>').format(
            height - 28, WIDTH - 12
        ),
        _axis(50, 18, f"{high:.3g}", "end"),
        _axis(50, height - 30, f"{low:.3g}", "end"),
        _axis(4, 18, unit, "start"),
        _axis(56, height - 12, f"step {left:g}", "start"),
        _axis(WIDTH - 12, height - 12, f"{right:g}", "end"),
    ]
    for index, (name, points) in enumerate(curves.items()):
        kind = "baseline" if name == "baseline" else f"c{index % MOST_SERIES}"
        parts.append(
            Markup('<polyline class="curve {}" points="{}">').format(
                kind, " ".join(at(p) for p in points)
            )
            + Markup("<title>{}</title></polyline>").format(curve_name(name))
        )
    return draw_svg(parts, height=height, label=label)


def curve_name(name: str) -> str:
    """Return "trial 3, attempt 2" for `3.2`."""
    trial, _, attempt = name.partition(".")
    return f"trial {trial}, attempt {attempt}" if attempt else name


def _axis(x: int, y: int, text: str, anchor: str) -> Markup:
    return Markup('<text class="axis" x="{}" y="{}" text-anchor="{}">{}</text>').format(
        x, y, anchor, text
    )


def draw_svg(parts: Sequence[Markup], *, height: int, label: str) -> Markup:
    """Return an SVG of the house's width, with a label that says what it shows."""
    head = Markup(
        '<div class="draw" tabindex="0" role="group" aria-label="Drawing"><svg viewBox="0 0 {} {}" role="img" aria-label="{}">'
    ).format(WIDTH, height, escape(label))
    return head + Markup("").join(parts) + Markup("</svg></div>")


def is_number(value: Any) -> bool:
    """Tell whether a value of a report can be drawn at all."""
    return isinstance(value, int | float) and math.isfinite(value)


def _is_point(point: Any) -> bool:
    return (
        isinstance(point, Sequence)
        and len(point) == 2
        and all(is_number(v) for v in point)
    )
