"""The kernel's side of supervision: system call numbers, the filter, the listener.

Everything here is plain ctypes on libc: no package, no compiler, no root. It runs on
Python 3.9 and newer, since it may be loaded by the program's own interpreter.

Source: seccomp(2), seccomp_unotify(2), include/uapi/linux/seccomp.h; Linux 5.14 for
the atomic descriptor injection, 5.19 for the wait that only a fatal signal ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import struct
from collections.abc import Callable
from typing import NamedTuple

LIBC = ctypes.CDLL(None, use_errno=True)

X86_64 = {
    "open": 2, "openat": 257, "openat2": 437, "creat": 85,
    "write": 1, "pwrite64": 18, "writev": 20, "pwritev": 296, "pwritev2": 328,
    "sendfile": 40, "copy_file_range": 326, "splice": 275,
    "rename": 82, "renameat": 264, "renameat2": 316,
    "link": 86, "linkat": 265, "symlink": 88, "symlinkat": 266,
    "unlink": 87, "unlinkat": 263, "rmdir": 84,
    "mkdir": 83, "mkdirat": 258, "mknod": 133, "mknodat": 259,
    "chmod": 90, "fchmod": 91, "fchmodat": 268,
    "truncate": 76, "ftruncate": 77, "fallocate": 285,
    "fsync": 74, "fdatasync": 75, "sync": 162, "syncfs": 306,
    "msync": 26, "mmap": 9, "ioctl": 16,
    "io_setup": 206, "io_uring_setup": 425,
    "stat": 4, "lstat": 6, "newfstatat": 262, "statx": 332,
    "access": 21, "faccessat": 269, "faccessat2": 439,
    "readlink": 89, "readlinkat": 267,
    "seccomp": 317, "pidfd_getfd": 438,
    "process_vm_readv": 310, "process_vm_writev": 311,
}  # fmt: skip
AARCH64 = {
    "openat": 56, "openat2": 437,
    "write": 64, "pwrite64": 68, "writev": 66, "pwritev": 70, "pwritev2": 287,
    "sendfile": 71, "copy_file_range": 285, "splice": 76,
    "renameat": 38, "renameat2": 276, "linkat": 37, "symlinkat": 36,
    "unlinkat": 35, "mkdirat": 34, "mknodat": 33,
    "fchmod": 52, "fchmodat": 53,
    "truncate": 45, "ftruncate": 46, "fallocate": 47,
    "fsync": 82, "fdatasync": 83, "sync": 81, "syncfs": 267,
    "msync": 227, "mmap": 222, "ioctl": 29,
    "io_setup": 0, "io_uring_setup": 425,
    "newfstatat": 79, "statx": 291, "faccessat": 48, "faccessat2": 439,
    "readlinkat": 78,
    "seccomp": 277, "pidfd_getfd": 438,
    "process_vm_readv": 270, "process_vm_writev": 271,
}  # fmt: skip
MACHINES = {"x86_64": (X86_64, 0xC000003E), "aarch64": (AARCH64, 0xC00000B7)}

# Always asked about: they change names, sizes or durability, and are rare.
_ALWAYS = (
    "openat2", "creat", "pwrite64", "pwritev", "pwritev2", "copy_file_range",
    "rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat",
    "unlink", "unlinkat", "rmdir", "mkdir", "mkdirat", "mknod", "mknodat",
    "chmod", "fchmod", "fchmodat",
    "truncate", "ftruncate", "fallocate", "fsync", "fdatasync", "sync", "syncfs",
    "msync", "sendfile", "splice",
)  # fmt: skip
# Questions about the disk; asked about only when a resume's reads are observed.
QUESTIONS = (
    "stat", "lstat", "newfstatat", "statx", "access", "faccessat", "faccessat2",
    "readlink", "readlinkat",
)  # fmt: skip

_RET_ALLOW, _RET_NOTIFY, _RET_ERRNO = 0x7FFF0000, 0x7FC00000, 0x00050000
_LD, _JEQ, _JGT, _JGE, _JSET, _RET = 0x20, 0x15, 0x25, 0x35, 0x45, 0x06
_FICLONE, _FICLONERANGE = 0x40049409, 0x4020940D
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_MAP_SHARED = 1  # a bit of MAP_SHARED and of MAP_SHARED_VALIDATE, not of MAP_PRIVATE

_NEW_LISTENER, _WAIT_KILLABLE = 1 << 3, 1 << 5
_RECV, _SEND, _ID_VALID, _ADDFD = 0xC0502100, 0xC0182101, 0x40082102, 0x40182103
_SET_FLAGS = 0x40082104
_ADDFD_SEND, _CONTINUE = 2, 1


class Request(NamedTuple):
    """One system call that waits for an answer."""

    id: int
    tid: int  # in the supervisor's PID namespace
    name: str
    args: tuple[int, ...]


class SeccompError(OSError):
    """The kernel refused a listener, or a call on it."""


def numbers(machine: str | None = None) -> dict[str, int]:
    """Return name -> number of the system calls used here.

    Args:
        machine: as `platform.machine()` says it; None for this machine's.

    Raises:
        SeccompError: the machine is neither x86-64 nor aarch64.
    """
    return _machine(machine)[0]


def filter_program(*, observe_reads: bool = False, machine: str | None = None) -> bytes:
    """Assemble the filter: which system calls stop and ask.

    The filter looks at flags where they are in a register, so that reading, `stat` and
    private mappings cost nothing. io_uring and native AIO are answered with ENOSYS and
    reflinks with EOPNOTSUPP, so that programs fall back to calls that can be seen.

    Args:
        observe_reads: also ask about read-only opens and about questions such as stat.
        machine: as `platform.machine()` says it; None for this machine's.
    """
    table, audit = _machine(machine)
    code = [
        (_LD, 0, 0, 4),
        (_JEQ, 1, 0, audit),
        (_RET, 0, 0, _RET_ALLOW),
        (_LD, 0, 0, 0),
    ]
    if audit == MACHINES["x86_64"][1]:
        # The x32 numbers share the architecture's tag; no torch runs on them.
        code += [(_JGE, 0, 1, 0x40000000), (_RET, 0, 0, _RET_ALLOW)]

    def on(name: str, *body: tuple[int, int, int, int]) -> None:
        if name in table:
            code.append((_JEQ, 0, len(body), table[name]))
            code.extend(body)

    notify, allow = (_RET, 0, 0, _RET_NOTIFY), (_RET, 0, 0, _RET_ALLOW)
    for name in ("write", "writev"):
        # Descriptor 1 may carry what the outside world sees; 0 and 2 never hold a save.
        on(name, _arg(0), (_JGT, 1, 0, 2), (_JEQ, 0, 1, 1), notify, allow)
    for name, flags in (("open", 1), ("openat", 2)):
        if observe_reads:
            on(name, notify)
        else:
            on(name, _arg(flags), (_JSET, 0, 1, _WRITE_FLAGS), notify, allow)
    on(
        "mmap",
        _arg(3), (_JSET, 0, 3, _MAP_SHARED),
        _arg(4), (_JEQ, 1, 0, 0xFFFFFFFF), notify, allow,
    )  # fmt: skip
    refused = (_RET, 0, 0, _RET_ERRNO | errno.EOPNOTSUPP)
    on(
        "ioctl",
        _arg(1),
        (_JEQ, 1, 0, _FICLONE),
        (_JEQ, 0, 1, _FICLONERANGE),
        refused,
        allow,
    )
    for name in ("io_setup", "io_uring_setup"):
        on(name, (_RET, 0, 0, _RET_ERRNO | errno.ENOSYS))
    for name in _ALWAYS + (QUESTIONS if observe_reads else ()):
        on(name, notify)
    code.append(allow)
    return b"".join(struct.pack("=HBBI", *one) for one in code)


def install_filter(*, observe_reads: bool = False) -> int:
    """Put this process, and all it will start, under a filter; return the listener.

    To be called between fork and exec, in a process of one thread. Until somebody
    serves the listener, every call that the filter asks about blocks: pass it on first.

    Returns:
        A descriptor (close-on-exec) for `Listener`.

    Raises:
        SeccompError: EBUSY where another listener is installed already, EINVAL or
            ENOSYS where the kernel is too old or a sandbox forbids it. The process is
            unchanged, save that it may have lost the right to gain privileges.
    """
    raw = filter_program(observe_reads=observe_reads)
    buffer = ctypes.create_string_buffer(raw, len(raw))
    program = ctypes.create_string_buffer(
        struct.pack("@HxxxxxxP", len(raw) // 8, ctypes.addressof(buffer))
    )
    code = errno.EINVAL
    for flags in (_NEW_LISTENER | _WAIT_KILLABLE, _NEW_LISTENER):
        for give_up_privileges in (False, True):
            # Asked first without: setuid helpers go on working where we may.
            if give_up_privileges:
                LIBC.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
            fd = LIBC.syscall(numbers()["seccomp"], 1, flags, program)
            if fd >= 0:
                return int(fd)
            code = ctypes.get_errno()
            if code != errno.EACCES:
                break
        if code != errno.EINVAL:
            break
    raise SeccompError(
        code, f"the kernel refuses a seccomp listener: {os.strerror(code)}"
    )


class Listener:
    """The supervisor's end: receives requests and answers them.

    Args:
        fd: what `install_filter` returned, however it came here. Owned from now on.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._names = {number: name for name, number in numbers().items()}
        self._request = bytearray(80)
        # From Linux 6.6 on: asker and answerer take turns on one CPU, which shortens the
        # way there and back. Older kernels refuse it, and nothing is lost.
        with contextlib.suppress(OSError):
            fcntl.ioctl(fd, _SET_FLAGS, 1)

    def receive(self) -> Request | None:
        """Return the next request, or None if its process died meanwhile."""
        self._request[:] = bytes(80)
        try:
            fcntl.ioctl(self.fd, _RECV, self._request)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINTR):
                return None
            raise
        ident, tid, _, number, _, _, *args = struct.unpack("=QIIiIQ6Q", self._request)
        return Request(ident, tid, self._names.get(number, str(number)), tuple(args))

    def is_waiting(self, request: Request) -> bool:
        """Tell whether the process still waits: it may have been killed meanwhile."""
        try:
            fcntl.ioctl(self.fd, _ID_VALID, struct.pack("=Q", request.id))
        except OSError:
            return False
        return True

    def proceed(self, request: Request) -> None:
        """Let the kernel carry the call out as if nobody had asked."""
        self._send(struct.pack("=QqiI", request.id, 0, 0, _CONTINUE))

    def answer(self, request: Request, result: int) -> None:
        """Return `result` from the call: 0 or more, or a negated errno."""
        value, error = (result, 0) if result >= 0 else (0, result)
        self._send(struct.pack("=QqiI", request.id, value, error, 0))

    def hand_over(self, request: Request, fd: int, *, cloexec: bool) -> None:
        """Give the process a copy of our `fd`, and return its number from the call."""
        flags = os.O_CLOEXEC if cloexec else 0
        order = struct.pack("=QIIII", request.id, _ADDFD_SEND, fd, 0, flags)
        try:
            fcntl.ioctl(self.fd, _ADDFD, order)
        except OSError as error:
            if error.errno != errno.ENOENT:
                self.answer(request, -(error.errno or errno.EIO))

    def _send(self, response: bytes) -> None:
        try:
            fcntl.ioctl(self.fd, _SEND, response)
        except OSError as error:
            # ENOENT: the process was killed while we worked for it.
            if error.errno != errno.ENOENT:
                raise


def take_fd(pidfd: int, fd: int) -> int:
    """Copy descriptor `fd` of another process; it shares the file offset.

    Raises:
        OSError: EBADF, no such descriptor; ESRCH, the process is gone; EPERM.
    """
    got: int = LIBC.syscall(numbers()["pidfd_getfd"], pidfd, fd, 0)
    if got < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return got


def on_behalf(call: Callable[[], int]) -> int:
    """Return what `call` returns, or the negated errno of the OSError it raises."""
    try:
        return call()
    except OSError as error:
        return -(error.errno or errno.EIO)


def _machine(machine: str | None) -> tuple[dict[str, int], int]:
    name = machine or platform.machine()
    try:
        return MACHINES[name]
    except KeyError:
        raise SeccompError(
            errno.ENOSYS, f"no system call numbers for {name!r}"
        ) from None


def _arg(index: int) -> tuple[int, int, int, int]:
    # The low half of argument `index`; both machines are little-endian.
    return (_LD, 0, 0, 16 + 8 * index)
