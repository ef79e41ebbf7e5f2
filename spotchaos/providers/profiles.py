"""What each provider documents about the loss of a machine, read from `profiles.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib import resources
from typing import Literal, TypeAlias

from spotchaos.errors import UsageError, closest

Mechanism: TypeAlias = Literal[
    "http-poll",
    "http-hanging-get",
    "http-poll-with-acknowledge",
    "signal",
    "file",
    "event",
    "none",
]

Status: TypeAlias = Literal["verified", "second-hand", "not-verified"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One provider, as documented; every number has its source beside it."""

    name: str
    title: str
    # "documented", "none" (no notice is documented), "site" (set by whoever runs it), or
    # "unverified" (said to exist, length unknown).
    notice: Literal["documented", "none", "site", "unverified"]
    notice_s: float | None = None
    mechanism: Mechanism
    follows: str
    # Granularity and smallest amount of the bill, in seconds; None: nothing was found.
    billing_s: float | None = None
    billing_minimum_s: float | None = None
    billing_source: str = ""
    billing_status: Status = "not-verified"
    # A spot machine that the provider takes back within it costs nothing, in seconds.
    free_first_s: float | None = None
    free_source: str = ""
    source: str
    read: date
    status: Status

    @property
    def says(self) -> str:
        """What is said of its notice, in one phrase."""
        if self.notice_s is not None:
            return f"{self.notice_s:g} s"
        return {"none": "none documented", "site": "set by the site"}.get(
            self.notice, "not verified"
        )


@cache
def profiles() -> Mapping[str, Profile]:
    """Return every profile by name, in the order of the file."""
    text = resources.files(__package__).joinpath("profiles.toml").read_text("utf-8")
    return {
        name: Profile(name=name, **row) for name, row in tomllib.loads(text).items()
    }


def profile(name: str) -> Profile:
    """Return one provider's profile.

    Raises:
        UsageError: there is no such provider; the hint names the nearest.
    """
    known = profiles()
    if name not in known:
        raise UsageError(
            f"unknown provider {name!r}",
            hint=closest(name, known) or f"providers are {', '.join(known)}",
        )
    return known[name]
