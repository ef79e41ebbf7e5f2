"""Replay tokens: everything that one trial needs to be carried out again, in one word.

A token is `sc1:` and the URL-safe base64 of canonical JSON: the plan, and each setting
that changes what happens and is not at its default. It names no command and no path.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Annotated, Any

from msgspec import Meta, Struct

from spotchaos.config.plan import Plan
from spotchaos.config.settings import Settings
from spotchaos.config.untrusted import check, parse_json
from spotchaos.errors import UsageError, shortened

PREFIX = "sc1:"
# Of characters: a plan of a hundred interruptions takes a tenth of it.
LONGEST = 1 << 16

_Whole = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_Seconds = Annotated[float, Meta(ge=0, le=1e12)]
_Words = Annotated[list[str], Meta(max_length=1000)]


class _Content(Struct):
    """The types of what a token may hold; Settings bounds the values."""

    plan: str
    seed: _Whole = 0
    signal: str = ""
    to: str = ""
    grace_s: _Seconds | None = None
    grace_steps: _Whole | None = None
    then: _Words = []
    stagger_s: _Seconds | None = None
    slow_rank: tuple[_Whole, _Seconds] | None = None
    requeue: _Whole = 0
    requeue_delay_s: _Seconds | None = None
    notice: str | None = None
    time_scale: _Seconds | None = None
    lose: str = ""
    move: bool = False
    keep_existing: bool = False
    fault: _Words = []
    tmp_elsewhere: bool = False
    netns: bool = False
    ranks: _Whole | None = None
    threads: _Whole = 1
    seed_program: _Whole | None = None
    deterministic: bool = False
    promise: str = ""
    max_lost_steps: _Whole | None = None
    accept_refusal: bool = False
    exit_code: Annotated[list[_Whole], Meta(max_length=1000)] | None = None
    halt: str = ""


# Settings that change what a trial does; the others change how it is reported or bounded.
CARRIED: tuple[str, ...] = (
    "seed",
    "signal",
    "to",
    "grace_s",
    "grace_steps",
    "then",
    "stagger_s",
    "slow_rank",
    "requeue",
    "requeue_delay_s",
    "notice",
    "time_scale",
    "lose",
    "move",
    "keep_existing",
    "fault",
    "tmp_elsewhere",
    "netns",
    "ranks",
    "threads",
    "seed_program",
    "deterministic",
    "promise",
    "max_lost_steps",
    "accept_refusal",
    "exit_code",
    "halt",
)
_DEFAULTS = {f.name: f.default for f in fields(Settings)}


def make_token(plan: Plan | str, settings: Settings) -> str:
    """Return the token of one trial: `plan` as it landed, under `settings`."""
    content: dict[str, Any] = {"plan": str(plan)}
    for name in CARRIED:
        value = getattr(settings, name)
        if value != _DEFAULTS[name]:
            content[name] = list(value) if isinstance(value, tuple) else value
    return encode(content)


def encode(content: Mapping[str, Any]) -> str:
    """Return the token of a JSON object; equal objects give equal tokens."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    packed = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
    return PREFIX + packed


def decode(token: str) -> dict[str, Any]:
    """Return what a token holds.

    Raises:
        UsageError: it is damaged, or of a newer release.
    """
    token = token.strip()
    if len(token) > LONGEST:
        raise UsageError(
            f"the replay token {_short(token)} is damaged: longer than {LONGEST}"
            " characters",
            hint=_COPY,
        )
    if not token.startswith(PREFIX):
        if token.startswith("sc") and ":" in token[:6]:
            raise UsageError(
                f"the replay token {_short(token)} is of a newer release",
                hint="install a newer spotchaos",
            )
        raise UsageError(
            f"{_short(token)} is no replay token",
            hint=f"copy the whole word that begins with {PREFIX}",
        )
    body = token.removeprefix(PREFIX)
    try:
        raw = base64.b64decode(
            body + "=" * (-len(body) % 4), altchars=b"-_", validate=True
        )
    except (binascii.Error, ValueError):
        raise UsageError(
            f"the replay token {_short(token)} is damaged: it is no base64", hint=_COPY
        ) from None
    what = f"the replay token {_short(token)}"
    content: Any = parse_json(raw, what=what, error=UsageError, hint=_COPY)
    if isinstance(content, dict):
        for name in content:
            if name != "plan" and name not in CARRIED:
                raise UsageError(
                    f"{what} names {shortened(repr(name), 60)}, which this release"
                    " does not know",
                    hint="install the release that printed it",
                )
    check(content, _Content, what=what, error=UsageError, hint=_COPY)
    found: dict[str, Any] = content
    return found


def settings_of(token: str, base: Settings) -> Settings:
    """Return `base` changed to carry out the token's trial, and only that one.

    Raises:
        UsageError: the token is damaged, or names what this release does not know.
    """
    content = decode(token)
    changed: dict[str, Any] = {name: _DEFAULTS[name] for name in CARRIED}
    for name, value in content.items():
        if name != "plan":
            changed[name] = tuple(value) if isinstance(value, list) else value
    return replace(base, kill_at=(content["plan"],), trials=1, **changed)


_COPY = "copy the whole word, or give the report file and --trial N"


def _short(token: str) -> str:
    printable = "".join(c if c.isprintable() else "?" for c in token)
    return repr(printable if len(printable) <= 40 else printable[:37] + "...")
