"""A script for `spotchaos imds`: its phases as they are spelled, in options or in a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotchaos.config.spellings import seconds
from spotchaos.config.untrusted import read_toml
from spotchaos.errors import UsageError, closest
from spotchaos.providers.scripts import Cue

_KEYS = ("summary", "provider", "phases", "time-scale")
_WORDS = ("for", "grace")
_EXAMPLE = "write '20s aws', '30s withdraw', '80s 503 for 10s' or '20s aws grace 60s'"


@dataclass(frozen=True, slots=True)
class Script:
    """What a file says; None: nothing."""

    cues: tuple[Cue, ...]
    provider: str | None = None
    time_scale: float | None = None


def cue(text: str) -> Cue:
    """Read one phase: `TIME WHAT [for TIME] [grace TIME]`.

    Raises:
        UsageError: it is spelled otherwise.
    """
    at, *rest = text.split() or [""]
    if not rest or len(rest) % 2 == 0:
        raise UsageError(
            f"the phase {text!r} does not say when and what", hint=_EXAMPLE
        )
    what, *more = rest
    told: dict[str, float] = {}
    for word, value in zip(more[::2], more[1::2], strict=True):
        if word not in _WORDS or word in told:
            raise UsageError(
                f"{word!r} says nothing in the phase {text!r}",
                hint=closest(word, _WORDS) or _EXAMPLE,
            )
        told[word] = _seconds(value, text)
    return Cue(
        text=text,
        at_s=_seconds(at, text),
        what=what,
        for_s=told.get("for"),
        grace_s=told.get("grace"),
    )


def script(path: Path) -> Script:
    """Read a script from a TOML file with the keys `provider`, `phases`, `time-scale`.

    Raises:
        UsageError: the file cannot be read, or says something that is not known.
    """
    _, told = read_toml(path, error=UsageError)
    for key in told:
        if key not in _KEYS:
            raise UsageError(
                f"unknown key {key!r} in {path}",
                hint=closest(key, _KEYS) or f"keys are {', '.join(_KEYS)}",
            )
    phases = told.get("phases")
    if not isinstance(phases, list) or not phases:
        raise UsageError(
            f"{path} has no phases", hint='phases = ["20s aws", "30s withdraw"]'
        )
    for phase in phases:
        _demand(path, "phases", phase, lambda one: isinstance(one, str), "texts")
    provider, scale = told.get("provider"), told.get("time-scale")
    if provider is not None:
        _demand(path, "provider", provider, lambda one: isinstance(one, str), "a text")
    if scale is not None:
        _demand(path, "time-scale", scale, _is_number, "a number")
    return Script(tuple(map(cue, phases)), provider, scale)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _demand(
    path: Path, key: str, value: Any, fits: Callable[[Any], bool], what: str
) -> None:
    if not fits(value):
        raise UsageError(f"{key!r} in {path} is {value!r}", hint=f"it wants {what}")


def _seconds(value: str, text: str) -> float:
    try:
        return seconds(value)
    except ValueError:
        raise UsageError(
            f"{value!r} in the phase {text!r} is no number of seconds",
            hint="write 10, 10s or 2min",
        ) from None
