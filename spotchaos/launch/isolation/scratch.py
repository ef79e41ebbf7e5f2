"""Scratch folders on this machine: whose they are is plain at every moment.

Beside each folder `spotchaos-TOKEN` lies its lock, `.spotchaos-TOKEN.lock`: made and
locked before the folder, and removed after it. So a folder whose lock can be taken has no
owner any more, and one without a lock beside it is none of ours. The kernel lets go of a
lock when its owners are dead (the harness and its cleaner), in whatever namespaces they
were.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from spotchaos.launch.isolation import places
from spotchaos.launch.isolation.leaving import LEAVING
from spotchaos.launch.isolation.removal import remove_tree

PREFIX = "spotchaos-"
SHARED_MEMORY = Path("/dev/shm")
_LOCK_NAME = re.compile(rf"\.({PREFIX}[0-9a-f]{{8}})\.lock")
_OPEN_LOCK = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Scratch:
    """A new folder of ours, removed by `close`, by our cleaner, or by a later run.

    Args:
        parent: where it is made.

    Raises:
        OSError: it cannot be made there.
    """

    def __init__(self, parent: Path) -> None:
        parent = parent.resolve()
        if parent != SHARED_MEMORY:  # where each run looks
            places.add(parent)
        while True:
            self.path = parent / f"{PREFIX}{secrets.token_hex(4)}"
            self._lock_path = lock_of(self.path)
            LEAVING.keep(self.path)
            LEAVING.keep(self._lock_path)
            try:
                self._lock = _new_lock(self._lock_path)
            except OSError:
                self._forget()
                raise
            if _is_at(self._lock, self._lock_path):
                break
            os.close(self._lock)  # a sweep took it before it was locked
            self._forget()
        LEAVING.hold(self._lock_path, self._lock)
        self._is_closed = False
        try:
            self.path.mkdir(mode=0o700)
        except OSError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove it; what cannot be removed now is left to the cleaner or a later run."""
        if self._is_closed:
            return
        self._is_closed = True
        if remove_tree(str(self.path)):
            self._lock_path.unlink(missing_ok=True)
            self._forget()
        os.close(self._lock)

    def _forget(self) -> None:
        LEAVING.forget(self.path)
        LEAVING.forget(self._lock_path)


def lock_of(folder: Path) -> Path:
    """Return where the lock of a scratch folder lies."""
    return folder.with_name(f".{folder.name}.lock")


def sweep(parents: Iterable[Path], *, groups: Path | None = None) -> None:
    """Remove scratch whose owners died without doing so, and nothing else.

    Args:
        parents: where to look, besides all places of this user's earlier runs and the
            shared memory.
        groups: the control group below which attempts had theirs.
    """
    for parent in dict.fromkeys([*parents, *places.known(), SHARED_MEMORY]):
        with contextlib.suppress(OSError):
            for entry in parent.iterdir():
                found = _LOCK_NAME.fullmatch(entry.name)
                if found is not None:
                    with contextlib.suppress(OSError):
                        _sweep_one(parent / found[1], groups)


def _sweep_one(folder: Path, groups: Path | None) -> None:
    lock_path = lock_of(folder)
    lock = os.open(lock_path, _OPEN_LOCK)
    try:
        status = os.fstat(lock)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            return
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_at(lock, lock_path):
            return
        if groups is not None:
            for group in groups.glob(f"{folder.name}-*"):
                group.rmdir()
        if not os.path.lexists(folder) or (
            folder.lstat().st_uid == os.geteuid() and remove_tree(str(folder))
        ):
            lock_path.unlink()
    finally:
        os.close(lock)


def _new_lock(path: Path) -> int:
    lock = os.open(path, _OPEN_LOCK | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError:
        os.close(lock)
        path.unlink(missing_ok=True)
        raise
    return lock


def _is_at(lock: int, path: Path) -> bool:
    """Tell whether a lock is still the file of that name."""
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(lock), path.lstat())
    return False
