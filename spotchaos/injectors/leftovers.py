"""What an attempt left on its machine besides its checkpoints: looked at, not judged."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from spotchaos.launch.isolation.view import View
from spotchaos.model import Left

# Of each kind; a program that leaves more leaves enough.
MOST = 200
_TEMPORARY = re.compile(
    r"(^|[^a-z])(te?mp|temporary|partial|incomplete|unfinished)([^a-z]|$)"
    r"|^tmp[a-z0-9_]{6,}$|\.(lock|lck|pid)$",
    re.IGNORECASE,
)


def left_in(view: View) -> Left:
    """Return what lies in a view now, when nothing of the attempt lives any more."""
    named = [
        (one.path, one.size)
        for one in view.changed()
        if any(_TEMPORARY.search(part) for part in one.path.split("/"))
    ]
    memory = view.workspace.shared_memory_for(view.place)
    return Left(
        files=tuple(named[:MOST]),
        temporary=tuple(_entries(view.host(view.temporary))),
        memory=tuple(_entries(memory)),
    )


def _entries(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield what lies in a folder, each with the bytes of all that is below it."""
    if not folder.is_dir():
        return
    for entry in sorted(os.scandir(folder), key=lambda e: e.name)[:MOST]:
        size = 0
        if entry.is_dir(follow_symlinks=False):
            files = (p for p in Path(entry.path).rglob("*") if p.is_file())
            size = sum(file.lstat().st_size for file in files)
        else:
            size = entry.stat(follow_symlinks=False).st_size
        yield entry.name, size
