"""Stores into mapped files: found by comparing pages with a copy, at every later op.

A store makes no system call. The file's pages are compared with the copy taken when it
was mapped, so what changed since the last op is known, but not in which order.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator

from spotchaos.launch.supervisor.seccomp import LIBC

PAGE = 4096
_STRIDE = 1 << 20


class _Copy:
    """What a mapped file held when it was last looked at."""

    def __init__(self, fd: int) -> None:
        self.fd = fd  # readable, owned
        self.pages = _room(0)
        self.size = 0


class MappedFiles:
    """The watched files that some process has mapped shared and writable, by node."""

    def __init__(self) -> None:
        self._copies: dict[int, _Copy] = {}
        self._scratch = _room(_STRIDE)
        self._address = _address(self._scratch)

    def __contains__(self, node: int) -> bool:
        return node in self._copies

    def add(self, node: int, fd: int) -> None:
        """Follow a file from now on.

        Args:
            node: its node.
            fd: a readable descriptor of it; owned from now on.
        """
        if node in self._copies:
            os.close(fd)
            return
        self._copies[node] = _Copy(fd)
        self.refresh(node, 0, os.fstat(fd).st_size)

    def refresh(self, node: int, start: int, end: int) -> None:
        """Take these bytes of the file for known: an op of ours has just written them."""
        copy = self._copies[node]
        self._fit(copy)
        stop = min(end, copy.size)
        for at in range(start, stop, _STRIDE):
            end = min(at + _STRIDE, stop)
            os.preadv(copy.fd, [memoryview(copy.pages)[at:end]], at)

    def changes(self) -> Iterator[tuple[int, int, memoryview]]:
        """Yield node, offset and bytes of each run of pages stored to since last time.

        The bytes lie in a buffer of ours and must be used before the next is asked for.
        """
        for node, copy in self._copies.items():
            self._fit(copy)
            for at, end in self._changed(copy):
                yield node, at, memoryview(copy.pages)[at:end]

    def close(self) -> None:
        """Close the descriptors."""
        for copy in self._copies.values():
            os.close(copy.fd)
        self._copies = {}

    def _changed(self, copy: _Copy) -> Iterator[tuple[int, int]]:
        base = _address(copy.pages)
        for at in range(0, copy.size, _STRIDE):
            length = min(_STRIDE, copy.size - at)
            got = os.preadv(copy.fd, [memoryview(self._scratch)[:length]], at)
            if LIBC.memcmp(
                ctypes.c_void_p(base + at),
                ctypes.c_void_p(self._address),
                ctypes.c_size_t(got),
            ):
                yield from self._changed_pages(copy, at, got)

    def _changed_pages(
        self, copy: _Copy, at: int, length: int
    ) -> Iterator[tuple[int, int]]:
        start = None
        new = memoryview(self._scratch)[:length].tobytes()
        old = memoryview(copy.pages)[at : at + length].tobytes()
        memoryview(copy.pages)[at : at + length] = new
        for page in range(0, length + PAGE, PAGE):
            inside = page < length
            differs = inside and new[page : page + PAGE] != old[page : page + PAGE]
            if differs and start is None:
                start = page
            elif not differs and start is not None:
                yield at + start, at + min(page, length)
                start = None

    def _fit(self, copy: _Copy) -> None:
        size = os.fstat(copy.fd).st_size
        if size == copy.size:
            return
        # A larger file begins with zeros there, as a file that was extended does.
        pages = _room(size)
        keep = min(size, copy.size)
        for at in range(0, keep, _STRIDE):
            end = min(at + _STRIDE, keep)
            memoryview(pages)[at:end] = memoryview(copy.pages)[at:end]
        copy.pages, copy.size = pages, size


def _room(size: int) -> mmap.mmap:
    return mmap.mmap(-1, max(size, PAGE))


def _address(room: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(room))
