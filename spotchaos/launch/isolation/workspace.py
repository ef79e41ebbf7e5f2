"""Everything that a campaign writes to disk: a scratch folder outside the user's.

A workspace belongs to one campaign. Each trial gets a view (view.py), so that nothing of
the user's is ever written; all of them are removed at the end, also for an owner that died.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from spotchaos.errors import HarnessError, UsageError
from spotchaos.launch.isolation.copying import copy_tree
from spotchaos.launch.isolation.layers import Layer, is_below, plan_layers, read_mounts
from spotchaos.launch.isolation.mechanisms import (
    ROOM_BYTES,
    Mechanisms,
    candidate_places,
    find_mechanisms,
)
from spotchaos.launch.isolation.scratch import SHARED_MEMORY, Scratch, sweep
from spotchaos.launch.isolation.shortages import LEAST_FREE_BYTES
from spotchaos.launch.isolation.view import View as View  # callers find it here


class Workspace:
    """Owns everything that a campaign writes to disk, and removes it.

    Args:
        folder: the program's working folder.
        scratch: where views are kept; None: the first place that can hold them.
        mechanisms: what this machine offers; None: find out.
        keep: traces and output of attempts are copied there; None: they go with the view.
        keep_env: variables that attempts have although secret, with the files they name.

    Raises:
        HarnessError: no place for views, or no space there.
        UsageError: the folder is not there.
    """

    def __init__(
        self,
        folder: Path,
        scratch: Path | None = None,
        mechanisms: Mechanisms | None = None,
        *,
        keep: Path | None = None,
        keep_env: Sequence[str] = (),
    ) -> None:
        self.folder: Path = folder.absolute()
        if not self.folder.is_dir():
            raise UsageError(
                f"the folder {str(folder)!r} is not there",
                hint="name the folder in which the program runs",
            )
        self.folder = self.folder.resolve()
        self.keep = keep
        self.keep_env = tuple(keep_env)
        self.mechanisms = mechanisms or find_mechanisms()
        sweep(candidate_places(), groups=self.mechanisms.control_group)
        self._scratch = _make_scratch(scratch or self.mechanisms.place)
        self.scratch = self._scratch.path
        self._shared_memory = _make_shared_memory()
        self._views: dict[str, View] = {}
        self.left_out: list[str] = []  # of copies: what we could not read or make
        self._is_open = True
        self._lock = threading.Lock()
        self.ends: set[Callable[[], None]] = set()  # end what runs in our views
        self.mounts = read_mounts()
        self.layers: list[Layer] = []
        if self.mechanisms.overlay is not None:
            self.layers = plan_layers(
                self.mounts,
                whole_root=self.mechanisms.overlay == "root",
                folder=str(self.folder),
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def view(self, name: str) -> View:
        """Return a new view of the machine as it is.

        Args:
            name: unique among the open views; letters, digits and dashes.

        Raises:
            HarnessError: no space, or a name that is taken.
        """
        return self._add(View(self, self._new_place(name), name))

    def end_all(self) -> None:
        """End every attempt that still runs in a view of ours, and let none begin.

        A thread that carries out a trial would go on with its next attempt.
        """
        self._is_open = False
        for end in list(self.ends):
            end()

    def reopen(self) -> None:
        """Let attempts begin again: another campaign's."""
        self._is_open = True

    def demand_open(self) -> None:
        """Raise HarnessError if everything was ended."""
        if not self._is_open:
            raise HarnessError("the campaign was ended")

    def close(self) -> None:
        """End what runs and remove everything; never raises for what is gone already."""
        self.end_all()
        if self._shared_memory is not None:
            self._shared_memory.close()
        self._scratch.close()

    @property
    def limits(self) -> list[str]:
        """Sentences on what of the working folder is otherwise than outside."""
        found = [
            str(Path(layer.at) / name)
            for layer in self.layers
            if layer.how == "frame" and is_below(layer.at, str(self.folder))
            for name in layer.files
        ]
        found += [
            layer.at
            for layer in self.layers
            if layer.how == "readonly" and is_below(layer.at, str(self.folder))
        ]
        sentences = []
        # What the user may not write to either is no loss.
        found = [path for path in found if os.access(path, os.W_OK)]
        if found:
            sentences.append(f"read-only in attempts: {_few(found)}")
        if self.left_out:
            sentences.append(
                f"empty or absent in attempts, since this user cannot copy it:"
                f" {_few(self.left_out)}"
            )
        return sentences

    def demand_space(self) -> None:
        """Raise HarnessError if the disk that holds the views is all but full."""
        free = shutil.disk_usage(self.scratch).free
        if free < LEAST_FREE_BYTES:
            raise HarnessError(
                f"{free >> 20} MB are left on the disk of {str(self.scratch)!r}, "
                f"and private copies of what the program writes go there",
                hint="free some, or set TMPDIR to another disk",
            )

    def shared_memory_for(self, place: Path) -> Path:
        """Return a folder in memory, or on disk where there is none, for one view."""
        memory = self._shared_memory
        parent = self.scratch / "shm" if memory is None else memory.path
        folder = parent / place.name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def forget(self, view: View) -> None:
        """Let the name of a closed view be used again."""
        with self._lock:
            self._views.pop(view.name, None)

    def _new_place(self, name: str) -> Path:
        with self._lock:
            if name in self._views:
                raise HarnessError(f"there is a view {name!r} already")
        self.demand_open()
        self.demand_space()
        place = self.scratch / secrets.token_hex(3)
        place.mkdir()
        return place

    def _add(self, view: View) -> View:
        with self._lock:
            self._views[view.name] = view
        return view

    def add_copy(self, view: View, name: str) -> View:
        """Return a new view with everything that `view` holds."""
        place = self._new_place(name)
        place.rmdir()
        # The overlays' work folders are the kernel's own, and made again.
        own = [path.name for path in view.place.iterdir() if path.name[0] in "aw"]
        copy_tree(view.place, place, without=own, is_ours=True)
        shared = self.shared_memory_for(place)
        shared.rmdir()
        copy_tree(self.shared_memory_for(view.place), shared, is_ours=True)
        return self._add(View(self, place, name, like=view))


def _few(paths: Sequence[str]) -> str:
    more = len(paths) - 3
    return ", ".join(map(repr, paths[:3])) + (f" and {more} more" if more > 0 else "")


def _make_scratch(parent: Path | None) -> Scratch:
    trouble: OSError | None = None
    for place in [parent] if parent else candidate_places():
        try:
            return Scratch(place)
        except OSError as error:
            trouble = error
    full = trouble is not None and trouble.errno in (errno.ENOSPC, errno.EDQUOT)
    raise HarnessError(
        f"no place for private views: {trouble}",
        hint="free some space, or set TMPDIR to another disk"
        if full
        else "set TMPDIR to a writable folder",
    )


def _make_shared_memory() -> Scratch | None:
    try:
        if shutil.disk_usage(SHARED_MEMORY).free < ROOM_BYTES:
            return None  # what is enough for one run is not for several at a time

        return Scratch(SHARED_MEMORY)
    except OSError:
        return None
