"""Copies of trees that keep what matters to a program: links, modes, times, attributes.

Blocks are shared where the file system can (reflink), so that a copy of gigabytes costs
nothing there; elsewhere the caller bounds the size.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from spotchaos.errors import HarnessError

FICLONE = 0x40049409  # ioctl_ficlone(2)


def is_whiteout(status: os.stat_result) -> bool:
    """Tell whether overlayfs would read this file as "deleted" (kernel: overlayfs.rst)."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def copy_tree(source: Path, target: Path, *, limit_bytes: int | None = None) -> None:
    """Copy a tree with everything in it; hard links within it stay hard links.

    Args:
        source: a folder.
        target: it must not exist.
        limit_bytes: of all files together, where blocks cannot be shared.

    Raises:
        HarnessError: it is larger than the limit, or the disk is full.
    """
    try:
        _Copy(limit_bytes).folder(source, target)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise HarnessError(
                f"no space left to copy {str(source)!r} to {str(target)!r}",
                hint="set TMPDIR to a disk with more space",
            ) from error
        raise


def tree_size(folder: Path, *, stop_at_bytes: int, stop_at_files: int) -> int | None:
    """Return the bytes of all files below; None if it is more than we want to know."""
    size = 0
    for count, entry in enumerate(walk(folder), 1):
        if entry.is_file(follow_symlinks=False):
            size += entry.stat(follow_symlinks=False).st_size
        if size > stop_at_bytes or count > stop_at_files:
            return None
    return size


def walk(folder: Path | str) -> Iterator[os.DirEntry[str]]:
    """Yield everything below a folder, folders before their content."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        yield entry
        if entry.is_dir(follow_symlinks=False):
            yield from walk(entry.path)


class _Copy:
    def __init__(self, limit_bytes: int | None) -> None:
        self._limit = limit_bytes
        self._copied = 0
        self._links: dict[tuple[int, int], Path] = {}

    def folder(self, source: Path, target: Path) -> None:
        target.mkdir()
        for entry in list(os.scandir(source)):
            status = entry.stat(follow_symlinks=False)
            inner = target / entry.name
            if stat.S_ISDIR(status.st_mode):
                self.folder(Path(entry.path), inner)
            elif status.st_nlink > 1 and (key := (status.st_dev, status.st_ino)):
                if key in self._links:
                    os.link(self._links[key], inner, follow_symlinks=False)
                else:
                    self.one(Path(entry.path), inner, status)
                    self._links[key] = inner
            else:
                self.one(Path(entry.path), inner, status)
        copy_metadata(source, target)

    def one(self, source: Path, target: Path, status: os.stat_result) -> None:
        """Copy anything but a folder; sockets are left out."""
        if stat.S_ISLNK(status.st_mode):
            target.symlink_to(source.readlink())
        elif stat.S_ISREG(status.st_mode):
            self._content(source, target, status.st_size)
        elif stat.S_ISSOCK(status.st_mode):
            return
        else:
            os.mknod(target, status.st_mode, status.st_rdev)
        copy_metadata(source, target)

    def _content(self, source: Path, target: Path, size: int) -> None:
        with source.open("rb") as reader, target.open("xb") as writer:
            try:
                fcntl.ioctl(writer, FICLONE, reader.fileno())
            except OSError:
                self._copied += size
                if self._limit is not None and self._copied > self._limit:
                    raise HarnessError(
                        f"a private copy of the working folder would take more than "
                        f"{self._limit / 1e9:.1f} GB",
                        hint="run from a smaller folder, or where user namespaces with "
                        "overlayfs are allowed; see `spotchaos doctor`",
                    ) from None
                shutil.copyfileobj(reader, writer, 1 << 20)


def copy_metadata(source: Path, target: Path) -> None:
    """Give `target` the owner, attributes, mode and times of `source`, as far as we may."""
    status = source.lstat()
    if os.geteuid() == 0:
        os.chown(target, status.st_uid, status.st_gid, follow_symlinks=False)
    try:
        for name in os.listxattr(source, follow_symlinks=False):
            value = os.getxattr(source, name, follow_symlinks=False)
            os.setxattr(target, name, value, follow_symlinks=False)
    except OSError:  # not every file system has them, and some are the kernel's own
        pass
    if not stat.S_ISLNK(status.st_mode):
        target.chmod(stat.S_IMODE(status.st_mode))
    times = (status.st_atime_ns, status.st_mtime_ns)
    os.utime(target, ns=times, follow_symlinks=False)
