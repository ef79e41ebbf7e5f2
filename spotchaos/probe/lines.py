"""Noting which line of the program is at work before its files change, if ordered to.

The harness sees system calls, not Python. So before a call that may change files the
innermost line of the program goes into a table in a mapped file, from which the harness
reads the entry of the thread that waits. Its format is that of `launch/supervisor/frames.py`.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import sysconfig
import threading
from typing import TYPE_CHECKING

from spotchaos.probe.checkpoint_io import SAVES
from spotchaos.probe.paths import inside
from spotchaos.probe.session import SESSION

if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

_HEADER = struct.Struct("<8sII")
_THREAD = struct.Struct("<QII")
_PROCESS = struct.Struct("<Qq")
_MAGIC, _VERSION = b"SCFRAMES", 1
_START, _PLACE, _NAME = 64, 256, 240
_EVENTS = frozenset(
    {
        "open",
        "os.rename",
        "os.remove",
        "os.mkdir",
        "os.rmdir",
        "os.link",
        "os.symlink",
        "os.truncate",
    }
)
_LIBRARIES = tuple(
    {
        os.path.realpath(path) + os.sep
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
        for path in (sysconfig.get_paths().get(name),)
        if path
    }
)
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# Programs that lie among ours and are somebody's training scripts all the same.
_SPECIMENS = os.path.join(_OURS, "specimens", "")


class Lines:
    """The table, and which file names are the program's."""

    def __init__(self) -> None:
        self._map: mmap.mmap | None = None
        self._entries = 0
        self._names: dict[str, bytes | None] = {}
        self._newest: tuple[bytes, int] | None = None
        self._hooked = False

    def begin(self, path: str) -> None:
        """Note lines in the table at `path` from now on.

        Raises:
            OSError: it is not there.
            ValueError: it is no table of this version.
        """
        descriptor = os.open(path, os.O_RDWR)
        try:
            table = mmap.mmap(descriptor, 0)
        finally:
            os.close(descriptor)
        magic, version, entries = _HEADER.unpack_from(table)
        if (magic, version) != (_MAGIC, _VERSION):
            raise ValueError(f"{path} is no table of lines")
        self._map, self._entries = table, int(entries)
        if not self._hooked:
            self._hooked = True
            sys.addaudithook(self._audit)
            self._follow_saves()

    def note(self, frame: FrameType | None) -> None:
        """Store the innermost line of the program at or above `frame`."""
        table = self._map
        if table is None or self._innermost(frame) is None:
            return
        assert self._newest is not None  # as just asked
        name, line = self._newest
        tid = threading.get_native_id()
        at = _START + (tid % self._entries) * _PLACE
        table[at + 16 : at + 16 + len(name)] = name
        _THREAD.pack_into(table, at, tid, line, len(name))
        self._note_rank(table)

    def _note_rank(self, table: mmap.mmap) -> None:
        """Store this process's rank: the environment of a forked one does not tell it."""
        rank, size = SESSION.rank()
        if size > 1:
            pid = os.getpid()
            processes = _START + self._entries * _PLACE
            at = processes + (pid % self._entries) * _PROCESS.size
            _PROCESS.pack_into(table, at, pid, rank)

    def place(self, frame: FrameType | None) -> str | None:
        """Return `file:line` of the innermost line of the program at or above `frame`."""
        found = self._innermost(frame)
        if found is None:
            return None
        return f"{found[0].decode('utf-8', 'surrogateescape')}:{found[1]}"

    def _innermost(self, frame: FrameType | None) -> tuple[bytes, int] | None:
        while frame is not None:
            name = self._name(frame.f_code.co_filename)
            if name is not None:
                self._newest = (name, frame.f_lineno)
                break
            frame = frame.f_back
        # A library's own thread works for the line that was noted last.
        return self._newest

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _EVENTS:
            return
        if event == "open":
            flags = arguments[2] if len(arguments) > 2 else 0
            if isinstance(flags, int) and flags & os.O_ACCMODE == os.O_RDONLY:
                return
        self.note(sys._getframe())

    def _follow_saves(self) -> None:
        # Writers in C++ or Rust raise no audit event; each of them is entered as a save.
        entered = SAVES.enter

        def enter() -> int:
            self.note(sys._getframe())
            return entered()

        SAVES.enter = enter  # type: ignore[method-assign]  # of this one object

    def _name(self, file: str) -> bytes | None:
        """Return how a source file is noted; None if it is not the program's."""
        if file in self._names:
            return self._names[file]
        path = os.path.realpath(file)
        name = None
        is_foreign = file.startswith("<") or path.startswith((*_LIBRARIES, _OURS))
        if not is_foreign or path.startswith(_SPECIMENS):
            name = (inside(os.path.abspath(file)) or path).encode(
                "utf-8", "surrogateescape"
            )[-_NAME:]
        self._names[file] = name
        return name


LINES = Lines()
