"""What a program printed: the end of it, and what can be read from that."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
from pathlib import Path

TAIL_LINES = 60
TAIL_BYTES = 64 << 10
# Of output on our disk; a program may print for days.
LIMIT_BYTES = 64 << 20
# fallocate(2): FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
_PUNCH = 3
_libc = ctypes.CDLL(None, use_errno=True)


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


def bound(path: Path) -> None:
    """Give the disk back all but the end of a file of output that has grown large."""
    with contextlib.suppress(OSError):
        status = path.stat()
        if status.st_blocks * 512 <= LIMIT_BYTES:
            return
        with path.open("r+b") as file:
            length = ctypes.c_int64(status.st_size - TAIL_BYTES)
            _libc.fallocate64(file.fileno(), _PUNCH, ctypes.c_int64(0), length)


def keep_of(folder: Path, target: Path) -> None:
    """Copy the trace of an attempt, and what it printed, to where the user wants them."""
    shutil.copytree(folder / "trace", target, dirs_exist_ok=True)
    with contextlib.suppress(OSError):
        shutil.copyfile(folder / "output", target / "output")
