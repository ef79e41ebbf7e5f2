"""What differs between any two runs and is no result: time stamps, durations, names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

_STAMP = re.compile(
    r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?)?(?:Z|[+-]\d\d:?\d\d)?"
)
_CLOCK = re.compile(r"\b\d{1,2}:\d\d:\d\d(?:[.,]\d+)?\b")
_UUID = re.compile(r"\b[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}\b", re.IGNORECASE)
_SECONDS = re.compile(r"\b\d+(?:\.\d+)? ?(?:s|ms|us|sec|seconds|it/s|MB/s)\b")
_IN_TEXT = (_STAMP, _CLOCK, _UUID, _SECONDS)

_TIMES = re.compile(
    r"time|date|(^|[_.])(at|ts|when|created|updated|finished|started)$", re.IGNORECASE
)
_DURATIONS = re.compile(
    r"dur|elapsed|latency|took|wall|cpu|sec|speed|through?put|per_s|(^|[_.])(s|ms|us|ns)$",
    re.IGNORECASE,
)
_PLACES = re.compile(
    r"host|node|machine|worker|pid|process|instance|thread", re.IGNORECASE
)
# What a table says of the work and not of its result: a resumed run tries some of it
# again, in another process.
_BOOKKEEPING = re.compile(
    r"resum|restart|^(attempts?|tries|retries|retry_count|runs?_count"
    r"|(lease|lock|claim)(ed|s)?([_.].*)?|owner|worker|worker_id|pid|host|hostname"
    r"|(updated|started|finished|created|claimed|done)_at)$",
    re.IGNORECASE,
)
_STAMP_S = (1e9, 4e9)


def is_bookkeeping(name: str) -> bool:
    """Tell whether a field of this name says who did the work and how often it began."""
    return bool(_BOOKKEEPING.search(name.rpartition(".")[2]))


def reason_to_mask(name: str, first: Any, second: Any) -> str | None:
    """Say what a field is whose value differs between two runs; None: a result.

    Args:
        name: of the field.
        first: its value in one run.
        second: ... in the other.
    """
    both = (first, second)
    if all(isinstance(v, str) for v in both):
        if all(_UUID.fullmatch(v) for v in both):
            return "a uuid"
        if all(_STAMP.fullmatch(v) or _CLOCK.fullmatch(v) for v in both):
            return "a time stamp"
        return "the name of a machine or process" if _PLACES.search(name) else None
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in both):
        return None
    if _DURATIONS.search(name):
        return "a duration"
    if _TIMES.search(name) or all(_is_stamp(v) for v in both):
        return "a time stamp"
    return "the name of a machine or process" if _PLACES.search(name) else None


def _is_stamp(value: float) -> bool:
    return any(_STAMP_S[0] < value / unit < _STAMP_S[1] for unit in (1, 1e3, 1e6, 1e9))


def without_times(line: str) -> str:
    """Return a line of text without its time stamps, durations and uuids."""
    for pattern in _IN_TEXT:
        line = pattern.sub("~", line)
    return line


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How records are compared.

    Attributes:
        ignored: fields that are not compared, of whatever file.
        masked: of a group of files, the fields that are not compared, and why.
        text: groups of text whose times are not compared.
        keys: of a group, the field that tells its records apart.
        key: the same, of every group, as the user named it.
        tolerance: of floats, absolute and relative.
        unordered: lines of text may come in any order, of whatever file.
        loose: groups whose lines may.
    """

    ignored: frozenset[str] = frozenset()
    masked: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    text: frozenset[str] = frozenset()
    keys: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    tolerance: tuple[float, float] = (0.0, 0.0)
    unordered: bool = False
    loose: frozenset[str] = frozenset()

    def hidden(self, group: str) -> frozenset[str]:
        """Return the fields of a group that are not compared."""
        return self.ignored | frozenset(self.masked.get(group, ()))

    def key_of(self, group: str) -> str | None:
        return self.key or self.keys.get(group)

    def masking(self, group: str, fields: Mapping[str, str]) -> Rules:
        """Return the rules with more masked fields of a group."""
        known = {**self.masked.get(group, {}), **fields}
        return replace(self, masked={**self.masked, group: known})

    def within(self, wanted: Any, got: Any) -> bool:
        """Tell whether two values are equal, or floats within the tolerance."""
        if wanted == got:
            return True
        numbers = all(
            isinstance(v, int | float) and not isinstance(v, bool)
            for v in (wanted, got)
        )
        if isinstance(wanted, list) and isinstance(got, list):
            return len(wanted) == len(got) and all(map(self.within, wanted, got))
        if not numbers:
            return False
        absolute, relative = self.tolerance
        if wanted != wanted and got != got:
            return True  # both are NaN
        bound: float = absolute + relative * abs(wanted)
        return bool(abs(wanted - got) <= bound)
