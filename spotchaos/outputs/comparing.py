"""Are the outputs of two runs the same records, each once and whole? A pure comparison."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from spotchaos.model import OutputDifference
from spotchaos.oracles.resume_points import pattern_of
from spotchaos.outputs.bytewise import are_same, parting_of
from spotchaos.outputs.masks import Rules
from spotchaos.outputs.readers import tables_of
from spotchaos.outputs.rows import Sheet, compare_rows
from spotchaos.outputs.tables import Table, TornError

Tree = Mapping[str, Path]  # path relative to the working folder -> where it lies here

_TEMPORARY = re.compile(
    r"(^|[^a-z])(te?mp|temporary|partial|incomplete|unfinished)([^a-z]|$)"
    r"|^tmp[a-z0-9_]{6,}$|\.(lock|lck|pid|part)$|~$",
    re.IGNORECASE,
)


def compare(base: Tree, seen: Tree, rules: Rules) -> tuple[OutputDifference, ...]:
    """Return how outputs differ from those of the uninterrupted run.

    Args:
        base: files of the uninterrupted run.
        seen: files of the run that is judged.
        rules: of comparison.

    Returns:
        One difference of each kind for each group of files, with an example.
    """
    groups: dict[str, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for side, tree in enumerate((base, seen)):
        for path in sorted(tree):
            groups[pattern_of(path)][side].append(path)
    found: list[OutputDifference] = []
    for group, (ours, theirs) in sorted(groups.items()):
        same = {p for p in ours if p in seen and are_same(base[p], seen[p])}
        left = [p for p in ours if p not in same], [p for p in theirs if p not in same]
        if not any(left):
            continue
        if not ours:
            found += _besides(group, theirs)
            continue
        comparison = _Group(group, base, seen, rules)
        found += _summed(comparison.differences(*left, same=sorted(same)))
    return tuple(found)


def _besides(group: str, paths: Sequence[str]) -> Iterator[OutputDifference]:
    """Tell what lies beside the outputs and has no fellow among those of the baseline."""
    yield OutputDifference("besides", len(paths), paths[0], group=group)


def _summed(found: Iterable[OutputDifference]) -> list[OutputDifference]:
    """Keep the first difference of each kind, with the count of all."""
    kept: dict[str, OutputDifference] = {}
    for one in found:
        known = kept.get(one.kind)
        kept[one.kind] = (
            one if known is None else replace(known, count=known.count + one.count)
        )
    return list(kept.values())


class _Group:
    """The files of one kind: names that differ in their numbers only."""

    def __init__(self, group: str, base: Tree, seen: Tree, rules: Rules) -> None:
        self._group = group
        self._base = base
        self._seen = seen
        self._rules = rules

    def differences(
        self, ours: Sequence[str], theirs: Sequence[str], *, same: Iterable[str]
    ) -> Iterator[OutputDifference]:
        """Yield what differs; records of text and tables may lie in any of the files.

        Args:
            ours: files of the baseline that are not there as they should be.
            theirs: files that are not as they should be.
            same: files that are.
        """
        leftover = [p for p in theirs if p not in self._base and _is_temporary(p)]
        theirs = [p for p in theirs if p not in leftover]
        for path in leftover:
            yield self._one("leftover", path)
        whole = {path: tables_of(self._base[path]) for path in (*ours, *same)}
        like = next((t[0].kind for t in whole.values() if t), None)
        read: dict[str, list[Table]] = {path: whole[path] for path in same}
        for path in theirs:
            try:
                read[path] = tables_of(self._seen[path], like)
            except TornError as error:
                whole.pop(path, None)
                yield self._one("torn", path, detail=str(error))
        sheets = [
            [Sheet(p, t[0]) for p, t in side.items() if _is_divisible(t, like)]
            for side in (whole, read)
        ]
        if any(sheets):
            yield from self._rows("", *sheets)
        for path in ours:
            if path in whole and not _is_divisible(whole[path], like):
                yield from self._pair(path, whole[path], read.get(path))
        for path in theirs:
            is_new = path in read and path not in self._base
            if is_new and not _is_divisible(read[path], like):
                twin = self._same_as(path, whole)
                kind = "foreign" if twin is None else "repeated"
                detail = "" if twin is None else f"it is {twin} once more"
                yield self._one(kind, path, detail=detail)

    def _pair(
        self, path: str, base: Sequence[Table], seen: Sequence[Table] | None
    ) -> Iterator[OutputDifference]:
        """Compare a file whose records belong to no other file."""
        if seen is None:
            yield self._one("missing", path)
            return
        of_bytes = any(t.kind == "bytes" and not t.part for t in (*base, *seen))
        if of_bytes or {t.kind for t in base} != {t.kind for t in seen}:
            kind, detail = parting_of(self._base[path], self._seen[path])
            yield self._one(kind, path, detail=detail)
            return
        theirs = {table.part: table for table in seen}
        for table in base:
            other = theirs.pop(table.part, None)
            sheets = [] if other is None else [Sheet(path, other)]
            yield from self._rows(table.part, [Sheet(path, table)], sheets)
        for part in theirs:
            yield self._one("foreign", path, record=part)

    def _rows(
        self, part: str, base: Sequence[Sheet], seen: Sequence[Sheet]
    ) -> Iterator[OutputDifference]:
        group = f"{self._group}/{part}" if part else self._group
        for one in compare_rows(base, seen, self._rules, group):
            yield replace(one, group=self._group)

    def _same_as(self, path: str, ours: Iterable[str]) -> str | None:
        mine = self._seen[path]
        return next((p for p in ours if are_same(self._base[p], mine)), None)

    def _one(self, kind: str, path: str, **more: str) -> OutputDifference:
        return OutputDifference(kind, 1, path, group=self._group, **more)


def _is_temporary(path: str) -> bool:
    return any(_TEMPORARY.search(part) for part in path.split("/"))


def _is_divisible(tables: Sequence[Table], like: str | None) -> bool:
    """Tell whether the records of a file may as well lie in another one of its group."""
    return len(tables) == 1 and tables[0].is_divisible and tables[0].kind == like
