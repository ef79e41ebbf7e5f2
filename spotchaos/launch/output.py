"""What a program printed: the end of it, and what can be read from that."""

from __future__ import annotations

import os
import re
from pathlib import Path

TAIL_LINES = 60
TAIL_BYTES = 64 << 10


def tail(path: Path) -> str:
    """Return the last lines of a file of output; empty if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    lines = text.replace("\r\n", "\n").rstrip("\n").split("\n")
    return "\n".join(lines[-TAIL_LINES:])


def denied_paths(output: str) -> list[str]:
    """Return the paths that Python's own messages call read-only (EROFS)."""
    return re.findall(r"Read-only file system: '([^']+)'", output)
