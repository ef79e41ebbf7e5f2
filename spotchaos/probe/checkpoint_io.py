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
    from collections.abc import Callable, Iterable
    from typing import Any

_MOST_READS = 2000  # names that are kept in mind


class Saves:
    """The save in progress, those before it, and what was read."""

    def __init__(self) -> None:
        self.number = 0
        self.is_open = False
        self.at_begin: Callable[[int], None] | None = (
            None  # samples and writes the state
        )
        # Told what is about to be loaded into: a module; None, all that the program says.
        self.at_load: Callable[[Any], None] | None = None
        # Whether another thread than the one that trains runs; the weights of an object.
        self.is_beside: Callable[[], bool] | None = None
        self.weights_in: Callable[..., list[str]] | None = None
        self._begun_at_s = 0.0
        self._paths: dict[str, None] = {}
        self._held: set[str] = set()  # what is known of the weights in the open save
        self._has_files = False  # of any save
        self._claimed: str | None = None  # a folder that a thread goes on filling
        self._late: dict[str, None] = {}  # written after the save's end was announced
        self._reads: set[str] = set()
        self._written: set[str] = set()  # by saves, under the names they had then
        self._loads = 0
        self._step = 0  # at which the open save began
        # The last file of no telling name that was opened, and at which step.
        self._opened: tuple[str, int] | None = None
        self._awaited: int | None = None  # step whose bytes may go into the next file
        self._writers = 0  # that run now, in all threads
        self._lock = threading.Lock()
        self._thread = threading.local()

    # --------------------------------------------------------------- saves

    @shield
    def begin(self, writer: str, held: Iterable[str] = ()) -> None:
        """Note that a checkpoint is about to be written; may halt.

        Args:
            writer: what writes it.
            held: what `weights_in` said of it.
        """
        if not SESSION.may_train():
            return
        if self.is_open and (
            self.is_nested()
            or (self._step == SESSION.steps and not self._is_another(held))
        ):
            self.note_held(held)
            return
        self._close()  # a thread may still write what was begun some steps ago
        self._step = SESSION.steps
        self.is_open = True
        self._flush_late()
        self.number += 1
        self._paths = {}
        self._held = set()
        self._claimed = None
        beside = {"beside": True} if self._is_beside() else {}
        # A site is reached before what it is named after: nothing is written yet.
        SESSION.mark("save", n=self.number, writer=writer, step=SESSION.steps, **beside)
        self.note_held(held)
        if self.at_begin is not None:
            self.at_begin(self.number)
        SESSION.site("save-begin")
        # What the probe itself did, and a halt, are no part of what a save takes.
        self._begun_at_s = monotonic()

    def _is_beside(self) -> bool:
        return self.is_beside is not None and self.is_beside()

    def _is_another(self, held: Iterable[str]) -> bool:
        """Tell whether weights that a thread writes are of another save than the open one."""
        if not self._is_beside():
            return False
        return bool(self._held and held and self._held.isdisjoint(held))

    @shield
    def note_held(self, held: Iterable[str]) -> None:
        """Note which weights the open save holds, as far as they are known."""
        new = sorted(set(held) - self._held)
        if new and self.is_open:
            self._held.update(new)
            SESSION.mark("held", n=self.number, weights=new)

    def held_by(self, content: Any) -> list[str]:
        """Return the digests that the weights in `content` may have.

        Training may have moved on since it was copied.
        """
        if self.weights_in is None or not SESSION.may_train():
            return []
        return self.weights_in(content, beside=self._is_beside())

    def may_be_in_memory(self) -> bool:
        """Tell whether what is written to memory may be a save of this program.

        It is for a program that has an object store, and saves no file.
        """
        return bool(
            SESSION.orders["store"] and not self._has_files and not self.is_nested()
        )

    @shield
    def went_nowhere(self, writer: str, held: Iterable[str]) -> None:
        """Note that a checkpoint was written to something that names no file; may halt.

        To a member of an archive, or to memory: it goes into what the program opened in
        this step, or opens next. A program with an object store may send it there.
        """
        if not SESSION.steps or SESSION.orders["store"] or self.is_nested():
            return
        if self.is_open:
            self.note_held(held)
        elif self._opened is not None and self._opened[1] == SESSION.steps:
            self.begin(writer, held)
            self.wrote(self._opened[0])
        else:
            self._awaited = SESSION.steps

    def expects(self, path: str) -> bool:
        """Tell whether a file that is opened may be where a checkpoint of this step goes."""
        if is_log(path):
            return False
        self._opened = path, SESSION.steps
        return self._awaited == SESSION.steps

    def knows(self, path: str) -> bool:
        """Tell whether a save wrote this file before, or the program has read it.

        Opened again without being emptied, it is updated in place.
        """
        return path in self._written or path in self._reads

    def is_writing(self, path: Any) -> bool:
        """Tell whether the open save has this file open already."""
        return self.is_open and absolute(path) in self._paths

    @shield
    def claim(self, folder: Any) -> None:
        """Note that what threads write below a folder is of the save that now begins."""
        self._claimed = absolute(folder)

    def is_late(self, path: Any) -> bool:
        """Tell whether a thread writes what an earlier save said it would."""
        if self._claimed is None or not self._is_beside():
            return False
        return (absolute(path) or "").startswith(self._claimed + "/")

    @shield
    def wrote(self, path: Any) -> None:
        """Note that a file is being written."""
        found = absolute(path)
        if found is None:
            return
        self._has_files = True
        if len(self._written) < _MOST_READS:
            self._written.add(found)
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
        if known:
            self._emit_at_once()
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
        self._emit_at_once()

    @shield
    def _emit_at_once(self) -> None:
        """Name what was written by a child that only saves: it may end without a word."""
        if SESSION.is_child and self.is_open and not SESSION.steps:
            paths = [shown(path) for path in self._paths]
            SESSION.mark("saved", n=self.number, paths=paths, late=True)

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
        """Note that something is about to be loaded; may halt.

        Args:
            path: of a file; None: it was downloaded to memory, and has no name.
            via: what loads it.
        """
        found = absolute(path)
        if not SESSION.may_train() or (found is None and path is not None):
            return
        self._loads += 1
        if via == "dcp":
            self.loads_into(None)
        if found is not None:
            SESSION.mark(
                "load", path=shown(found), via=via, n=self._loads, step=SESSION.steps
            )
        SESSION.site("load-begin")

    @shield
    def loads_into(self, module: Any) -> None:
        """Note that a module's state is about to be loaded; None: that of several."""
        if self.at_load is not None and SESSION.may_train():
            self.at_load(module)

    @shield
    def read(self, path: str) -> None:
        """Note that a file below the folder is opened for reading, the first time."""
        if path not in self._reads and len(self._reads) < _MOST_READS:
            self._reads.add(path)
            SESSION.mark("read", path=inside(path))

    def reset(self) -> None:
        """Begin afresh: called in a forked child."""
        kept = self.at_begin, self.at_load, self.is_beside, self.weights_in
        self.__init__()  # type: ignore[misc]
        self.at_begin, self.at_load, self.is_beside, self.weights_in = kept

    def finish(self) -> None:
        """Announce what is left when the process ends."""
        self.end()
        self._flush_late()


SAVES = Saves()
