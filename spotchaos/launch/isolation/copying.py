"""Copies of trees that keep what matters to a program: links, modes, times, attributes.

Blocks are shared where the file system can (reflink), so that a copy of gigabytes costs
nothing there; elsewhere the caller bounds the size.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import shutil
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from spotchaos.errors import HarnessError
from spotchaos.launch.isolation.capabilities import held_here
from spotchaos.launch.isolation.scratch import PREFIX

FICLONE = 0x40049409  # ioctl_ficlone(2)


def is_whiteout(status: os.stat_result) -> bool:
    """Tell whether overlayfs would read this file as "deleted" (kernel: overlayfs.rst)."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def copy_tree(
    source: Path,
    target: Path,
    *,
    limit_bytes: int | None = None,
    without: Collection[str] = (),
    is_ours: bool = False,
) -> list[Path]:
    """Copy a tree with everything in it; hard links within it stay hard links.

    What we may not read or make is there without its content, or absent: so that a
    program fails where it would, and nowhere else.

    Args:
        source: a folder, or a file.
        target: it must not exist.
        limit_bytes: of all files together, where blocks cannot be shared.
        without: names in the folder itself that are left out.
        is_ours: folders of it that we may not list are opened meanwhile.

    Returns:
        What of the source could not be copied.

    Raises:
        HarnessError: it is larger than the limit, or the disk is full.
    """
    # Where scratch lies below what is copied, it is left out.
    own = [one for one in target.parents if one.name.startswith(PREFIX)]
    copy = _Copy(limit_bytes, is_ours=is_ours, own=[*own, target.parent])
    try:
        if source.is_dir() and not source.is_symlink():
            copy.folder(source, target, without)
        else:
            copy.one(source, target, source.lstat())
        return copy.left_out
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise HarnessError(
                f"no space left to copy {str(source)!r} to {str(target)!r}",
                hint="set TMPDIR to a disk with more space",
            ) from error
        raise


def size_to_copy(path: Path, limit_bytes: int, limit_files: int = 500) -> int | None:
    """Return the bytes of a file or folder that can be copied just as it is.

    Returns:
        None if it is larger than wanted, or holds what we may not read, do not own, or
        cannot make.
    """
    size, count, waiting = 0, 0, [path]
    try:
        while waiting:
            status = (one := waiting.pop()).lstat()
            count += 1
            size += status.st_size if stat.S_ISREG(status.st_mode) else 0
            is_made = status.st_uid == os.geteuid() or _gives_away()
            if stat.S_ISDIR(status.st_mode):
                waiting += list(one.iterdir())
            elif stat.S_ISREG(status.st_mode):
                is_made &= os.access(one, os.R_OK)
            else:
                is_made &= stat.S_ISLNK(status.st_mode) or stat.S_ISFIFO(status.st_mode)
            if not is_made or size > limit_bytes or count > limit_files:
                return None
    except OSError:
        return None
    return size


@functools.cache
def _gives_away() -> bool:
    """Tell whether we can make files that are somebody else's: as root of the machine."""
    whole = Path("/proc/self/uid_map").read_text().split()[-1:] == ["4294967295"]
    return os.geteuid() == 0 and whole and bool(held_here() & 1)  # CAP_CHOWN


@contextlib.contextmanager
def opened(path: Path) -> Iterator[None]:
    """Let us read and change a file or folder that is ours, whatever its mode is."""
    status = path.lstat()
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o700 == 0o700 or status.st_uid != os.geteuid():
        yield
        return
    path.chmod(mode | 0o700)
    try:
        yield
    finally:
        path.chmod(mode)


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
    def __init__(
        self,
        limit_bytes: int | None,
        *,
        is_ours: bool,
        own: Collection[Path],
    ) -> None:
        self._own = {(one.stat().st_dev, one.stat().st_ino) for one in own}
        self._limit = limit_bytes
        self._is_ours = is_ours
        self._copied = 0
        self._links: dict[tuple[int, int], Path] = {}
        self.left_out: list[Path] = []

    def folder(self, source: Path, target: Path, without: Collection[str] = ()) -> None:
        target.mkdir()
        with opened(source) if self._is_ours else contextlib.nullcontext():
            try:
                entries = [e for e in os.scandir(source) if e.name not in without]
            except PermissionError:
                self._stand_in(source, target)
                return
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                    self._entry(Path(entry.path), target / entry.name, status)
                except FileNotFoundError:  # somebody removed it meanwhile
                    continue
                except PermissionError:
                    self.left_out.append(Path(entry.path))
        copy_metadata(source, target)

    def _entry(self, source: Path, inner: Path, status: os.stat_result) -> None:
        if stat.S_ISDIR(status.st_mode):
            if (status.st_dev, status.st_ino) not in self._own:
                self.folder(source, inner)
        elif status.st_nlink > 1 and (key := (status.st_dev, status.st_ino)):
            if key in self._links:
                os.link(self._links[key], inner, follow_symlinks=False)
            else:
                self.one(source, inner, status)
                self._links[key] = inner
        else:
            self.one(source, inner, status)

    def one(self, source: Path, target: Path, status: os.stat_result) -> None:
        """Copy anything but a folder; sockets are left out."""
        if stat.S_ISLNK(status.st_mode):
            target.symlink_to(source.readlink())
        elif stat.S_ISREG(status.st_mode):
            try:
                with opened(source) if self._is_ours else contextlib.nullcontext():
                    self._content(source, target, status.st_size)
            except PermissionError:
                target.touch()
                self._stand_in(source, target)
                return
        elif stat.S_ISSOCK(status.st_mode):
            return
        else:
            os.mknod(target, status.st_mode, status.st_rdev)
        copy_metadata(source, target)

    def _stand_in(self, source: Path, target: Path) -> None:
        """Let us do with an empty target no more than what we may do with the source."""
        self.left_out.append(source)
        ways = ((os.R_OK, 0o444), (os.W_OK, 0o222), (os.X_OK, 0o111))
        target.chmod(sum(mode for way, mode in ways if os.access(source, way)))

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
        # Not every root may: in a user namespace, or without its rights.
        with contextlib.suppress(OSError):
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
