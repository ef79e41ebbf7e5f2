"""What two uninterrupted runs tell of their outputs: keys, masks, and what is no result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from spotchaos.model import OutputDifference
from spotchaos.oracles.resume_points import pattern_of
from spotchaos.outputs.bytewise import are_same
from spotchaos.outputs.comparing import Tree, compare
from spotchaos.outputs.masks import Rules, reason_to_mask, without_times
from spotchaos.outputs.readers import tables_of
from spotchaos.outputs.rows import bookkeeping_in
from spotchaos.outputs.tables import Fields, Table, TornError, is_key_name

# Records of a file that are looked at for keys and masks.
SAMPLE = 2000
# Files of one group that are.
MOST_FILES = 4


@dataclass(frozen=True, slots=True)
class Learned:
    """How outputs are compared, and whether two uninterrupted runs left them alike.

    Attributes:
        rules: of comparison.
        records: in all files of the first run.
        parting: where the two runs differ all the same; None: nowhere.
    """

    rules: Rules
    records: int
    parting: OutputDifference | None


def learn(first: Tree, second: Tree, rules: Rules) -> Learned:
    """Learn from two uninterrupted runs what can be compared.

    Args:
        first: the files of the one.
        second: those of the other.
        rules: what the user asked for.

    Raises:
        TornError: a file of an uninterrupted run cannot be read.
    """
    groups: dict[str, list[str]] = {}
    for path in sorted(first):
        groups.setdefault(pattern_of(path), []).append(path)
    for group, paths in groups.items():
        for path in paths[:MOST_FILES]:
            rules = _of_tables(group, _tables(first[path]), rules)
        unlike = (p for p in paths if p in second and not are_same(first[p], second[p]))
        for path in islice(unlike, MOST_FILES):
            rules = _of_partings(group, first[path], second[path], rules)
    found = [d for d in compare(first, second, rules) if d.kind != "besides"]
    for one in found:
        if "another order" in one.detail:
            rules = replace(rules, loose=rules.loose | {one.group})
    if any("another order" in one.detail for one in found):
        found = [d for d in compare(first, second, rules) if d.kind != "besides"]
    records = sum(_count(first[path]) for path in first)
    return Learned(rules, records, found[0] if found else None)


def _tables(path: Path) -> list[Table]:
    try:
        return tables_of(path)
    except TornError as error:
        raise TornError(f"{path.name}: {error}") from None


def _named(group: str, part: str) -> str:
    return f"{group}/{part}" if part else group


def _of_tables(group: str, tables: Sequence[Table], rules: Rules) -> Rules:
    """Find the key of each table, and the fields that are no result by their name."""
    for table in tables:
        if table.kind not in ("json", "csv", "rows", "document"):
            continue
        name = _named(group, table.part)
        sample = [f for f in _sample(table) if f is not None]
        if not sample:
            continue
        masked = bookkeeping_in(sample[0])
        if masked:
            rules = rules.masking(name, masked)
        key = _key_of(sample)
        if key is not None and name not in rules.keys:
            rules = replace(rules, keys={**rules.keys, name: key})
        elif key is None and name in rules.keys:
            rules = replace(
                rules, keys={g: k for g, k in rules.keys.items() if g != name}
            )
    return rules


def _key_of(sample: Sequence[Fields]) -> str | None:
    """Return the field that every record has, with a value of its own."""
    names = [n for n in sample[0] if is_key_name(n) and not bookkeeping_in({n: 0})]
    for name in names:
        values = [fields.get(name) for fields in sample]
        is_plain = all(isinstance(v, str | int) for v in values)
        if is_plain and len(set(values)) == len(values):
            return name
    return None


def _of_partings(group: str, first: Path, second: Path, rules: Rules) -> Rules:
    """Mask what differs between two runs and is no result."""
    theirs = {table.part: table for table in _tables(second)}
    for table in _tables(first):
        other, name = theirs.get(table.part), _named(group, table.part)
        if other is None or other.kind != table.kind:
            continue
        if table.kind == "lines":
            lines = zip(_raw(table), _raw(other), strict=False)
            unlike = [(a, b) for a, b in lines if a != b]
            if unlike and all(without_times(a) == without_times(b) for a, b in unlike):
                rules = replace(rules, text=rules.text | {name})
            continue
        masked: dict[str, str] = {}
        for ours, its in _paired(table, other, rules.key_of(name)):
            for field in ours.keys() & its.keys():
                if ours[field] != its[field] and field not in masked:
                    reason = reason_to_mask(field, ours[field], its[field])
                    if reason is not None:
                        masked[field] = reason
        if masked:
            rules = rules.masking(name, masked)
            if rules.keys.get(name) in masked:
                kept = {g: k for g, k in rules.keys.items() if g != name}
                rules = replace(rules, keys=kept)
    return rules


def _paired(
    first: Table, second: Table, key: str | None
) -> Iterator[tuple[Fields, Fields]]:
    ours = [f for f in _sample(first) if f is not None]
    theirs = [f for f in _sample(second) if f is not None]
    if key is None or not all(key in f for f in (*ours, *theirs)):
        yield from zip(ours, theirs, strict=False)
        return
    known: Mapping[str, Fields] = {str(f[key]): f for f in theirs}
    for one in ours:
        if str(one[key]) in known:
            yield one, known[str(one[key])]


def _sample(table: Table) -> list[Fields | None]:
    return [table.decode(raw) for _, raw in islice(table.rows(), SAMPLE)]


def _raw(table: Table) -> list[str]:
    return [raw.decode("utf-8", "replace") for _, raw in islice(table.rows(), SAMPLE)]


def _count(path: Path) -> int:
    """Return how many records a file holds; one whose parts nobody can read is one."""
    tables = _tables(path)
    if any(table.kind in ("bytes", "opaque") for table in tables):
        return 1
    return sum(sum(place != "shape" for place, _ in table.rows()) for table in tables)
