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
from typing import Any

from spotchaos.errors import UsageError
from spotchaos.plan import Plan
from spotchaos.settings import Settings

PREFIX = "sc1:"

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
        content = json.loads(raw)
    except (binascii.Error, ValueError):
        raise _damaged(token) from None
    if not isinstance(content, dict) or not isinstance(content.get("plan"), str):
        raise _damaged(token)
    return content


def settings_of(token: str, base: Settings) -> Settings:
    """Return `base` changed to carry out the token's trial, and only that one.

    Raises:
        UsageError: the token is damaged, or names what this release does not know.
    """
    content = decode(token)
    changed: dict[str, Any] = {name: _DEFAULTS[name] for name in CARRIED}
    for name, value in content.items():
        if name == "plan":
            continue
        if name not in CARRIED:
            raise UsageError(
                f"the replay token {_short(token)} names {name!r}, which this release"
                " does not know",
                hint="install the release that printed it",
            )
        changed[name] = tuple(value) if isinstance(value, list) else value
    try:
        return replace(base, kill_at=(content["plan"],), trials=1, **changed)
    except TypeError:
        raise _damaged(token) from None


def _damaged(token: str) -> UsageError:
    return UsageError(
        f"the replay token {_short(token)} is damaged",
        hint="copy the whole word, or give the report file and --trial N",
    )


def _short(token: str) -> str:
    printable = "".join(c if c.isprintable() else "?" for c in token)
    return repr(printable if len(printable) <= 40 else printable[:37] + "...")
