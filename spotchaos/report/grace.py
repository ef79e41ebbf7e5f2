"""The grace used against the window: how long each attempt had after its notice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from spotchaos.report.svg import WIDTH, draw_svg, is_number

MOST_ROWS = 40


@dataclass(frozen=True, slots=True)
class Window:
    """One attempt after its notice or signal; seconds are real ones."""

    trial: int
    attempt: int
    what: str  # "notice" or "signal"
    length_s: float  # to the reclaim, or to the program's own end
    used_s: float | None  # until the last save was whole; None: none was
    reclaimed: bool
    story: str | None = None  # of a provider; None: a signal that the user named
    scale: float = 1.0  # cloud seconds per real second


def windows(trials: Sequence[Mapping[str, Any]]) -> list[Window]:
    """Return every grace window of a report, in order."""
    found = []
    for trial in trials:
        played = {
            a["number"]: a["notice"]
            for a in trial.get("attempts", ())
            if a.get("notice")
        }
        moments = [m for m in trial.get("timeline", ()) if is_number(m.get("t_s"))]
        for number in dict.fromkeys(m.get("attempt", 1) for m in moments):
            own = [m for m in moments if m.get("attempt", 1) == number]
            told = next((m for m in own if m["what"] in ("notice", "signal")), None)
            if told is None:
                continue
            after = [m for m in own if m["t_s"] >= told["t_s"]]
            saved = [m["t_s"] for m in after if m["what"] == "save-end"]
            notice = played.get(number)
            length_s = after[-1]["t_s"] - told["t_s"]
            if notice is not None and (notice["grace_s"] or 0) > 0:
                length_s = notice["grace_s"] / notice["time_scale"]
            found.append(
                Window(
                    trial=trial["number"],
                    attempt=number,
                    what=told["what"],
                    length_s=length_s,
                    used_s=max(saved) - told["t_s"] if saved else None,
                    reclaimed=any(m["what"] == "reclaim" for m in after),
                    story=None if notice is None else str(notice["story"]),
                    scale=1.0 if notice is None else notice["time_scale"],
                )
            )
    return found


def draw(trials: Sequence[Mapping[str, Any]]) -> Markup:
    """Draw the windows as bars, each with the part of it that was used."""
    found = windows(trials)[:MOST_ROWS]
    if not found:
        return Markup()
    longest_s = max(max(w.length_s, w.used_s or 0.0) for w in found) or 1.0
    parts = [_row(w, y=24 * i + 6, longest_s=longest_s) for i, w in enumerate(found)]
    height = 24 * len(found) + 22
    parts.append(
        Markup(
            '<text class="axis" x="{}" y="{}" text-anchor="end">{:.2f} s</text>'
        ).format(WIDTH - 4, height - 6, longest_s)
    )
    saved = sum(window.used_s is not None for window in found)
    count = f"{len(found)} grace window{'s' if len(found) != 1 else ''}"
    label = f"{count}; in {saved} a save became whole"
    return draw_svg(parts, height=height, label=label)


def _row(window: Window, *, y: int, longest_s: float) -> Markup:
    scale = (WIDTH - 180) / longest_s
    said = (
        "no save became whole"
        if window.used_s is None
        else f"saved {window.used_s:.2f} s after the {window.what}"
    )
    end = "reclaimed" if window.reclaimed else "ended by itself"
    used_s = window.length_s if window.used_s is None else window.used_s
    cloud = ""
    if window.story is not None:
        cloud = f" ({window.story}: {window.length_s * window.scale:.0f} cloud seconds)"
    return (
        Markup(
            '<g><text class="axis" x="4" y="{}">trial {}, {}</text>'
            '<rect class="window" x="150" y="{}" width="{:.1f}" height="16"/>'
        ).format(
            y + 13,
            window.trial,
            window.story or f"attempt {window.attempt}",
            y,
            window.length_s * scale,
        )
        + Markup(
            '<rect class="used{}" x="150" y="{}" width="{:.1f}" height="8"/>'
        ).format(
            " late" if window.used_s is None else "", y + 4, max(1.0, used_s * scale)
        )
        + Markup("<title>{} of {:.2f} s{}: {}, {}</title></g>").format(
            window.what, window.length_s, cloud, said, end
        )
    )
