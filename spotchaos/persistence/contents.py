"""The bytes of one file as runs of recorded bytes, and what an edit makes of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Extent(NamedTuple):
    """A run of a file's bytes and where they come from."""

    start: int
    end: int
    source: str  # "" zeros, "data" the recorded bytes, else a path in the start folder
    offset: int


class Edit(NamedTuple):
    """One change of a file's bytes or size; `zero` edits write zeros."""

    kind: str  # write, trunc, zero, or begin (the file as it first was)
    start: int
    end: int
    source: str
    offset: int


@dataclass(frozen=True, slots=True)
class Content:
    """The bytes of one file: its extents, gap-free from 0."""

    extents: tuple[Extent, ...]

    @property
    def size(self) -> int:
        """Return its length in bytes."""
        return self.extents[-1].end if self.extents else 0


def apply(content: Content, edit: Edit) -> Content:
    """Return the content after one edit."""
    size = content.size
    match edit.kind:
        case "trunc":
            return _fit(content, edit.start)
        case "grow":
            return _fit(content, max(size, edit.start))
        case "punch":
            end = min(edit.end, size)
            return (
                _overlay(content, edit.start, end, "", 0)
                if end > edit.start
                else content
            )
        case _:
            longer = _fit(content, max(size, edit.start))
            return _overlay(longer, edit.start, edit.end, edit.source, edit.offset)


def _fit(content: Content, size: int) -> Content:
    if size >= content.size:
        if size == content.size:
            return content
        return Content(_merge([*content.extents, Extent(content.size, size, "", 0)]))
    kept = [e for e in content.extents if e.start < size]
    kept[-1:] = [kept[-1]._replace(end=min(kept[-1].end, size))] if kept else []
    return Content(tuple(kept))


def _overlay(
    content: Content, start: int, end: int, source: str, offset: int
) -> Content:
    before = [
        e._replace(end=min(e.end, start)) for e in content.extents if e.start < start
    ]
    after = [
        Extent(
            max(e.start, end), e.end, e.source, e.offset + max(e.start, end) - e.start
        )
        for e in content.extents
        if e.end > end
    ]
    return Content(_merge([*before, Extent(start, end, source, offset), *after]))


def _merge(extents: list[Extent]) -> tuple[Extent, ...]:
    merged: list[Extent] = []
    for one in extents:
        if one.start == one.end:
            continue
        if not one.source:
            one = one._replace(offset=0)
        last = merged[-1] if merged else None
        if (
            last is not None
            and last.source == one.source
            and last.end == one.start
            and (not one.source or last.offset + last.end - last.start == one.offset)
        ):
            merged[-1] = last._replace(end=one.end)
        else:
            merged.append(one)
    return tuple(merged)
