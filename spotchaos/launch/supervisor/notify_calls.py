# pathlib costs the program 10 ms at its start, and this may run in its process.
# ruff: noqa: PTH115, PTH116
"""Carry out the calls that change names or modes: open, rename, link, mkdir and so on.

Each function takes a request and returns the job that it asks for, or None where the
kernel may go on alone: nothing watched is concerned, or the call will fail anyway. An
OSError from preparing means the same.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Callable
from typing import Any

from spotchaos.launch.supervisor.notify_jobs import Context, Job, places
from spotchaos.launch.supervisor.notify_tracee import (
    AT_FDCWD,
    Place,
    is_descriptor,
    read_memory,
    read_path,
    resolve,
    umask_of,
)
from spotchaos.launch.supervisor.seccomp import LIBC, Request, numbers

_REMOVE_DIR, _FOLLOW, _EMPTY_PATH = 0x200, 0x400, 0x1000
_EXCHANGE = 2
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_TMPFILE = os.O_TMPFILE & ~os.O_DIRECTORY


class OpenJob(Job):
    """An open: its result is a descriptor, made here and handed over."""

    def __init__(self, *args: Any, cloexec: bool, **more: Any) -> None:
        super().__init__(*args, **more)
        self.fd = -1
        self._cloexec = cloexec

    def respond(self) -> None:
        if self.fd < 0:
            super().respond()
        else:
            self.context.listener.hand_over(
                self.request, self.fd, cloexec=self._cloexec
            )

    def release(self) -> None:
        super().release()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class ModeJob(Job):
    """A change of a file's mode: the kernel makes it, unless it is to fail."""

    def respond(self) -> None:
        if self.result < 0:
            super().respond()
        else:
            self.context.listener.proceed(self.request)


def signed(value: int) -> int:
    """Read a register as the C int that it holds."""
    return ctypes.c_int(value & 0xFFFFFFFF).value


def open_(context: Context, request: Request) -> Job | None:
    """Prepare open, openat, openat2 and creat."""
    dirfd, address, flags, mode = _open_arguments(request)
    if not flags & _WRITES or flags & os.O_PATH:
        return None
    place = place_of(context, request, dirfd, address, follow=not flags & os.O_NOFOLLOW)
    if flags & _TMPFILE and flags & os.O_DIRECTORY:
        return _open_nameless(context, request, place, flags, mode)
    direct = is_descriptor(place)
    found = os.stat(place.path) if direct else place.lstat()
    label = None if direct else context.nodes.label(place.path)
    regular = found is None or stat.S_ISREG(found.st_mode)
    watched = context.nodes.of(found) is not None if direct and found else bool(label)
    pointless = found is None and not flags & os.O_CREAT
    exclusive = flags & os.O_CREAT and flags & os.O_EXCL
    if not watched or not regular or pointless or (found and exclusive):
        os.close(place.folder)
        return None
    kind = "open"
    if found is None:
        kind = "creat"
    elif flags & os.O_TRUNC and flags & os.O_ACCMODE and found.st_size:
        kind = "trunc"

    def act() -> dict[str, Any]:
        node = None
        if found is not None:
            node = context.nodes.of(found) if direct else None
            node = node or context.adopt(label or "", place.path, found)
            context.keep_base(node, place.path)
            if not direct:
                emptied = kind == "trunc"
                context.own(node, place.path, found, emptied=emptied)
        if flags & os.O_CREAT:
            os.umask(umask_of(request.tid))
        ours = (flags | os.O_CLOEXEC) & ~os.O_DIRECTORY
        if direct:
            job.fd = os.open(place.path, ours, mode)
        else:
            job.fd = os.open(
                place.name, ours | os.O_NOFOLLOW, mode, dir_fd=place.folder
            )
        now = os.fstat(job.fd)
        if node is None:
            node = context.nodes.new(now, label)
            return {"node": node, "mode": stat.S_IMODE(now.st_mode)}
        context.nodes.same(node, now)
        return {"node": node, "len": 0}

    job = OpenJob(
        context,
        request,
        kind,
        path=label,
        act=act,
        held=places(place),
        cloexec=bool(flags & os.O_CLOEXEC),
    )
    return job


def rename(context: Context, request: Request) -> Job | None:
    """Prepare rename, renameat and renameat2."""
    one, other, flags = _two_paths(request)
    source = place_of(context, request, *one, follow=False)
    target = place_of(context, request, *other, follow=False)
    was, over = source.lstat(), target.lstat()
    old, new = context.nodes.label(source.path), context.nodes.label(target.path)
    nothing = was is None or "." in (source.name, target.name) or not (old or new)
    if nothing or (was and over and os.path.samestat(was, over)):
        _leave(source, target)
        return None

    def act() -> dict[str, Any]:
        replaced = context.nodes.at(new) if new and over else None
        if over and stat.S_ISREG(over.st_mode) and not flags & _EXCHANGE:
            context.keep_base(replaced, target.path)
        _rename(source, target, flags)
        if not new:
            for path in [*context.nodes.below(old or ""), old or ""]:
                context.nodes.unname(path)
            return {}
        if not old or context.nodes.at(old) is None:
            return {
                "entries": context.describe(new, target.path),
                "path": new,
                "to": None,
            }
        if flags & _EXCHANGE:
            context.nodes.exchange(old, new)
            return {"node": context.nodes.at(new), "over": replaced, "xchg": 1}
        context.nodes.move(old, new)
        node = context.nodes.at(new)
        now = target.lstat()
        if node is not None and now is not None:
            context.nodes.same(node, now)
        return {"node": node, "over": replaced}

    kind = "import" if not old else "rename" if new else "export"
    return Job(
        context, request, kind, path=old, to=new, act=act, held=places(source, target)
    )


def link(context: Context, request: Request) -> Job | None:
    """Prepare link and linkat, also of a file that has no name yet."""
    one, other, flags = _two_paths(request)
    target = place_of(context, request, *other, follow=False)
    new = context.nodes.label(target.path)
    if not new or target.lstat() is not None:
        _leave(target)
        return None
    source, origin, old = None, "", None
    if flags & _EMPTY_PATH and not read_path(request.tid, one[1]):
        origin = f"/proc/{request.tid}/fd/{one[0]}"
    else:
        source = place_of(context, request, *one, follow=bool(flags & _FOLLOW))
        origin = source.path
        if not is_descriptor(source):
            old = context.nodes.label(origin)

    def act() -> dict[str, Any]:
        through = source is None or is_descriptor(source)
        held = os.open(origin, os.O_PATH | os.O_CLOEXEC) if through else -1
        try:
            os.link(
                f"/proc/self/fd/{held}" if through else origin,
                target.name,
                dst_dir_fd=target.folder,
                follow_symlinks=through,
            )
        finally:
            if through:
                os.close(held)
        found = target.lstat()
        node = context.nodes.of(found) if found else None
        if node is None:
            return {"op": "import", "entries": context.describe(new, target.path)}
        context.nodes.name(node, new)
        return {"node": node}

    return Job(
        context, request, "link", path=old, to=new, act=act, held=places(source, target)
    )


def symlink(context: Context, request: Request) -> Job | None:
    """Prepare symlink and symlinkat."""
    text = read_path(request.tid, request.args[0])
    dirfd, at = (
        (AT_FDCWD, 1) if request.name == "symlink" else (signed(request.args[1]), 2)
    )
    place = place_of(context, request, dirfd, request.args[at], follow=False)
    label = context.nodes.label(place.path)
    if not label or place.lstat() is not None:
        _leave(place)
        return None

    def act() -> dict[str, Any]:
        os.symlink(text, place.name, dir_fd=place.folder)
        return {"node": context.nodes.new(_found(place), label), "target": text}

    return Job(context, request, "symlink", path=label, act=act, held=places(place))


def unlink(context: Context, request: Request) -> Job | None:
    """Prepare unlink, rmdir and unlinkat."""
    is_folder = request.name == "rmdir"
    if request.name == "unlinkat":
        dirfd, address = signed(request.args[0]), request.args[1]
        is_folder = bool(request.args[2] & _REMOVE_DIR)
    else:
        dirfd, address = AT_FDCWD, request.args[0]
    place = place_of(context, request, dirfd, address, follow=False)
    label = context.nodes.label(place.path)
    found = place.lstat()
    if not label or found is None or place.name == ".":
        _leave(place)
        return None

    def act() -> dict[str, Any]:
        node = context.nodes.at(label)
        if is_folder:
            os.rmdir(place.name, dir_fd=place.folder)
        else:
            if found.st_nlink == 1:
                context.keep_base(node, place.path)
            os.unlink(place.name, dir_fd=place.folder)
        context.nodes.unname(label)
        return {"node": node}

    kind = "rmdir" if is_folder else "unlink"
    return Job(context, request, kind, path=label, act=act, held=places(place))


def mkdir(context: Context, request: Request) -> Job | None:
    """Prepare mkdir, mkdirat, and mknod and mknodat of regular files."""
    at = 1 if request.name.endswith("at") else 0
    dirfd = signed(request.args[0]) if at else AT_FDCWD
    mode = request.args[at + 1] & 0xFFFFFFFF
    is_node = request.name.startswith("mknod")
    if is_node and stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        return None
    place = place_of(context, request, dirfd, request.args[at], follow=False)
    label = context.nodes.label(place.path)
    if not label or place.lstat() is not None:
        _leave(place)
        return None

    def act() -> dict[str, Any]:
        os.umask(umask_of(request.tid))
        if is_node:
            os.mknod(place.name, mode, dir_fd=place.folder)
        else:
            os.mkdir(place.name, mode & 0o7777, dir_fd=place.folder)
        now = _found(place)
        node = context.nodes.new(now, label)
        return {"node": node, "mode": stat.S_IMODE(now.st_mode)}

    kind = "creat" if is_node else "mkdir"
    return Job(context, request, kind, path=label, act=act, held=places(place))


def chmod(context: Context, request: Request) -> Job | None:
    """Prepare chmod, fchmod and fchmodat."""
    if request.name == "fchmod":
        held = f"/proc/{request.tid}/fd/{signed(request.args[0])}"
        label = context.nodes.label(os.readlink(held))
        place = None
    else:
        at = 0 if request.name == "chmod" else 1
        dirfd = signed(request.args[0]) if at else AT_FDCWD
        place = place_of(context, request, dirfd, request.args[at], follow=True)
        label = context.nodes.label(place.path)
    if not label or (place is not None and place.lstat() is None):
        if place is not None:
            _leave(place)
        return None
    return ModeJob(context, request, "chmod", path=label, act=dict, held=places(place))


def truncate(context: Context, request: Request) -> Job | None:
    """Prepare truncate, of a file that is named by its path."""
    place = place_of(context, request, AT_FDCWD, request.args[0], follow=True)
    label, length = context.nodes.label(place.path), request.args[1]
    found = place.lstat()
    if not label or found is None or not stat.S_ISREG(found.st_mode):
        _leave(place)
        return None

    def act() -> dict[str, Any]:
        node = context.adopt(label, place.path, found)
        context.keep_base(node, place.path)
        context.own(node, place.path, found, emptied=not length)
        os.truncate(place.path, length)
        context.nodes.same(node, _found(place))
        return {"node": node, "len": length}

    return Job(context, request, "trunc", path=label, act=act, held=places(place))


def _open_nameless(
    context: Context, request: Request, place: Place, flags: int, mode: int
) -> Job | None:
    if (
        context.nodes.label(place.path) is None
        and context.nodes.label(place.canonical) is None
    ):
        _leave(place)
        return None

    def act() -> dict[str, Any]:
        os.umask(umask_of(request.tid))
        job.fd = os.open(place.name, flags | os.O_CLOEXEC, mode, dir_fd=place.folder)
        now = os.fstat(job.fd)
        return {"node": context.nodes.new(now, None), "mode": stat.S_IMODE(now.st_mode)}

    job = OpenJob(
        context,
        request,
        "creat",
        path=None,
        act=act,
        held=places(place),
        cloexec=bool(flags & os.O_CLOEXEC),
    )
    return job


def _open_arguments(request: Request) -> tuple[int, int, int, int]:
    args = request.args
    if request.name == "open":
        return AT_FDCWD, args[0], args[1] & 0xFFFFFFFF, args[2] & 0o7777
    if request.name == "creat":
        flags = os.O_CREAT | os.O_WRONLY | os.O_TRUNC
        return AT_FDCWD, args[0], flags, args[1] & 0o7777
    if request.name == "openat2":
        how = read_memory(request.tid, args[2], 24)
        flags, mode, _ = (int.from_bytes(how[i : i + 8], "little") for i in (0, 8, 16))
        return signed(args[0]), args[1], flags, mode & 0o7777
    return signed(args[0]), args[1], args[2] & 0xFFFFFFFF, args[3] & 0o7777


def _two_paths(request: Request) -> tuple[tuple[int, int], tuple[int, int], int]:
    args = request.args
    if request.name in ("rename", "link"):
        return (AT_FDCWD, args[0]), (AT_FDCWD, args[1]), 0
    flags = 0 if request.name == "renameat" else args[4] & 0xFFFFFFFF
    return (signed(args[0]), args[1]), (signed(args[2]), args[3]), flags


def place_of(
    context: Context, request: Request, dirfd: int, address: int, *, follow: bool
) -> Place:
    """Resolve the path that a request points to; see `notify_tracee.resolve`."""
    process = context.tracees.process_of(request.tid)
    path = read_path(request.tid, address)
    return resolve(request.tid, dirfd, path, process=process, follow=follow)


def _rename(source: Place, target: Place, flags: int) -> None:
    result = LIBC.syscall(
        numbers()["renameat2"],
        source.folder,
        os.fsencode(source.name),
        target.folder,
        os.fsencode(target.name),
        flags,
    )
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _found(place: Place) -> os.stat_result:
    return os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)


def _leave(*found: Place) -> None:
    for place in found:
        os.close(place.folder)


Prepare = Callable[[Context, Request], "Job | None"]
CALLS: dict[str, Prepare] = {
    **dict.fromkeys(("open", "openat", "openat2", "creat"), open_),
    **dict.fromkeys(("rename", "renameat", "renameat2"), rename),
    **dict.fromkeys(("link", "linkat"), link),
    **dict.fromkeys(("symlink", "symlinkat"), symlink),
    **dict.fromkeys(("unlink", "unlinkat", "rmdir"), unlink),
    **dict.fromkeys(("mkdir", "mkdirat", "mknod", "mknodat"), mkdir),
    **dict.fromkeys(("chmod", "fchmod", "fchmodat"), chmod),
    "truncate": truncate,
}
