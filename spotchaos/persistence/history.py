"""An op log taken apart: changes of names and edits of files, which a crash may cut.

A folder is a table of (folder node, name) -> node, a file a chain of edits. Both are
kept by node, so that a renamed folder is one change and a file keeps its edits through
every rename. Nothing here touches a disk but the reading of recorded bytes.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import xxhash

from spotchaos.persistence.contents import Content, Edit, Extent, apply
from spotchaos.persistence.oplog import DATA_KINDS, Entry, FileOp, OpLog

_ROOT = 0
_STRIDE = 1 << 24
_PUNCH, _ZERO, _KEEP = 2, 16, 1
BEFORE_S = -1.0  # of files whose times are older than the log


class Change(NamedTuple):
    """One entry of a folder set to a node, or to None."""

    folder: int
    name: str
    node: int | None


class NameStep(NamedTuple):
    """What one op did to names, all or nothing."""

    order: int  # in `History.ops`
    changes: tuple[Change, ...]
    over: int | None  # the node that lost its name to a rename
    moved: int | None  # the node that a rename gave a new name


class DataStep(NamedTuple):
    """What one op did to one file."""

    order: int  # in `History.ops`
    node: int
    edit: Edit


class _Moved(NamedTuple):
    """Recorded bytes that a file of ours holds instead of the recording."""

    start: int
    end: int
    place: Path
    offset: int


class Thing(NamedTuple):
    """What one path holds: a folder, a link or a file."""

    kind: str
    content: Content | None = None
    target: str | None = None
    mode: int | None = None
    node: int = 0


@dataclass(frozen=True)
class Layout:
    """One state of the watched folders.

    Attributes:
        things: path -> what it holds.
        changed_at_s: path -> when its bytes, or a folder's names, changed last, seconds
            of the log. Programs choose by such times, but no state is another for them.
    """

    things: Mapping[str, Thing]
    changed_at_s: Mapping[str, float] = field(default_factory=dict, compare=False)

    def recipe(self) -> frozenset[tuple[str, str, object]]:
        """Return a key that is free to compare: equal recipes are equal states."""
        return frozenset(
            (path, one.kind, one.target if one.content is None else one.content.extents)
            for path, one in self.things.items()
        )


class History:
    """An op log, ready to be cut anywhere.

    Args:
        log: of a run whose bytes were kept, if contents are to be compared.
        start_folder: where files of before the run still lie unchanged; needed only
            for the contents of files that the run never touched.
    """

    def __init__(self, log: OpLog, start_folder: Path | None = None) -> None:
        self.log = log
        self.ops: tuple[FileOp, ...] = tuple(op for op in log.ops if op.error is None)
        self.names: list[NameStep] = []
        self.data: list[DataStep] = []
        self._start_folder = start_folder
        self._kinds: dict[int, tuple[str, str | None, int | None]] = {}
        self._first: dict[int, Edit] = {}
        self._table: dict[tuple[int, str], int] = {}
        self._extents: dict[tuple[Edit, ...], Content] = {}
        self._same: dict[Content, Content] = {}
        self._digests: dict[Content, str] = {}
        self._moved: list[_Moved] = []
        self._kinds[_ROOT] = ("dir", None, None)
        self._aliases: dict[int, int] = {}
        self._made_at_s: dict[int, float] = {}
        for entry in log.start:
            self._add_entry(self._table, entry)
        self._start_table = dict(self._table)
        for index, op in enumerate(self.ops):
            self._take(index, op)
        self._edited_at_s = {
            (step.node, step.edit): self.ops[step.order].at_s for step in self.data
        }
        self._index = {
            op.number: i for i, op in reversed(list(enumerate(self.ops))) if op.number
        }

    def index_of(self, number: int) -> int:
        """Return where op `number` begins in `ops`, unnumbered stores before it included.

        The number after the last op stands for the end.
        """
        at = number
        while at <= self.log.last:
            if at in self._index:
                return self._index[at]
            at += 1  # an op that failed changed nothing
        return len(self.ops)

    def op(self, number: int) -> FileOp | None:
        """Return the op with this number; None if it failed or there is none."""
        at = self._index.get(number)
        return None if at is None else self.ops[at]

    def layout(
        self,
        names: Iterable[NameStep],
        edits: Mapping[int, Sequence[Edit]],
    ) -> Layout:
        """Return the state in which these changes, and no others, have persisted.

        Args:
            names: the changes of names, in order.
            edits: node -> its edits in order; a node that is left out has none.
        """
        table = dict(self._start_table)
        changed_at_s = {**self._start_times_s, **self._made_at_s}
        for step in names:
            for folder, name, node in step.changes:
                changed_at_s[folder] = self.ops[step.order].at_s
                if node is None:
                    table.pop((folder, name), None)
                else:
                    table[folder, name] = node
        children: dict[int, list[tuple[str, int]]] = {}
        for (folder, name), node in table.items():
            children.setdefault(folder, []).append((name, node))
        things: dict[str, Thing] = {}
        times: dict[str, float] = {}
        # A folder whose own entry is lost takes everything below it along.
        stack = [(_ROOT, "")]
        while stack:
            folder, prefix = stack.pop()
            for name, node in children.get(folder, ()):
                path = prefix + name
                kind, target, mode = self._kinds[node]
                times[path] = changed_at_s.get(node, BEFORE_S)
                if kind == "dir":
                    things[path] = Thing("dir", None, None, mode, node)
                    stack.append((node, path + "/"))
                elif kind == "link":
                    things[path] = Thing("link", None, target, mode, node)
                else:
                    content = self.content(node, edits.get(node, ()))
                    things[path] = Thing("file", content, None, mode, node)
                    for edit in reversed(edits.get(node, ())):
                        if (node, edit) in self._edited_at_s:  # a torn one is not
                            times[path] = self._edited_at_s[node, edit]
                            break
        return Layout(things, times)

    def content(self, node: int, edits: Sequence[Edit]) -> Content:
        """Return a node's bytes after these edits; equal ones are one object."""
        first = self._first.get(node)
        chain = (first, *edits) if first is not None else tuple(edits)
        known = self._extents.get(chain)
        if known is None:
            shorter = Content(())
            if chain:
                shorter = self._extents.get(chain[:-1]) or functools.reduce(
                    apply, chain[:-1], shorter
                )
                shorter = apply(shorter, chain[-1])
            known = self._same.setdefault(shorter, shorter)
            self._extents[chain] = known
        return known

    def digest(self, content: Content) -> str:
        """Return the xxh3-128 of a file's bytes."""
        known = self._digests.get(content)
        if known is None:
            state = xxhash.xxh3_128()
            for part in self.read(content):
                state.update(part)
            known = self._digests[content] = state.hexdigest()
        return known

    def read(self, content: Content) -> Iterable[bytes]:
        """Yield a file's bytes in order, in pieces of at most 16 MB."""
        for start, end, source, offset in content.extents:
            for at in range(start, end, _STRIDE):
                length = min(_STRIDE, end - at)
                yield self._piece(source, offset + at - start, length)

    def key(self, layout: Layout) -> str:
        """Return a digest of all paths and contents: equal folders have equal keys."""
        state = xxhash.xxh3_128()
        for path in sorted(layout.things):
            kind, content, target, _, _ = layout.things[path]
            what = target if content is None else self.digest(content)
            state.update(f"{path}\0{kind}\0{what}\0".encode("utf-8", "surrogateescape"))
        return state.hexdigest()

    def move_out(self, content: Content, place: Path) -> bool:
        """Let a new file hold the recorded bytes of `content`, and free the recording's.

        Returns:
            Whether it was done: bytes that another file holds stay there.

        Raises:
            OSError: the disk is full.
        """
        parts = [one for one in content.extents if one.source == "data"]
        if self.log.data is None or any(self._overlaps(one) for one in parts):
            return False
        with place.open("xb") as file, self.log.data.open("rb+") as data:
            for start, end, source, offset in content.extents:
                for at in range(start, end, _STRIDE) if source else ():
                    length = min(_STRIDE, end - at)
                    file.seek(at)
                    file.write(self._piece(source, offset + at - start, length))
                    if source == "data":
                        file.flush()
                        _punch(data.fileno(), offset + at - start, length)
            file.truncate(content.size)
        self._moved += [
            _Moved(one.offset, one.offset + one.end - one.start, place, one.start)
            for one in parts
        ]
        return True

    def _overlaps(self, extent: Extent) -> bool:
        end = extent.offset + extent.end - extent.start
        return any(one.start < end and extent.offset < one.end for one in self._moved)

    def _piece(self, source: str, offset: int, length: int) -> bytes:
        if not source:
            return bytes(length)
        if source == "data":
            return self._recorded(offset, length)
        path = (self._start_folder or Path()) / source.removeprefix("/")
        return _read(path, offset, length)

    def _recorded(self, offset: int, length: int) -> bytes:
        for one in self._moved:
            start, end = max(offset, one.start), min(offset + length, one.end)
            if start < end:
                before = self._recorded(offset, start - offset)
                inside = _read(one.place, one.offset + start - one.start, end - start)
                return before + inside + self._recorded(end, offset + length - end)
        return bytes(self._blob[offset : offset + length])

    @functools.cached_property
    def _blob(self) -> mmap.mmap | bytes:
        if self.log.data is None:
            return self.log.blob

        with self.log.data.open("rb") as file:
            if not self.log.data.stat().st_size:
                return b""
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    @functools.cached_property
    def _start_times_s(self) -> dict[int, float]:
        """When what lay there before was changed, all of it before the log began."""
        found: dict[int, float] = {}
        for entry in self.log.start if self._start_folder is not None else ():
            with contextlib.suppress(OSError):
                status = (self._start_folder or Path()).joinpath(entry.path).lstat()
                found[self._node(entry.node)] = status.st_mtime
        newest = max(found.values(), default=0.0)
        return {node: at_s - newest + BEFORE_S for node, at_s in found.items()}

    def _take(self, index: int, op: FileOp) -> None:
        if op.kind in DATA_KINDS or (op.kind == "creat" and op.node is not None):
            self._take_data(index, op)
        changes = self._changes(index, op)
        if op.kind in ("creat", "mkdir", "symlink"):
            self._made_at_s[self._node(op.node)] = op.at_s
        if changes:
            for change in changes:
                if change.node is None:
                    self._table.pop((change.folder, change.name), None)
                else:
                    self._table[change.folder, change.name] = change.node
            moved = op.node if op.kind == "rename" else None
            self.names.append(NameStep(index, tuple(changes), op.over, moved))

    def _take_data(self, index: int, op: FileOp) -> None:
        node = self._node(op.node)
        if op.kind == "creat":
            self._kinds[node] = ("file", None, op.mode)
        elif op.kind in ("write", "mwrite"):
            if op.length:
                end = op.offset + op.length
                edit = Edit("write", op.offset, end, "data", op.data_off)
                self.data.append(DataStep(index, node, edit))
        elif op.kind == "trunc":
            self.data.append(DataStep(index, node, Edit("trunc", op.length, 0, "", 0)))
        else:
            mode, end = op.mode or 0, op.offset + op.length
            if mode & (_PUNCH | _ZERO):
                kind = "punch" if mode & _KEEP else "zero"
                self.data.append(
                    DataStep(index, node, Edit(kind, op.offset, end, "", 0))
                )
            elif not mode & _KEEP:
                self.data.append(DataStep(index, node, Edit("grow", end, 0, "", 0)))

    def _changes(self, index: int, op: FileOp) -> list[Change]:
        match op.kind:
            case "creat" | "mkdir" | "symlink" if op.path is not None:
                node = self._node(op.node)
                if op.kind != "creat":
                    kind = "dir" if op.kind == "mkdir" else "link"
                    self._kinds[node] = (kind, op.target, op.mode)
                return [self._set(op.path, node)]
            case "link":
                return [self._set(str(op.to), self._node(op.node))]
            case "rename" if op.exchange:
                one, other = str(op.path), str(op.to)
                return [
                    self._set(one, self._lookup(other)),
                    self._set(other, self._lookup(one)),
                ]
            case "rename":
                moved = self._lookup(str(op.path))
                return [self._set(str(op.path), None), self._set(str(op.to), moved)]
            case "unlink" | "rmdir" | "export":
                return [self._set(str(op.path), None)]
            case "import" | "appear":
                return self._arrive(index, op)
        return []

    def _arrive(self, index: int, op: FileOp) -> list[Change]:
        table = dict(self._table)
        for entry in op.entries:
            self._add_entry(table, entry)
            node = self._node(entry.node)
            first = self._first.pop(node, None)
            if first is not None:
                # Bytes that came with the file: of this op, and not yet durable.
                self.data.append(DataStep(index, node, first._replace(kind="write")))
        added = {k: v for k, v in table.items() if self._table.get(k) != v}
        return [Change(folder, name, node) for (folder, name), node in added.items()]

    def _add_entry(self, table: dict[tuple[int, str], int], entry: Entry) -> None:
        if entry.path == "":
            self._aliases[entry.node] = _ROOT
            return
        node = self._node(entry.node)
        parent, _, name = entry.path.rpartition("/")
        folder = self._lookup(parent, table)
        table[folder if folder is not None else _ROOT, name] = node
        if entry.kind == "name":
            return
        self._kinds[node] = (entry.kind, entry.target, entry.mode)
        if entry.kind == "file" and entry.size:
            source = "data" if entry.data_off is not None else "/" + entry.path
            self._first[node] = Edit(
                "write", 0, entry.size, source, entry.data_off or 0
            )

    def _node(self, node: int | None) -> int:
        return self._aliases.get(node or 0, node or 0)

    def node_of(self, op: FileOp) -> int | None:
        """Return the node that an op concerns, the watched folder being 0."""
        return None if op.node is None else self._node(op.node)

    def _set(self, path: str, node: int | None) -> Change:
        parent, _, name = path.rpartition("/")
        folder = self._lookup(parent)
        return Change(folder if folder is not None else _ROOT, name, node)

    def _lookup(
        self, path: str, table: Mapping[tuple[int, str], int] | None = None
    ) -> int | None:
        node: int | None = _ROOT
        for name in path.split("/") if path else ():
            if node is None:
                return None
            node = (self._table if table is None else table).get((node, name))
        return node


def _read(path: Path, offset: int, length: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(length)


def _punch(fd: int, offset: int, length: int) -> None:
    """Give the blocks of a range back; where that is not offered they stay."""
    libc = ctypes.CDLL(None, use_errno=True)
    mode = _PUNCH | _KEEP
    libc.fallocate(fd, mode, ctypes.c_int64(offset), ctypes.c_int64(length))
