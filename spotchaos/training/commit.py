"""Put bytes on a disk so that a crash leaves the old file or the new one, never a mix.

Every write of a checkpoint goes through this module. What it does not do is choose: a
place that refuses to rename is reported to the caller, who knows whether a manifest that
is written last can stand in for the rename.
"""

from __future__ import annotations

import errno
import os
import stat
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from spotchaos.errors import CheckpointError

PARTIAL = ".partial"

# What file systems answer when they have no atomic rename: bucket mounts, FUSE, EXDEV.
_REFUSALS = frozenset(
    {errno.EXDEV, errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
)


class RenameRefusedError(CheckpointError):
    """The place does not rename, so nothing can be replaced there atomically."""


def commit(content: bytes | Callable[[BinaryIO], None], path: Path) -> None:
    """Replace `path` by `content`, atomically and durably.

    Four file ops, in this order: write a sibling, fsync it, rename it over `path`,
    fsync the folder. The rename is the commit point: a reader before it finds the
    previous file whole, a reader after it the new one. Mode and owner of a file that is
    replaced are kept.

    Args:
        content: the bytes, or a function that writes them to an open file.
        path: its final name. The folder must exist.

    Raises:
        RenameRefusedError: the place does not rename; `path` is untouched.
        OSError: the disk is full or the folder is gone. Up to the rename, `path` is
            untouched and the sibling is removed; from it on, `path` holds the new bytes
            but a power loss could still undo the rename.

    Source:
        Pillai et al., "All File Systems Are Not Created Equal", OSDI 2014.
    """
    sibling = path.with_name(
        f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}{PARTIAL}"
    )
    try:
        write_durably(content, sibling, like=path)
        _rename(sibling, path)
    except BaseException:
        # Not only Exception: a Ctrl-C in the write must leave no litter either.
        sibling.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_durably(
    content: bytes | Callable[[BinaryIO], None], path: Path, *, like: Path | None = None
) -> None:
    """Write a new file and fsync it; its name is durable only after `sync_folder`.

    Args:
        content: the bytes, or a function that writes them to an open file.
        path: a name that does not exist yet.
        like: a file whose mode and owner the new one takes, if it exists.

    Raises:
        FileExistsError: `path` exists: nothing is ever overwritten in place.
    """
    # 0o666 lets the umask decide, as it does for every other file of the user's.
    descriptor = os.open(
        path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666
    )
    with os.fdopen(descriptor, "wb") as file:
        if like is not None:
            _take_after(file.fileno(), like)
        if isinstance(content, bytes):
            file.write(content)
        else:
            content(file)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable; does nothing where folders cannot be synced."""
    descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Bucket mounts have no folders to sync; any other answer is a real error.
        if error.errno not in {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS}:
            raise
    finally:
        os.close(descriptor)


def sweep(folder: Path) -> list[Path]:
    """Remove what interrupted commits left in `folder`, and say what was removed.

    Call it only where no other process is committing: at the start, by rank 0.
    """
    swept = []
    for leftover in sorted(folder.glob(f".*{PARTIAL}")):
        if leftover.is_file():
            leftover.unlink(missing_ok=True)
            swept.append(leftover)
    return swept


def _rename(sibling: Path, path: Path) -> None:
    try:
        sibling.replace(path)
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise
        raise RenameRefusedError(
            f"{path.parent} does not rename files ({error.strerror})",
            hint="name the store by its URL, or put checkpoints on a local disk",
        ) from error


def _take_after(descriptor: int, like: Path) -> None:
    try:
        old = like.stat()
    except FileNotFoundError:
        return
    try:
        os.fchmod(descriptor, stat.S_IMODE(old.st_mode))
        if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
            os.fchown(descriptor, old.st_uid, old.st_gid)
    except OSError as error:
        warnings.warn(
            f"{like} keeps neither mode nor owner: {error.strerror}", stacklevel=4
        )
