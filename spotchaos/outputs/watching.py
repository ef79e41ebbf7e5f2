"""What attempts leave in their views, found and compared; the rim of what is pure here."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from spotchaos.errors import HarnessError
from spotchaos.launch.attempt.spec import FileOrders
from spotchaos.launch.isolation.view import Changed, View
from spotchaos.model import OutputsSeen
from spotchaos.oracles.resume_points import pattern_of
from spotchaos.outputs.comparing import Tree, compare
from spotchaos.outputs.masks import Rules
from spotchaos.persistence import oplog

# What a program says of its work, and what its tools keep: no output of it.
_NO_OUTPUT = re.compile(
    r"(^|/)(__pycache__|\.[^/]+|logs?|wandb|mlruns|lightning_logs)/"
    r"|(^|[/.])(log|logs?\.txt|stdout|stderr)$|\.(log|pyc|pid|lock|lck)$"
    r"|-(wal|shm|journal)$|(^|/)events\.out\.tfevents|(^|/)nohup\.out$",
    re.IGNORECASE,
)


def outputs_in(view: View, globs: Sequence[str]) -> list[Changed]:
    """Return the files that attempts in a view left and that are outputs.

    Args:
        view: the view.
        globs: what is one, relative to the working folder; none: all but logs.
    """
    found = [one for one in view.changed() if view.path(one.path).is_file()]
    if globs:
        return [one for one in found if any(_fits(one.path, g) for g in globs)]
    return [one for one in found if not _NO_OUTPUT.search(one.path)]


def _fits(path: str, glob: str) -> bool:
    """Tell whether a glob names a file, or a folder that it is in."""
    inner = path.removeprefix("{out}/")
    above = [str(folder) for folder in PurePosixPath(inner).parents]
    return any(fnmatch(name, glob.rstrip("/")) for name in (path, inner, *above))


def tree_of(view: View, globs: Sequence[str]) -> Tree:
    """Return where the outputs of a view lie on this machine."""
    return {one.path: view.path(one.path) for one in outputs_in(view, globs)}


@dataclass(frozen=True, slots=True)
class Watch:
    """Looks at what each attempt of a campaign leaves.

    Attributes:
        base: the uninterrupted run, in its view.
        globs: what is an output, if the user says so.
        rules: of comparison.
        labels: patterns of output files, as the op log labels them.
        counted: of these, the patterns of those whose writes are records.
        is_supervised: file ops can be followed, so that records are counted.
    """

    base: View
    globs: tuple[str, ...]
    rules: Rules
    labels: tuple[str, ...]
    counted: tuple[str, ...]
    is_supervised: bool

    def orders(self, files: FileOrders | None) -> FileOrders | None:
        """Return the orders of an attempt whose records are counted."""
        if files is None and not self.is_supervised:
            return None
        return replace(files or FileOrders(), records=self.labels)

    def look(self, view: View, log: Path, *, is_over: bool) -> OutputsSeen:
        """Return what an attempt left, when nothing of it lives any more.

        Args:
            view: its view.
            log: its op log, if there is one.
            is_over: it ended by itself: what is there now is compared.
        """
        differences = None
        if is_over:
            seen = tree_of(view, self.globs)
            differences = compare(tree_of(self.base, self.globs), seen, self.rules)
        return OutputsSeen(
            times_of(outputs_in(view, self.globs)),
            differences,
            written=written_in(log, self.counted),
        )


def times_of(found: Iterable[Changed]) -> dict[str, tuple[int, int]]:
    """Return bytes and the time of change, CLOCK_MONOTONIC nanoseconds, of files."""
    ahead_ns = time.time_ns() - time.monotonic_ns()
    return {one.path: (one.size, one.mtime_ns - ahead_ns) for one in found}


def labels_of(paths: Iterable[str]) -> tuple[str, ...]:
    """Return patterns by which the op log's labels of such files are known."""
    found = set()
    for path in paths:
        inner = path.removeprefix("{out}/")
        root = "1" if inner != path else "0"
        name = pattern_of(inner).replace("[", "[[]").replace("?", "[?]")
        found.add(f"{root}/{name.replace('#', '*')}")
    return tuple(sorted(found))


def journals_of(labels: Iterable[str]) -> tuple[str, ...]:
    """Return patterns of what databases are written to first."""
    return tuple(f"{label}-wal" for label in labels)


def is_database(path: Path) -> bool:
    """Tell whether a file is of SQLite, whose pages are no records."""
    with path.open("rb") as file:
        return file.read(16) == b"SQLite format 3\0"


def written_in(log: Path, labels: Sequence[str]) -> int | None:
    """Return how many records an attempt wrote, by its op log; None: nobody can tell."""
    if not labels:
        return None
    try:
        ops = oplog.read(log).ops
    except (HarnessError, OSError, ValueError):
        return None
    return sum(is_record(op, labels) for op in ops)


def is_record(op: oplog.FileOp, labels: Sequence[str]) -> bool:
    """Tell whether an op appends to an output, or gives a whole one its name."""
    if op.error is not None or op.number is None:
        return False
    name = {"write": op.path, "rename": op.to}.get(op.kind)
    return name is not None and any(fnmatch(name, label) for label in labels)
