# pathlib costs the program 10 ms at its start, and this may run in its process.
# ruff: noqa: PTH123
"""Which line of the program is at work: a small shared table that each thread writes.

The supervisor sees system calls, not Python. So the probe notes, before it lets a call
such as `open`, `os.replace` or `torch.save` through, the innermost line of the program
in a table that lies in a mapped file; noting costs two stores and no system call. The
supervisor reads the entry of the thread that waits.

Format, little-endian: 64 bytes of header (`b"SCFRAMES"`, u32 version 1, u32 entries),
then `entries` places of 256 bytes for threads (u64 thread id, u32 line, u32 length of
the file name, up to 240 bytes of the name in UTF-8, its end if it is longer), then as
many of 16 bytes for processes (u64 process id, i64 rank). The place of an id is its
remainder; a later id with the same remainder takes the place over.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading

VARIABLE = "SPOTCHAOS_FRAMES"  # in the program's environment: the path of the table
_ENTRIES = 4096
_HEADER = struct.Struct("<8sII")
_THREAD = struct.Struct("<QII")
_PROCESS = struct.Struct("<Qq")
_MAGIC = b"SCFRAMES"
_START, _PLACE, _NAME = 64, 256, 240


def create(path: str) -> None:
    """Make an empty table.

    Raises:
        OSError: the disk is full.
    """
    # Only the harness makes one; what runs beside the program has no package of ours.
    from spotchaos.trace.format import reserve

    with open(path, "wb") as file:
        file.write(_HEADER.pack(_MAGIC, 1, _ENTRIES))
        file.flush()
        reserve(file.fileno(), _START + _ENTRIES * (_PLACE + _PROCESS.size))


class FrameTable:
    """One table, open for writing (the probe) and reading (the supervisor).

    Args:
        path: of a table that `create` made.

    Raises:
        OSError: it is not there.
        ValueError: it is none, or of another version.
    """

    def __init__(self, path: str) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(fd, 0)
        finally:
            os.close(fd)
        magic, version, entries = _HEADER.unpack_from(self._map)
        self._entries = int(entries)
        if (magic, version) != (_MAGIC, 1):
            raise ValueError(f"{path} is no table of frames of version 1")

    def note(self, file: str, line: int) -> None:
        """Store where the calling thread is at work.

        Args:
            file: the program's source file.
            line: from 1.
        """
        name = file.encode("utf-8", "surrogateescape")[-_NAME:]
        tid = threading.get_native_id()
        at = self._place(tid)
        self._map[at + 16 : at + 16 + len(name)] = name
        _THREAD.pack_into(self._map, at, tid, line, len(name))

    def where(self, tid: int) -> str | None:
        """Return `file:line` of thread `tid`, or None if it has noted nothing."""
        at = self._place(tid)
        owner, line, length = _THREAD.unpack_from(self._map, at)
        if owner != tid or not 0 < length <= _NAME:
            return None
        name = self._map[at + 16 : at + 16 + length].decode("utf-8", "replace")
        return f"{name}:{line}"

    def set_rank(self, rank: int) -> None:
        """Store the rank of this process, where the environment does not tell it."""
        pid = os.getpid()
        _PROCESS.pack_into(self._map, self._process_place(pid), pid, rank)

    def rank(self, pid: int) -> int | None:
        """Return the rank that process `pid` has stored."""
        owner, rank = _PROCESS.unpack_from(self._map, self._process_place(pid))
        return int(rank) if owner == pid else None

    def close(self) -> None:
        """Unmap the table."""
        self._map.close()

    def _place(self, tid: int) -> int:
        return _START + (tid % self._entries) * _PLACE

    def _process_place(self, pid: int) -> int:
        threads = self._entries * _PLACE
        return _START + threads + (pid % self._entries) * _PROCESS.size
