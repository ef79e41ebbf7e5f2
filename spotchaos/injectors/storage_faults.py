"""What an object store can do to a program without losing a machine, and to which request."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Self

from spotchaos.errors import UsageError, closest
from spotchaos.providers.service_faults import ENDLESS, read_count

# How long a slow answer takes, in real seconds.
SLOW_S = 5.0
# How long a listing does not show what was just written, in real seconds.
LAG_S = 5.0


class Kind(StrEnum):
    """What an operation does, as far as faults tell operations apart."""

    READ = "read"  # the bytes of an object come back
    WRITE = "write"  # bytes are sent: a whole object, or a part of one
    COMMIT = "commit"  # an upload in parts becomes an object
    OBJECT = "object"  # anything else about one object: head, delete, begin an upload
    LIST = "list"
    OTHER = "other"  # about buckets and the service


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One request to a store, in the store's own words."""

    name: str
    kind: Kind
    bucket: str = ""
    key: str = ""
    part: str = ""  # of an upload in parts: its number


# These make an object in one request, whose answer can be lost as well.
_WHOLE = frozenset({"PutObject", "InsertObject"})
_ON_OBJECTS = frozenset({Kind.READ, Kind.WRITE, Kind.COMMIT, Kind.OBJECT})


@dataclass(frozen=True, slots=True)
class _Row:
    summary: str
    injects: frozenset[Kind]
    names: frozenset[str] = frozenset()  # operations of other kinds that it strikes


_ROWS: Final = {
    "503": _Row("the store asks to slow down", _ON_OBJECTS),
    "500": _Row("the store fails", _ON_OBJECTS),
    "403": _Row("access is denied", _ON_OBJECTS),
    "expired-token": _Row("the credentials have expired", _ON_OBJECTS),
    "clock-skew": _Row("the program's clock is said to be wrong", _ON_OBJECTS),
    "cut": _Row(
        "the connection is cut in the middle of the bytes",
        frozenset({Kind.READ, Kind.WRITE}),
    ),
    "truncated-get": _Row(
        "half of the bytes come, under the full length", frozenset({Kind.READ})
    ),
    "slow": _Row(f"the answer takes {SLOW_S:g} s", _ON_OBJECTS),
    "lost-complete": _Row(
        "an upload is completed, and its answer is lost",
        frozenset({Kind.COMMIT}),
        _WHOLE,
    ),
    "error-body": _Row(
        "completing an upload in parts answers 200 with an error inside; nothing is there",
        frozenset({Kind.COMMIT}),
    ),
    "lagging-list": _Row(
        f"a listing does not show what was written in the last {LAG_S:g} s",
        frozenset({Kind.LIST}),
    ),
}
STORAGE_FAULTS: Final = {
    f"{store}-{name}": row.summary
    for store in ("s3", "gs")
    for name, row in _ROWS.items()
}


@dataclass(frozen=True, slots=True)
class StorageFault:
    """A fault of a store, on the operations numbered `first` to `last` that it can strike."""

    store: str  # "s3" or "gs"
    name: str  # without the store
    first: int = 1
    last: int = 1
    # Only on the last save: it must be resolved to a number before it is armed.
    is_on_last_save: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `NAME[:N]`: the Nth operation that it can strike; `N+` from then on; `last`.

        Raises:
            UsageError: the name or the count is unknown; the hint names the nearest.
        """
        full_name, colon, count = text.partition(":")
        if full_name not in STORAGE_FAULTS:
            raise UsageError(
                f"unknown fault {full_name!r} of an object store",
                hint=closest(full_name, STORAGE_FAULTS)
                or f"faults are {', '.join(STORAGE_FAULTS)}",
            )
        store, _, name = full_name.partition("-")
        if count == "last":
            return cls(store, name, is_on_last_save=True)
        first, last = read_count(text, count) if colon else (1, 1)
        return cls(store, name, first, last)

    def on_last_save(self, *, done: int) -> StorageFault:
        """Return the fault that `:last` means when the last save begins.

        Args:
            done: how many operations that it can strike came before that save.
        """
        return replace(self, first=done + 1, last=ENDLESS, is_on_last_save=False)

    def can_inject(self, operation: Operation) -> bool:
        """Tell whether `operation` is one of those that this fault counts."""
        row = _ROWS[self.name]
        return operation.kind in row.injects or operation.name in row.names

    def injects(self, number: int) -> bool:
        """Tell whether it strikes the `number`th operation that it can strike, from 1."""
        return not self.is_on_last_save and self.first <= number <= self.last

    def __str__(self) -> str:
        if self.is_on_last_save:
            return f"{self.store}-{self.name}:last"
        more = "+" if self.last >= ENDLESS else ""
        return f"{self.store}-{self.name}:{self.first}{more}"
