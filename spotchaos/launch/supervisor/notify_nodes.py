# pathlib costs the program 10 ms at its start, and this may run in its process.
# ruff: noqa: PTH115
"""Which file is which: a number for each file that lasts through renames and unlinks.

Inode numbers are used again after an unlink and paths change with a rename, so the op
log speaks of nodes. The table follows every change of names below the watched folders.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from fnmatch import fnmatch
from typing import NamedTuple

IGNORED = ("*.log", "events.out.tfevents*")
_MOST_ENTRIES = 500_000


class Entry(NamedTuple):
    """One thing that lay in a watched folder before the run."""

    path: str
    node: int
    kind: str  # file, dir or link
    size: int  # bytes; 0 for all but files
    mode: int
    target: str | None  # of a symbolic link


class Nodes:
    """The names and nodes below the watched folders.

    Args:
        roots: the folders, absolute. With one, paths in the log are relative to it;
            with more, each begins with the folder's number, `0/`, `1/`, ...
        ignore: patterns of names whose operations are neither recorded nor counted.
    """

    def __init__(self, roots: list[str], ignore: tuple[str, ...] = IGNORED) -> None:
        self._roots = [os.path.realpath(root) for root in roots]
        self._ignore = ignore
        self._by_path: dict[str, int] = {}
        self._by_key: dict[tuple[int, int], int] = {}
        self._names: dict[int, set[str]] = {}
        self._next = 1

    def label(self, path: str) -> str | None:
        """Return the log's name of an absolute path, or None if it is not watched."""
        for number, root in enumerate(self._roots):
            if path == root or path.startswith(root + "/"):
                inner = path[len(root) + 1 :]
                if inner and self.is_ignored(inner):
                    return None
                if len(self._roots) == 1:
                    return inner
                return f"{number}/{inner}" if inner else str(number)
        return None

    def is_ignored(self, inner: str) -> bool:
        """Tell whether a path below a watched folder fits a pattern of `ignore`."""
        name = inner.rpartition("/")[2]
        return any(fnmatch(name, one) or fnmatch(inner, one) for one in self._ignore)

    def scan(self) -> Iterator[Entry]:
        """Yield what lies in the watched folders, parents first, and remember it.

        Raises:
            OSError: there are more entries than can be followed.
        """
        stack = list(self._roots)
        while stack:
            folder = stack.pop()
            label = self.label(folder)
            if label is not None:
                yield self._entry(folder, label)
            with os.scandir(folder) as entries:
                for entry in sorted(entries, key=lambda one: one.name):
                    label = self.label(entry.path)
                    if label is None:
                        continue
                    if self._next > _MOST_ENTRIES:
                        raise OSError(
                            f"more than {_MOST_ENTRIES} files below {self._roots[0]}"
                        )
                    if entry.is_dir(follow_symlinks=False):
                        stack.append(entry.path)
                    elif entry.is_symlink() or entry.is_file():
                        yield self._entry(entry.path, label)

    def at(self, label: str) -> int | None:
        """Return the node that has this name now."""
        return self._by_path.get(label)

    def of(self, found: os.stat_result) -> int | None:
        """Return the node of an open file."""
        return self._by_key.get((found.st_dev, found.st_ino))

    def label_of(self, node: int) -> str | None:
        """Return a name that the node has now, the first in order; None if nameless."""
        return min(self._names.get(node, ()), default=None)

    def is_linked(self, node: int) -> bool:
        """Tell whether the node has more than one name below the watched folders."""
        return len(self._names.get(node, ())) > 1

    def is_nameless(self, node: int) -> bool:
        """Tell whether the node has no name left below the watched folders."""
        return not self._names.get(node)

    def forget_key(self, found: os.stat_result) -> None:
        """Drop an inode number that another file uses now."""
        self._by_key.pop((found.st_dev, found.st_ino), None)

    def new(self, found: os.stat_result, label: str | None) -> int:
        """Give a number to a file that has just come into being."""
        node = self._next
        self._next += 1
        self._by_key[found.st_dev, found.st_ino] = node
        if label is not None:
            self.name(node, label)
        return node

    def same(self, node: int, found: os.stat_result) -> None:
        """Note that the node has this inode now: an overlay may change it on copy-up."""
        self._by_key[found.st_dev, found.st_ino] = node

    def name(self, node: int, label: str) -> None:
        """Give the node one more name."""
        self.unname(label)
        self._by_path[label] = node
        self._names.setdefault(node, set()).add(label)

    def unname(self, label: str) -> None:
        """Take a name away, and with it all below it."""
        node = self._by_path.pop(label, None)
        if node is not None:
            self._names[node].discard(label)

    def below(self, label: str) -> list[str]:
        """Return the names below a folder."""
        prefix = label + "/"
        return [path for path in self._by_path if path.startswith(prefix)]

    def move(self, source: str, target: str) -> None:
        """Carry out a rename on the table; what was at `target` loses that name."""
        moved = [(source, target)]
        moved += [(path, target + path[len(source) :]) for path in self.below(source)]
        nodes = [self._by_path.get(path) for path, _ in moved]
        for path, _ in moved:
            self.unname(path)
        for node, (_, path) in zip(nodes, moved):  # noqa: B905 - strict= came in 3.10
            if node is not None:
                self.name(node, path)

    def exchange(self, one: str, other: str) -> None:
        """Carry out a rename that swaps two names."""
        aside = one + "\0"
        self.move(one, aside)
        self.move(other, one)
        self.move(aside, other)

    def _entry(self, path: str, label: str) -> Entry:
        found = os.lstat(path)
        node = self._by_key.get((found.st_dev, found.st_ino))
        if node is None or stat.S_ISDIR(found.st_mode):
            node = self.new(found, label)
        else:
            self.name(node, label)
        mode = stat.S_IMODE(found.st_mode)
        if stat.S_ISDIR(found.st_mode):
            return Entry(label, node, "dir", 0, mode, None)
        if stat.S_ISLNK(found.st_mode):
            return Entry(label, node, "link", 0, mode, os.readlink(path))
        return Entry(label, node, "file", found.st_size, mode, None)
