"""Write the op log: one JSON line for each file op, the bytes in a file beside it.

Each line is written whole before the program hears the result of its call, so a reclaim
at any moment leaves a log of everything that the program knows to have happened.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

FORMAT = 1


class OpLogWriter:
    """The two files of one attempt's op log.

    Args:
        path: of the JSON lines; the bytes go to the same name with `.data` appended.
            None writes nothing, for attempts that only need their kill point.
        discard_data: keep offsets and lengths, but not the bytes.
    """

    def __init__(self, path: str | None, *, discard_data: bool = False) -> None:
        self._began = time.monotonic()
        self._lines = self._data = -1
        self._offset = 0
        if path is not None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            self._lines = os.open(path, flags | os.O_APPEND, 0o666)
            if not discard_data:
                self._data = os.open(path + ".data", flags, 0o666)

    @property
    def began_s(self) -> float:
        """The moment from which the log counts, CLOCK_MONOTONIC."""
        return self._began

    @property
    def is_kept(self) -> bool:
        """Whether anything is written at all."""
        return self._lines >= 0

    @property
    def keeps_data(self) -> bool:
        """Whether the bytes of writes are kept."""
        return self._data >= 0

    @property
    def offset(self) -> int:
        """Where the next bytes will lie in the data file."""
        return self._offset

    def add(self, **fields: Any) -> None:
        """Append one line; fields that are None are left out."""
        if self._lines < 0:
            return
        line: dict[str, Any] = {k: v for k, v in fields.items() if v is not None}
        line["t"] = round(time.monotonic() - self._began, 6)
        text = json.dumps(line, separators=(",", ":"), ensure_ascii=True)
        _write_all(self._lines, text.encode() + b"\n")

    def add_bytes(self, content: memoryview | bytes) -> None:
        """Append bytes to the data file."""
        if self._data >= 0:
            _write_all(self._data, content)
        self._offset += len(content)

    def add_file(self, fd: int) -> tuple[int, int]:
        """Append a whole file; return where its bytes begin, and how many they are."""
        start, at = self._offset, 0
        if self._data < 0:
            return start, os.fstat(fd).st_size
        while True:
            part = os.pread(fd, 1 << 20, at)
            if not part:
                return start, at
            self.add_bytes(part)
            at += len(part)

    def close(self) -> None:
        """Close both files."""
        for fd in (self._lines, self._data):
            if fd >= 0:
                os.close(fd)
        self._lines = self._data = -1


def _write_all(fd: int, content: memoryview | bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]
