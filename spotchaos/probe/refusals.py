"""Faults of the disk at Python's own level, where nothing outside of it can refuse.

They strike what Python announces on a checkpoint: that it is opened to be written, which
stands for the writes that follow, renamed, linked, given a mode or synced. What compiled
code does by itself goes through, but for `torch.save`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from time import monotonic, sleep  # noqa: TID251  it is the program that waits
from typing import TYPE_CHECKING

from spotchaos.probe.checkpoint_io import SAVES
from spotchaos.probe.paths import absolute, inside, looks_like_checkpoint, matters
from spotchaos.probe.session import SESSION

if TYPE_CHECKING:
    from typing import Any

_WRITING = os.O_WRONLY | os.O_RDWR
_KINDS = {"os.rename": "rename", "os.link": "link", "os.chmod": "chmod"}


class Refusals:
    """Counts what faults can strike in this process, and lets it fail as they say.

    Args:
        faults: `text`, `kind` (write, open, rename, link, chmod or fsync), `errno` or
            `delay_s`, `nth`, `onwards`, and `from_save`, before which none counts.
    """

    def __init__(self, faults: list[dict[str, Any]]) -> None:
        self._faults = [(fault, [0]) for fault in faults]
        self._opened: set[str] = set()  # by Python, and not yet by a writer's name
        self._busy = threading.local()

    def install(self) -> None:
        """Listen to Python's audit events, to `torch.save` and to syncs."""
        sys.addaudithook(self._audit)
        wrote = SAVES.wrote

        def noted(path: Any) -> None:
            wrote(path)
            # What is heard of an open is passed on from there, and was counted here.
            if sys._getframe(1).f_globals.get("__name__") != "spotchaos.probe.files":
                self._written(path)

        SAVES.wrote = noted
        for name in ("fsync", "fdatasync"):
            setattr(os, name, self._syncing(getattr(os, name)))

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" and event not in _KINDS:
            return
        if getattr(self._busy, "now", False):
            return
        path = _path(arguments[1 if event in ("os.rename", "os.link") else 0])
        if path is None or not self._is_meant(path):
            return
        if event != "open":
            self._opened.discard(path)
            self._inject((_KINDS[event],), path)
            return
        flags = arguments[2] if len(arguments) > 2 else 0
        if isinstance(flags, int) and flags & _WRITING:
            self._inject(("open", "write"), path, emptied=bool(flags & os.O_TRUNC))
            self._opened.add(path)

    def _written(self, path: Any) -> None:
        """A writer takes a name; it may open the file without Python."""
        found = absolute(path)
        if found is None or not self._is_meant(found):
            return
        if found in self._opened:
            self._opened.discard(found)
            return
        self._inject(("open", "write"), found, emptied=True)

    def _syncing(self, original: Any) -> Any:
        def sync(fd: Any) -> Any:
            path = _path(fd if isinstance(fd, int) else fd.fileno())
            if path is not None and self._is_meant(path):
                self._inject(("fsync",), path)
            return original(fd)

        return sync

    def _is_meant(self, path: str) -> bool:
        return matters(path) and (SAVES.is_open or looks_like_checkpoint(path))

    def _inject(
        self, kinds: tuple[str, ...], path: str, *, emptied: bool = False
    ) -> None:
        for fault, seen in self._faults:
            if fault["kind"] not in kinds or SAVES.number < fault["from_save"]:
                continue
            seen[0] += 1
            more = fault["onwards"] and seen[0] > fault["nth"]
            if seen[0] != fault["nth"] and not more:
                continue
            self._emit(fault["text"], path)
            if fault["delay_s"]:
                sleep(fault["delay_s"])
                continue
            if fault["kind"] == "write" and emptied:
                self._empty(path)  # as an open does, before the first write fails
            raise OSError(fault["errno"], os.strerror(fault["errno"]), path)

    def _empty(self, path: str) -> None:
        self._busy.now = True
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666))
        finally:
            self._busy.now = False

    def _emit(self, text: str, path: str) -> None:
        if SESSION.record is None:
            return
        line = {"fault": text, "t": monotonic(), "path": inside(path) or path}
        self._busy.now = True
        try:
            with open(SESSION.record.path(".faults"), "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        finally:
            self._busy.now = False


def _path(given: Any) -> str | None:
    """Return the path of a name or of a descriptor; None if it has none."""
    if isinstance(given, int):
        try:
            given = os.readlink(f"/proc/self/fd/{given}")
        except OSError:
            return None
    return absolute(given)
