"""Saves and loads: when one begins, what it writes, when it has ended.

A save is all checkpoint writes of this process between two steps (rules.md 3). It begins
with the first, and ends with the first thing of training that happens afterwards. The
names it reports are the final ones: a rename from a temporary name is followed.
"""

from __future__ import annotations

import threading
from time import monotonic
from typing import TYPE_CHECKING

from spotchaos.probe.paths import absolute, inside, is_log, matters, shown
from spotchaos.probe.session import SESSION, shield

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_MOST_READS = 2000


class Saves:
    """The save in progress, those before it, and what was read."""

    def __init__(self) -> None:
        self.number = 0
        self.is_open = False
        self.at_begin: Callable[[int], None] | None = (
            None  # samples and writes the state
        )
        self._begun_at_s = 0.0
        self._paths: dict[str, None] = {}
        self._late: dict[str, None] = {}  # written after the save's end was announced
        self._reads: set[str] = set()
        self._loads = 0
        self._step = 0  # at which the open save began
        self._writers = 0  # that run now, in all threads
        self._lock = threading.Lock()
        self._thread = threading.local()

    # --------------------------------------------------------------- saves

    @shield
    def begin(self, writer: str) -> None:
        """Note that a checkpoint is about to be written; may halt."""
        if not SESSION.may_train():
            return
        if self.is_open and (self._step == SESSION.steps or self.is_nested()):
            return
        self._close()  # a thread may still write what was begun some steps ago
        self._step = SESSION.steps
        self.is_open = True
        self._flush_late()
        self.number += 1
        self._begun_at_s = monotonic()
        self._paths = {}
        # A site is reached before what it is named after: nothing is written yet.
        SESSION.mark("save", n=self.number, writer=writer, step=SESSION.steps)
        if self.at_begin is not None:
            self.at_begin(self.number)
        SESSION.site("save-begin")

    @shield
    def wrote(self, path: Any) -> None:
        """Note that a file is being written."""
        found = absolute(path)
        if found is None:
            return
        if self.is_open:
            self._paths[found] = None
        elif self.number:
            self._late[found] = None

    @shield
    def renamed(self, source: Any, target: Any) -> None:
        """Follow a rename of a file or folder that belongs to a save, or begin one."""
        old, new = absolute(source), absolute(target)
        if old is None or new is None:
            return
        known = False
        for paths in (self._paths, self._late):
            for path in list(paths):
                if path == old or path.startswith(old + "/"):
                    del paths[path]
                    paths[new + path[len(old) :]] = None
                    known = True
        if known or not matters(new) or is_log(new):
            return
        if not self.is_open and not self.is_nested():
            self.begin("rename")
        self.wrote(new)

    @shield
    def end(self) -> None:
        """Note that training goes on, which ends the save; may halt."""
        # A thread that writes is not done because training goes on beside it.
        if self.is_open and not self.is_nested() and not self._writers:
            self._close()

    @shield
    def _close(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        paths = [shown(path) for path in self._paths]
        seconds = round(monotonic() - self._begun_at_s, 6)
        SESSION.mark("saved", n=self.number, paths=paths, seconds=seconds)
        SESSION.site("save-end")

    def _flush_late(self) -> None:
        """Add what a background writer wrote to the save that it belongs to."""
        if self._late:
            paths = [shown(path) for path in self._late]
            self._late = {}
            SESSION.mark("saved", n=self.number, paths=paths, late=True)

    # --------------------------------------------------------------- loads

    def enter_writer(self) -> None:
        """Note that a writer runs in this thread."""
        self.enter()
        with self._lock:
            self._writers += 1

    def leave_writer(self) -> None:
        self.leave()
        with self._lock:
            self._writers -= 1

    def enter(self) -> int:
        """Note that a writer or reader runs in this thread; return how deep it is."""
        depth = getattr(self._thread, "depth", 0) + 1
        self._thread.depth = depth
        return int(depth)

    def leave(self) -> None:
        self._thread.depth -= 1

    def is_nested(self) -> bool:
        """Whether a writer or reader that is known runs in this thread."""
        return getattr(self._thread, "depth", 0) > 0

    @shield
    def load_begins(self, path: Any, via: str) -> None:
        """Note that something is about to be loaded; may halt."""
        found = absolute(path)
        if found is None or not SESSION.may_train():
            return
        self._loads += 1
        SESSION.mark(
            "load", path=shown(found), via=via, n=self._loads, step=SESSION.steps
        )
        SESSION.site("load-begin")

    @shield
    def read(self, path: str) -> None:
        """Note that a file below the folder is opened for reading, the first time."""
        if path not in self._reads and len(self._reads) < _MOST_READS:
            self._reads.add(path)
            SESSION.mark("read", path=inside(path))

    def reset(self) -> None:
        """Begin afresh: called in a forked child."""
        at_begin = self.at_begin
        self.__init__()  # type: ignore[misc]
        self.at_begin = at_begin

    def finish(self) -> None:
        """Announce what is left when the process ends."""
        self.end()
        self._flush_late()


SAVES = Saves()
