"""Secrets, local paths and control characters kept out of what is shown or sent."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

MASK = "[redacted]"

# Tokens of services that training programs talk to, by their public prefixes, and what
# follows a word that announces a secret.
_TOKENS = re.compile(
    r"""
    \b(?:hf_|ghp_|gho_|ghu_|ghs_|ghr_|github_pat_|glpat-|npm_|pypi-|dckr_pat_)
        [A-Za-z0-9_\-]{16,}
    | \bsk-(?:[A-Za-z0-9]+-)?[A-Za-z0-9_\-]{20,}
    | \bxox[abprs]-[A-Za-z0-9\-]{10,}
    | \b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b
    | \bAIza[A-Za-z0-9_\-]{35}
    | \beyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]*
    | -----BEGIN[ ][A-Z ]*PRIVATE[ ]KEY-----[\s\S]*?(?:-----END[ A-Z]*-----|\Z)
    """,
    re.VERBOSE,
)
_ANNOUNCED = re.compile(
    r"(?i)((?:password|passwd|secret|token|api[_-]?key|access[_-]?key)"
    r"[\"']?\s*[=:]\s*[\"']?|bearer\s+|://[^\s/:@]+:)([^\s\"'&@,;]{4,})"
)
_SECRET_NAME = re.compile(r"(?i)secret|token|passw|api_?key|access_?key|credential")

# Everything below the space but newline and tab, DEL, the C1 block, and the marks that
# reorder text: they could rewrite a terminal or hide what a line says.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff"
    "\ud800-\udfff\ufffe\uffff]"
)
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)?")


def clean(text: str) -> str:
    """Return `text` without terminal escapes, control and reordering characters."""
    without = _ESCAPE.sub("", text.replace("\r\n", "\n"))
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", without)


def one_line(text: str) -> str:
    """Return `text` cleaned, on a single line."""
    return " ".join(clean(text).split())


def cleaned(value: Any, change: Callable[[str], str] = clean) -> Any:
    """Return a document with every string cleaned, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {
            change(str(key)): cleaned(inner, change) for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [cleaned(inner, change) for inner in value]
    return value


def mask_text(text: str) -> str:
    """Return `text` with tokens and announced passwords masked."""
    text = _TOKENS.sub(MASK, text)
    return _ANNOUNCED.sub(lambda found: found[1] + MASK, text)


def mask_secrets(document: Any) -> Any:
    """Mask tokens in every string of a document; replay tokens are left alone."""
    return _walk(document, mask_text)


def redact(document: Any, environ: Mapping[str, str] | None = None) -> Any:
    """Mask secrets, their values in the environment, local paths and the host's name.

    Args:
        document: anything made of dicts, lists and strings.
        environ: where secrets and HOME are looked up; None: this process's own.
    """
    swaps = _swaps(os.environ if environ is None else environ)

    def redact_text(text: str) -> str:
        for found, instead in swaps:
            text = text.replace(found, instead)
        return mask_text(text)

    return _walk(document, redact_text)


def _swaps(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    swaps = [
        (value, MASK)
        for name, value in environ.items()
        if _SECRET_NAME.search(name) and len(value) >= 6
    ]
    folder = str(Path.cwd())
    if len(folder) > 1:
        swaps.append((folder, "."))
    home = environ.get("HOME", "")
    if len(home) > 1:
        swaps.append((home, "~"))
    host = socket.gethostname()
    if len(host) > 3 and host != "localhost":
        swaps.append((host, "[host]"))
    # The longest first: a home below another path must not leave half of it behind.
    return sorted(swaps, key=lambda swap: -len(swap[0]))


def _walk(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {
            key: inner if key == "replay" else _walk(inner, change)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_walk(inner, change) for inner in value]
    return value
