"""How the value of an option is spelled: from its text to what `Settings` holds.

Each raises ValueError where the text means nothing.
"""

from __future__ import annotations

import shlex
from pathlib import Path

# How long a slow rank waits at each step, if nothing is said.
SLOW_RANK_S = 0.2


def seconds(text: str) -> float:
    """Read seconds: `90`, `90s`, `5min` or `2h`."""
    for unit, factor in (("min", 60.0), ("h", 3600.0), ("s", 1.0), ("", 1.0)):
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * factor
    raise ValueError(text)


def grace(text: str) -> tuple[float | None, int | None]:
    """Read a grace window: (seconds, None), or (None, steps) for `3steps`."""
    for unit in ("steps", "step"):
        if text.endswith(unit):
            return None, int(text.removesuffix(unit))
    return seconds(text), None


def numbers(text: str) -> tuple[int, ...]:
    """Read whole numbers joined by commas."""
    return tuple(int(part) for part in text.split(","))


def tolerance(text: str) -> tuple[float, float]:
    """Read `ABS` or `ABS,REL`."""
    absolute, _, relative = text.partition(",")
    return float(absolute), float(relative or 0.0)


def names(text: str) -> tuple[str, ...]:
    """Read names joined by commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def file_name(text: str) -> Path:
    """Read the name of a file or folder, which is no option that went astray."""
    return Path(_named(text))


def place(text: str) -> str:
    """Read the name of a folder, or a URL."""
    return _named(text)


def _named(text: str) -> str:
    if not text.strip() or text.startswith("-") or "\0" in text:
        raise ValueError(text)
    return text


def words(text: str) -> tuple[str, ...]:
    """Read a command line as a shell splits it."""
    found = tuple(shlex.split(text))
    if not found or not found[0].strip() or found[0].startswith("-"):
        raise ValueError(text)
    return found


def part_of(text: str) -> tuple[int, int]:
    """Read `I/N`."""
    first, _, second = text.partition("/")
    return int(first), int(second)


def slow_rank(text: str) -> tuple[int, float]:
    """Read `R` or `R:SECONDS`: a rank, and how long it waits at each step."""
    rank, _, wait = text.partition(":")
    found = int(rank), seconds(wait) if wait else SLOW_RANK_S
    if found[0] < 0 or not 0 < found[1] < float("inf"):
        raise ValueError(text)
    return found


def signal_name(text: str) -> str:
    """Read a signal, with or without `SIG`, in any case."""
    return text.upper().removeprefix("SIG")
