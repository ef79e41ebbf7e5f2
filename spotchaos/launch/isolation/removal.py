"""Removing a tree of ours, and changing nothing above, beside or outside of it.

Programs leave anything in a tree: folders without permissions, thousands of levels, links
to the user's files. And the tree may be looked at or changed by others meanwhile. So each
name is looked up in an open folder, never by a path; a link is removed and not followed;
what is mounted below stays as it is, with the folders that lead to it.

Standard library only: the cleaner loads this file by its path.
"""

# Paths here are handed to system calls as they are.
# ruff: noqa: PTH101, PTH123, PTH208

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import stat
from collections.abc import Callable, Iterator

# One descriptor is open for each level; deeper folders are moved up first.
DEEPEST = 16
_PATH_ONLY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TO_READ = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: str) -> bool:
    """Remove a folder or file of ours, whatever lies in it.

    Only what lies within gets other permissions, where it could not be removed without.

    Returns:
        Whether nothing is left of it; what cannot be removed stays.
    """
    parent, name = os.path.split(path.rstrip("/"))
    try:
        above = os.open(parent or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        kind = os.stat(name, dir_fd=above, follow_symlinks=False).st_mode
        if stat.S_ISDIR(kind):
            with _opened(name, above) as top:
                left = None  # what was moved to the top from below is looked at again
                while (now := os.listdir(top)) != left:
                    _empty(top, top=top, mount=_mount_of(top), depth=0)
                    left = now
            os.rmdir(name, dir_fd=above)
        else:
            os.unlink(name, dir_fd=above)
        return True
    except FileNotFoundError:
        return True
    except OSError:
        return False
    finally:
        os.close(above)


def _empty(folder: int, *, top: int, mount: str, depth: int) -> None:
    """Remove what lies in an open folder, as far as that can be done.

    Args:
        folder: descriptor of it.
        top: descriptor of the whole tree.
        mount: that the tree lies on.
        depth: of the folder below the top.
    """
    with os.scandir(folder) as entries:
        found = [(e.name, e.is_dir(follow_symlinks=False)) for e in entries]
    for name, is_folder in found:
        with contextlib.suppress(OSError):
            if not is_folder:
                _allowed(folder, functools.partial(os.unlink, name, dir_fd=folder))
            elif depth == DEEPEST:
                _move_up(name, folder, top)
            else:
                with _opened(name, folder) as inner:
                    if _mount_of(inner) == mount:
                        _empty(inner, top=top, mount=mount, depth=depth + 1)
                _allowed(folder, functools.partial(os.rmdir, name, dir_fd=folder))


def _move_up(name: str, folder: int, top: int) -> None:
    """Move a deep folder to the top of the tree, which is emptied once more."""
    with _opened(name, folder):  # it gets permissions: to move it changes its ".."
        new = f"deep-{secrets.token_hex(8)}"
        _allowed(
            folder, lambda: os.replace(name, new, src_dir_fd=folder, dst_dir_fd=top)
        )


def _allowed(folder: int, action: Callable[[], object]) -> None:
    """Do something in a folder of the tree; where its mode forbids it, change that."""
    try:
        action()
    except PermissionError:
        os.chmod(f"/proc/self/fd/{folder}", stat.S_IRWXU)
        action()


@contextlib.contextmanager
def _opened(name: str, above: int) -> Iterator[int]:
    """Open a folder of the tree to read it, if need be with a mode that allows it.

    Raises:
        OSError: it is a link, or gone, or somebody else's.
    """
    place = os.open(name, _PATH_ONLY, dir_fd=above)
    try:
        try:
            folder = os.open(".", _TO_READ, dir_fd=place)
        except PermissionError:
            os.chmod(f"/proc/self/fd/{place}", stat.S_IRWXU)  # this one, by no name
            folder = os.open(".", _TO_READ, dir_fd=place)
    finally:
        os.close(place)
    try:
        yield folder
    finally:
        os.close(folder)


def _mount_of(descriptor: int) -> str:
    """Return the number of the mount that an open folder lies on; empty: unknown."""
    with contextlib.suppress(OSError), open(f"/proc/self/fdinfo/{descriptor}") as file:
        return next((line for line in file if line.startswith("mnt_id:")), "")
    return str(os.fstat(descriptor).st_dev)
