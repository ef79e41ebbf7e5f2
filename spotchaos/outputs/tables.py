"""What lies in an output file, as records: read by content, never by its name alone.

A file is one or more tables (a SQLite file has several, an archive one per member). A
table yields its rows one by one, so that a file of any size is read in bounded memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

Fields = Mapping[str, Any]
# Where a record stands if its content does not tell (a row of an array, a tensor's name),
# and its bytes: equal bytes are equal records.
Row = tuple[str | None, bytes]


class TornError(Exception):
    """A file ends before what it says it holds; the message names what is missing."""


@dataclass(frozen=True, slots=True)
class Table:
    """The records of one file, or of one part of it.

    Attributes:
        part: of the file; empty if it is the whole.
        kind: "json" (one a line), "document" (of JSON), "csv", "lines", "rows" (of a
            database or columns), "array", "tensors", "pickle", "bytes", or "opaque": a
            pickle that nobody can read, whose bytes tell nothing.
        rows: yields all rows, anew at each call; raises `TornError` where they break off.
        decode: returns the fields of a row; None if the row is not whole.
        is_divisible: the records may as well lie in several files.
    """

    part: str
    kind: str
    rows: Callable[[], Iterator[Row]]
    decode: Callable[[bytes], Fields | None]
    is_divisible: bool = False


def as_json(raw: bytes) -> Fields | None:
    """Return the fields of a line of JSON; None if it is none."""
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return flat(value) if isinstance(value, dict) else {"value": value}


def as_text(raw: bytes) -> Fields:
    """Return a line of text as its only field."""
    return {"line": raw.decode("utf-8", "replace")}


def as_bytes(raw: bytes) -> Fields:
    """Return what stands for bytes that nobody can read."""
    return {"bytes": raw.hex()}


def flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested fields under joined names: `a.b`."""
    found: dict[str, Any] = {}
    for name, inner in value.items():
        if isinstance(inner, dict):
            found |= flat(inner, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = inner
    return found


def packed(fields: Mapping[str, Any]) -> bytes:
    """Return fields as bytes that are equal where the fields are."""
    return msgspec.json.encode(fields, enc_hook=repr, order="deterministic")


_KEYS = re.compile(
    r"^(id|key|index|idx|name|path|file(name)?|uid|uri|url|number|row)$|[_.](id|key|idx)$",
    re.IGNORECASE,
)


def is_key_name(name: str) -> bool:
    """Tell whether a field of this name may be what tells records apart."""
    return bool(_KEYS.search(name))
