"""The records of one group of files against those of the uninterrupted run.

Records are counted by a digest of what they hold, so that memory is bounded by their
number and not by their size; only those that fit nothing are looked at one by one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import xxhash

from spotchaos.model import OutputDifference
from spotchaos.outputs.masks import Rules, is_bookkeeping, without_times
from spotchaos.outputs.tables import Fields, Table, TornError, packed

# Records that fit nothing and are looked at; what is beyond is only counted.
MOST_LEFT = 20_000
# Torn lines that are searched for what they are made of.
MOST_SEARCHED = 50
_VALUE_LETTERS = 60
# How two lines that were written in one go read: their own fields say nothing.
_UNKNOWN = object()

Place = str | None


@dataclass(frozen=True, slots=True)
class Sheet:
    """One table of a file."""

    path: str
    table: Table


@dataclass(slots=True)
class _Left:
    """A record that fits none on the other side."""

    path: str
    number: int  # in its file, from 1
    place: Place
    raw: bytes
    fields: Fields | None
    is_known: bool = False  # one of its content is there already
    is_last: bool = False  # in its file


@dataclass
class _Comparison:
    base: Sequence[Sheet]
    seen: Sequence[Sheet]
    rules: Rules
    group: str
    found: list[OutputDifference] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kind = self.base[0].table.kind if self.base else self.seen[0].table.kind
        self.decode = (self.base or self.seen)[0].table.decode
        self.hidden = self.rules.hidden(self.group)
        self.key = self.rules.key_of(self.group)
        self.normal = normal_of(self.rules, self.group, self.kind, self.decode)

    def run(self) -> list[OutputDifference]:
        counts, total = self._counted()
        left_seen, more_seen = self._of_seen(counts)
        left_base, more_base = self._of_base(counts)
        self._match(left_seen, left_base)
        for kind, count in (("foreign", more_seen), ("missing", more_base)):
            if count:
                paths = self.seen if kind == "foreign" else self.base
                self.found.append(OutputDifference(kind, count, paths[0].path))
        if not self.found and self._is_ordered() and total:
            self._compare_order()
        return self.found

    # --- counting ---

    def _digests(self, sheet: Sheet) -> Iterator[tuple[int, int, Place, bytes]]:
        normal, digest = self.normal, xxhash.xxh3_64_intdigest
        for number, (place, raw) in enumerate(sheet.table.rows(), 1):
            whole = raw if normal is None else normal(raw)
            if place is not None:
                whole = place.encode() + b"\0" + whole
            yield number, digest(whole), place, raw

    def _counted(self) -> tuple[dict[int, int], int]:
        counts: dict[int, int] = {}
        total = 0
        for sheet in self.base:
            for _, digest, _, _ in self._digests(sheet):
                counts[digest] = counts.get(digest, 0) + 1
                total += 1
        return counts, total

    def _of_seen(self, counts: dict[int, int]) -> tuple[list[_Left], int]:
        """Take what is there off the counts; return what fits none."""
        left: list[_Left] = []
        more = 0
        for sheet in self.seen:
            number = 0
            try:
                for number, digest, place, raw in self._digests(sheet):
                    count = counts.get(digest)
                    if count:
                        counts[digest] = count - 1
                        continue
                    if len(left) >= MOST_LEFT:
                        more += 1
                        continue
                    fields = sheet.table.decode(raw)
                    known = count is not None
                    left.append(_Left(sheet.path, number, place, raw, fields, known))
                if left and left[-1].path == sheet.path:
                    left[-1].is_last = left[-1].number == number
            except TornError as error:
                self._emit("torn", sheet.path, detail=str(error))
        return left, more

    def _of_base(self, counts: dict[int, int]) -> tuple[list[_Left], int]:
        """Return what is left of the counts: it is not there."""
        rest = sum(counts.values())
        left: list[_Left] = []
        for sheet in self.base if rest else ():
            for number, digest, place, raw in self._digests(sheet):
                if not counts[digest]:
                    continue
                counts[digest] -= 1
                rest -= 1
                fields = sheet.table.decode(raw)
                left.append(_Left(sheet.path, number, place, raw, fields))
                if not rest or len(left) >= MOST_LEFT:
                    return left, rest
        return left, rest

    # --- matching what is left ---

    def _match(self, seen: list[_Left], base: list[_Left]) -> None:
        by_key: dict[str, list[_Left]] = defaultdict(list)
        for one in base:
            by_key[self._key_of(one) or ""].append(one)
        known = self._known_keys(seen, by_key)
        gone: set[int] = set()  # of the baseline's, those that are accounted for
        rest: list[_Left] = []
        for one in seen:
            key = self._key_of(one)
            if one.is_known:
                self._emit("repeated", one.path, one)
            elif self._is_torn(one):
                gone |= self._pieces(one, base)
                self._emit("torn", one.path, one, detail=_quoted(one.raw))
            elif key is not None and by_key.get(key):
                other = by_key[key].pop(0)
                gone.add(id(other))
                if one.is_last and other.raw.startswith(one.raw):
                    self._emit("torn", one.path, one, detail=_quoted(one.raw))
                else:
                    self._tell_parting(other, one)
            elif key is not None and key in known:
                self._emit("repeated", one.path, one)
            else:
                rest.append(one)
        self._match_rest(rest, [b for b in base if id(b) not in gone])

    def _match_rest(self, seen: list[_Left], base: list[_Left]) -> None:
        """Match what has no key: pieces of lines, else one by one where they stand."""
        for one in list(seen[:MOST_SEARCHED]) if self.kind in ("lines", "csv") else ():
            gone = self._pieces(one, base)
            if gone:
                seen.remove(one)
                base = [b for b in base if id(b) not in gone]
                self._emit("torn", one.path, one, detail=_quoted(one.raw))
        if self.key is None and len(seen) == len(base):
            for other, one in zip(base, seen, strict=True):
                self._tell_parting(other, one)
            return
        for one in seen:
            self._emit("foreign", one.path, one)
        for one in base:
            self._emit("missing", one.path, one)

    def _is_torn(self, one: _Left) -> bool:
        return one.fields is None and self.kind in ("json", "csv")

    def _pieces(self, one: _Left, base: Sequence[_Left]) -> set[int]:
        """Return which records of the baseline a line is made of: cut, or run together."""
        cut = [b for b in base if len(b.raw) > len(one.raw) > 0]
        found = {id(b) for b in cut if b.raw.startswith(one.raw)}
        if found:
            return {min(found)} if self.kind == "lines" else found
        whole = [b for b in base if b.raw and one.raw.endswith(b.raw)]
        ends = [b for b in whole if self._begins(one.raw[: -len(b.raw)], base)]
        if not ends:
            return set()
        end = max(ends, key=lambda b: len(b.raw))
        start = one.raw[: -len(end.raw)]
        first = [b for b in base if b is not end and b.raw.startswith(start)]
        return {id(end), *(id(b) for b in first[:1])}

    def _begins(self, piece: bytes, base: Sequence[_Left]) -> bool:
        """Tell whether some record of the baseline begins with a piece."""
        if not piece:
            return False
        if any(b.raw.startswith(piece) for b in base):
            return True
        return any(
            raw.startswith(piece) and len(raw) > len(piece)
            for sheet in self.base
            for _, raw in sheet.table.rows()
        )

    def _known_keys(self, seen: Sequence[_Left], left: dict[str, Any]) -> set[str]:
        """Return which of the keys that fit nothing the baseline has all the same."""
        wanted = {self._key_of(o) for o in seen if not o.is_known} - {None, *left}
        if not wanted or self.key is None:
            return set()
        return {
            key
            for sheet in self.base
            for _, raw in sheet.table.rows()
            if (key := _key_in(sheet.table.decode(raw), self.key)) in wanted
            and key is not None
        }

    def _key_of(self, one: _Left) -> str | None:
        if one.place is not None:
            return one.place
        return _key_in(one.fields, self.key)

    # --- telling ---

    def _tell_parting(self, base: _Left, seen: _Left) -> None:
        """Tell of one record with other content: its first field that is not the same."""
        if self.kind == "array" and not any(seen.raw) and any(base.raw):
            self._emit("missing", seen.path, seen, detail="it holds zeros")
            return
        ours, theirs = base.fields or {}, seen.fields or {}
        names = list(dict.fromkeys([*ours, *theirs]))
        for name in names:
            if name in self.hidden:
                continue
            wanted, got = ours.get(name, _UNKNOWN), theirs.get(name, _UNKNOWN)
            if self.rules.within(wanted, got):
                continue
            if got is None and wanted is not _UNKNOWN:
                self._emit("missing", seen.path, seen, detail=f"its {name} is empty")
                return
            self._emit(
                "differ",
                seen.path,
                seen,
                field=name,
                wanted=_word(wanted),
                got=_word(got),
            )
            return

    def _emit(
        self, kind: str, path: str, one: _Left | None = None, **more: str
    ) -> None:
        record = None
        if one is not None:
            key = self._key_of(one)
            record = (
                f"line {one.number}" if self.kind != "rows" else f"row {one.number}"
            )
            if key is not None:
                record = f"{self.key or self.kind} {key}"
        self.found.append(OutputDifference(kind, 1, path, record, **more))

    # --- order ---

    def _is_ordered(self) -> bool:
        rules = self.rules
        is_loose = rules.unordered or self.group in rules.loose or self.key is not None
        return self.kind in ("lines", "json", "csv") and not is_loose

    def _compare_order(self) -> None:
        ours = {sheet.path: sheet for sheet in self.base}
        for sheet in self.seen:
            other = ours.get(sheet.path)
            if other is None:
                return  # they lie in other files
            for mine, theirs in zip_longest(self._digests(other), self._digests(sheet)):
                if mine is None or theirs is None:
                    return
                if mine[1] != theirs[1]:
                    self._emit(
                        "differ",
                        sheet.path,
                        _Left(sheet.path, theirs[0], None, theirs[3], None),
                        detail="the same records come in another order from there on",
                    )
                    return


def compare_rows(
    base: Sequence[Sheet], seen: Sequence[Sheet], rules: Rules, group: str
) -> list[OutputDifference]:
    """Return how the records of a group differ, one difference for each record.

    Args:
        base: tables of the uninterrupted run.
        seen: those that are judged.
        rules: of comparison.
        group: that the tables belong to.
    """
    return _Comparison(base, seen, rules, group).run() if base or seen else []


def normal_of(
    rules: Rules, group: str, kind: str, decode: Callable[[bytes], Fields | None]
) -> Callable[[bytes], bytes] | None:
    """Return what makes records equal that differ in masked fields only; None: nothing."""
    if kind == "lines":
        if group not in rules.text:
            return None
        return lambda raw: without_times(raw.decode("utf-8", "replace")).encode()
    hidden = rules.hidden(group)
    if kind not in ("json", "document", "csv", "rows") or not hidden:
        return None

    def normal(raw: bytes) -> bytes:
        fields = decode(raw)
        if fields is None:
            return raw
        return packed({n: v for n, v in fields.items() if n not in hidden})

    return normal


def bookkeeping_in(fields: Fields) -> dict[str, str]:
    """Return which fields say who did the work and how often, and that they do."""
    return {
        name: "who did the work, when, or how often"
        for name in fields
        if is_bookkeeping(name)
    }


def _key_in(fields: Fields | None, name: str | None) -> str | None:
    if fields is None or name is None or fields.get(name) is None:
        return None
    return str(fields[name])


def _word(value: Any) -> str:
    if value is _UNKNOWN:
        return "nothing"
    text = repr(value)
    return text if len(text) <= _VALUE_LETTERS else text[: _VALUE_LETTERS - 3] + "..."


def _quoted(raw: bytes) -> str:
    text = raw.decode("utf-8", "replace")
    return repr(
        text if len(text) <= _VALUE_LETTERS else text[: _VALUE_LETTERS - 3] + "..."
    )
