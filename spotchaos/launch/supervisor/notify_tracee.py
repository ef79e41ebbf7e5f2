# pathlib costs the program 10 ms at its start, and this may run in its process.
# ruff: noqa: PTH115, PTH118, PTH123
"""Reach into a process that waits in a system call: its memory, descriptors and paths."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from typing import NamedTuple

from spotchaos.launch.supervisor.seccomp import LIBC, take_fd

AT_FDCWD = -100
_PAGE = 4096
_LINKS = 40  # as many as Linux follows in one path
_FORGET_AFTER = 5000  # look-ups; a thread's number can be used again by another process


class _Range(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class Place(NamedTuple):
    """A name in a folder, resolved as the process would resolve it.

    `folder` is an O_PATH descriptor that the holder closes; `canonical` is the folder's
    absolute path with no symbolic link in it. `name` may not exist.
    """

    folder: int
    canonical: str
    name: str

    @property
    def path(self) -> str:
        return os.path.join(self.canonical, self.name)

    def lstat(self) -> os.stat_result | None:
        """Return what lies there, itself and not what it points to; None if nothing."""
        try:
            return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        except OSError:
            return None


class Tracees:
    """Every process under the filter, looked at by the id of the thread that waits."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, int]] = {}
        self._lookups = 0

    def process_of(self, tid: int) -> int:
        """Return the process id of thread `tid`.

        Raises:
            OSError: the thread is gone.
        """
        return self._process(tid)[0]

    def take(self, tid: int, fd: int) -> int:
        """Copy descriptor `fd` of the process of `tid`; the caller closes the copy.

        Raises:
            OSError: EBADF, no such descriptor; ESRCH, the process is gone.
        """
        try:
            return take_fd(self._process(tid)[1], fd)
        except OSError as error:
            if error.errno != errno.ESRCH:
                raise
            self._forget(tid)
            return take_fd(self._process(tid)[1], fd)

    def seen(self) -> list[int]:
        """Return the process ids seen lately; some may be gone."""
        return sorted({process for process, _ in self._known.values()})

    def close(self) -> None:
        """Close what is kept open on processes."""
        for tid in list(self._known):
            self._forget(tid)

    def _process(self, tid: int) -> tuple[int, int]:
        self._lookups += 1
        if self._lookups > _FORGET_AFTER:
            self.close()
            self._lookups = 0
        known = self._known.get(tid)
        if known is None:
            process = _status_number(tid, b"Tgid:", 10)
            known = self._known[tid] = process, os.pidfd_open(process)
        return known

    def _forget(self, tid: int) -> None:
        os.close(self._known.pop(tid)[1])


def read_into(tid: int, segments: list[tuple[int, int]], target: int) -> int:
    """Copy the memory `segments` (address, bytes) of `tid` to our address `target`.

    Returns:
        Bytes copied; fewer than asked for where the process's memory ends.

    Raises:
        OSError: EFAULT, nothing could be read; ESRCH, the process is gone.
    """
    total = sum(length for _, length in segments)
    remote = (_Range * len(segments))(*(_Range(*one) for one in segments))
    local = _Range(target, total)
    got: int = LIBC.process_vm_readv(
        tid, ctypes.byref(local), 1, remote, len(segments), 0
    )
    if got < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return got


def read_memory(tid: int, address: int, length: int) -> bytes:
    """Return `length` bytes at `address` of `tid`, or fewer where its memory ends.

    Raises:
        OSError: as `read_into`.
    """
    buffer = ctypes.create_string_buffer(length)
    got = read_into(tid, [(address, length)], ctypes.addressof(buffer))
    return buffer.raw[:got]


def write_memory(tid: int, address: int, content: bytes) -> None:
    """Store `content` at `address` of `tid`.

    Raises:
        OSError: EFAULT or ESRCH.
    """
    buffer = ctypes.create_string_buffer(content, len(content))
    local, remote = (
        _Range(ctypes.addressof(buffer), len(content)),
        _Range(address, len(content)),
    )
    put = LIBC.process_vm_writev(
        tid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0
    )
    if put != len(content):
        raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))


def read_path(tid: int, address: int) -> str:
    """Return the path that `address` of `tid` points to.

    Raises:
        OSError: EFAULT, ESRCH, or ENAMETOOLONG.
    """
    found = b""
    while len(found) <= _PAGE:
        # Up to the end of the page: the next one may not exist.
        room = _PAGE - (address + len(found)) % _PAGE
        found += read_memory(tid, address + len(found), min(room, 256))
        head, end, _ = found.partition(b"\0")
        if end:
            return os.fsdecode(head)
    raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))


def read_vector(tid: int, address: int, count: int) -> list[tuple[int, int]]:
    """Return the `iovec` array of a writev: addresses and lengths, empty ones left out.

    Raises:
        OSError: EINVAL, more entries than Linux takes; EFAULT or ESRCH.
    """
    if not 0 <= count <= 1024:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    raw = read_memory(tid, address, 16 * count) if count else b""
    if len(raw) != 16 * count:
        raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
    return [pair for pair in struct.iter_unpack("=QQ", raw) if pair[1]]


def umask_of(tid: int) -> int:
    """Return the file mode mask of the process of `tid`.

    Raises:
        OSError: the process is gone.
    """
    return _status_number(tid, b"Umask:", 8)


def resolve(tid: int, dirfd: int, path: str, *, process: int, follow: bool) -> Place:
    """Resolve `path` as thread `tid` would, up to its last name.

    Args:
        tid: the thread; it waits, so that its folder cannot change meanwhile.
        dirfd: the folder that a relative path starts from, or `AT_FDCWD`.
        path: as the thread gave it.
        process: the process of the thread, for paths through /proc/self.
        follow: also follow the last name, if it is a symbolic link.

    Raises:
        OSError: as the kernel would answer, ENOENT or ENOTDIR most often.
    """
    base = f"/proc/{tid}/cwd" if dirfd == AT_FDCWD else f"/proc/{tid}/fd/{dirfd}"
    for _ in range(_LINKS):
        if path == "":
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        path = _own_proc(path, tid, process)
        head, name = os.path.split(path.rstrip("/"))
        if path.startswith("/"):
            base = f"/proc/{tid}/root"
        if name in ("", ".", ".."):
            # Such a name is a folder that exists: nothing can be created there.
            head, name = os.path.join(head, name), "."
        folder = os.open(f"{base}/{head}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        place = Place(folder, os.readlink(f"/proc/self/fd/{folder}"), name)
        if not follow or is_descriptor(place):
            return place
        found = place.lstat()
        if found is None or not stat.S_ISLNK(found.st_mode):
            return place
        path = os.readlink(name, dir_fd=folder)
        base = f"/proc/self/fd/{folder}"
        if path.startswith("/"):
            os.close(folder)
        else:
            # Kept as text: the descriptor is closed before the next turn.
            base = place.canonical
            os.close(folder)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def is_descriptor(place: Place) -> bool:
    """Tell whether the place is a descriptor under /proc, not a name on a disk."""
    head, last = os.path.split(place.canonical)
    return last == "fd" and head.startswith("/proc/") and place.name.isdigit()


def _own_proc(path: str, tid: int, process: int) -> str:
    for mine, theirs in (
        ("/proc/self/", f"/proc/{process}/"),
        ("/proc/thread-self/", f"/proc/{process}/task/{tid}/"),
        ("/dev/fd/", f"/proc/{process}/fd/"),
    ):
        if path.startswith(mine):
            return theirs + path[len(mine) :]
    return path


def _status_number(tid: int, field: bytes, base: int) -> int:
    with open(f"/proc/{tid}/status", "rb", buffering=0) as status:
        text = status.read(4096)
    start = text.index(field) + len(field)
    return int(text[start : text.index(b"\n", start)], base)
