"""Files that nobody can read: where their bytes part, and what that looks like."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BLOCK_BYTES = 1 << 20


def are_same(first: Path, second: Path) -> bool:
    """Tell whether two files hold the same bytes."""
    if first.is_symlink() or second.is_symlink():
        links = first.is_symlink() and second.is_symlink()
        return links and first.readlink() == second.readlink()
    if first.stat().st_size != second.stat().st_size:
        return False
    with first.open("rb") as ours, second.open("rb") as theirs:
        while block := ours.read(BLOCK_BYTES):
            if block != theirs.read(BLOCK_BYTES):
                return False
    return True


def parting_of(base: Path, seen: Path) -> tuple[str, str]:
    """Return what became of a file, and where, as kind and words.

    Args:
        base: as it should be.
        seen: as it is; not the same.
    """
    if base.is_symlink() or seen.is_symlink():
        return "differ", "it leads elsewhere"
    with _mapped(base) as ours, _mapped(seen) as theirs:
        head = _common(ours, theirs)
        if head == len(theirs):
            return "torn", f"it ends after {head} of {len(ours)} bytes"
        most = min(len(ours), len(theirs)) - head
        tail = 0
        while tail < most and ours[-1 - tail] == theirs[-1 - tail]:
            tail += 1
            if tail > BLOCK_BYTES:
                break
        if len(theirs) > len(ours) and head + tail >= len(ours):
            more = len(theirs) - len(ours)
            return (
                "repeated",
                f"{more} bytes are there more than once, from byte {head}",
            )
        if len(theirs) < len(ours) and head + tail >= len(theirs):
            return "torn", f"{len(ours) - len(theirs)} bytes are missing at byte {head}"
        zeros = theirs[head : head + 64]
        if len(ours) == len(theirs) and len(zeros) == 64 and not any(zeros):
            return "torn", f"it holds zeros from byte {head} on"
        return "differ", f"its bytes differ from byte {head} on"


def _common(ours: bytes | mmap.mmap, theirs: bytes | mmap.mmap) -> int:
    """Return how many bytes two files have in common at their beginning."""
    at, end = 0, min(len(ours), len(theirs))
    while at < end and ours[at : at + BLOCK_BYTES] == theirs[at : at + BLOCK_BYTES]:
        at += BLOCK_BYTES
    if at >= end:
        return end
    while at < end and ours[at] == theirs[at]:
        at += 1
    return at


@contextmanager
def _mapped(path: Path) -> Iterator[bytes | mmap.mmap]:
    with path.open("rb") as file:
        if not path.stat().st_size:
            yield b""  # nothing can be mapped
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            yield content
