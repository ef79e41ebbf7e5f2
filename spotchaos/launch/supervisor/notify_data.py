# pathlib costs the program 10 ms at its start, and this may run in its process.
# ruff: noqa: PTH113, PTH123
"""Carry out the calls that move bytes or make them durable: write, sendfile, fsync, mmap.

Like `notify_calls`: each function returns the job that a request asks for, or None.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from collections.abc import Callable
from typing import Any

from spotchaos.launch.supervisor.notify_calls import CALLS, Prepare, signed
from spotchaos.launch.supervisor.notify_jobs import BUFFER_BYTES, Context, Job
from spotchaos.launch.supervisor.notify_rules import PAGE
from spotchaos.launch.supervisor.notify_tracee import (
    read_into,
    read_memory,
    read_vector,
    write_memory,
)
from spotchaos.launch.supervisor.seccomp import LIBC, Request

_RWF_DSYNC, _RWF_SYNC, _RWF_APPEND = 2, 4, 16
_MS_SYNC = 4
_MOST = 0x7FFFF000  # bytes that Linux moves in one call
_REFUSED_MODES = 0x08 | 0x20  # collapse and insert: no checkpoint writer uses them
_KEEP_SIZE = 1


class Memory:
    """Bytes that lie in the program's memory."""

    def __init__(self, tid: int, segments: list[tuple[int, int]]) -> None:
        self._tid = tid
        self._segments = list(reversed(segments))
        self.length = sum(length for _, length in segments)

    def fill(self, address: int, room: int) -> int:
        """Copy the next bytes to our memory at `address`; return how many."""
        taken: list[tuple[int, int]] = []
        while self._segments and room and len(taken) < 1024:
            start, length = self._segments.pop()
            part = min(length, room)
            taken.append((start, part))
            room -= part
            if part < length:
                self._segments.append((start + part, length - part))
        return read_into(self._tid, taken, address) if taken else 0

    def finish(self, moved: int) -> None:
        """Nothing is left to tell the program."""


class OtherFile:
    """Bytes that a call copies from one descriptor to another.

    Args:
        tid: the thread that asked.
        fd: our copy of the source; owned.
        pointer: where the program keeps the offset; 0 to use the descriptor's own.
        length: bytes asked for.
    """

    def __init__(self, tid: int, fd: int, pointer: int, length: int) -> None:
        self._tid = tid
        self.fd = fd
        self._pointer = pointer
        self._start = -1
        if pointer:
            (self._start,) = struct.unpack("=q", read_memory(tid, pointer, 8))
        begin = self._start if pointer else os.lseek(fd, 0, os.SEEK_CUR)
        left = max(os.fstat(fd).st_size - begin, 0)
        self.length = min(length, left, _MOST)
        self._at = begin

    def fill(self, address: int, room: int) -> int:
        target = (ctypes.c_char * room).from_address(address)
        got = os.preadv(self.fd, [target], self._at)
        self._at += got
        return got

    def finish(self, moved: int) -> None:
        """Move the offset on by what has really been copied."""
        if self._pointer:
            write_memory(
                self._tid, self._pointer, struct.pack("=q", self._start + moved)
            )
        else:
            os.lseek(self.fd, moved, os.SEEK_CUR)


class WriteJob(Job):
    """Bytes on their way into a watched file, in as many parts as they are asked for.

    Args:
        source: where the bytes come from.
        fd: our copy of the target.
        node: its node.
        offset: where they go; None for the descriptor's own offset.
        pointer: where the program keeps that offset, for copy_file_range.
        rwf: flags of pwritev2.
    """

    def __init__(
        self,
        *args: Any,
        source: Memory | OtherFile,
        fd: int,
        node: int,
        offset: int | None,
        pointer: int = 0,
        rwf: int = 0,
        **more: Any,
    ) -> None:
        super().__init__(*args, act=dict, **more)
        self.length = min(source.length, _MOST)
        self._source = source
        self._fd = fd
        self._node = node
        self._at = offset
        self._pointer = pointer
        self._rwf = rwf
        self._moved = 0
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        self._append = bool(flags & os.O_APPEND or rwf & _RWF_APPEND)
        synced = flags & (os.O_SYNC | os.O_DSYNC) or rwf & (_RWF_DSYNC | _RWF_SYNC)
        self._durable = 1 if synced else None

    def advance(self, limit: int | None = None) -> None:
        """Write `limit` more bytes, or the rest, and log them as one part."""
        stop = self.length if limit is None else min(self._moved + limit, self.length)
        if self.rule is not None and self.rule.action == "short":
            stop = min(stop, max(int(self.rule.value), 1))
        start, data_off, begin = self._moved, self.context.log.offset, self._position()
        code = 0
        while self._moved < stop and not code:
            code = self._step(stop - self._moved)
        moved = self._moved - start
        if moved or not code:
            self.result = self._moved
            self.log(
                node=self._node,
                off=begin,
                len=moved,
                data_off=data_off,
                durable=self._durable,
                of=self.length if moved < self.length else None,
            )
            if self._node in self.context.maps:
                self.context.maps.refresh(self._node, begin, begin + moved)
        elif not self._moved:
            self.fail(code, node=self._node)

    def respond(self) -> None:
        if self._moved:
            self._source.finish(self._moved)
            if self._pointer and self._at is not None:
                write_memory(
                    self.request.tid, self._pointer, struct.pack("=q", self._at)
                )
        super().respond()

    def release(self) -> None:
        super().release()
        if isinstance(self._source, OtherFile) and self._source.fd >= 0:
            os.close(self._source.fd)
            self._source.fd = -1

    def _position(self) -> int:
        if self._append:
            return os.fstat(self._fd).st_size
        return os.lseek(self._fd, 0, os.SEEK_CUR) if self._at is None else self._at

    def _step(self, room: int) -> int:
        buffer = self.context.buffer
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        try:
            got = self._source.fill(address, min(room, BUFFER_BYTES))
            if not got:
                return errno.EFAULT
            content = memoryview(buffer)[:got]
            if self.rule is not None:
                self._damage(content)
            if self._at is None:
                put = os.write(self._fd, content)
            else:
                put = os.pwritev(self._fd, [content], self._at, self._rwf & _RWF_APPEND)
                self._at += put
        except OSError as error:
            return error.errno or errno.EIO
        self.context.log.add_bytes(content[:put])
        self._moved += put
        return 0 if put == got else errno.ENOSPC

    def _damage(self, content: memoryview) -> None:
        assert self.rule is not None
        at = int(self.rule.value) - self._moved * (
            8 if self.rule.action == "flip" else 1
        )
        if self.rule.action == "flip" and 0 <= at < 8 * len(content):
            content[at // 8] ^= 1 << at % 8
        elif self.rule.action == "zero" and 0 <= at < len(content):
            start = at - at % PAGE
            end = min(start + PAGE, len(content))
            content[start:end] = bytes(end - start)


def write(context: Context, request: Request) -> Job | None:
    """Prepare write, pwrite64, writev, pwritev and pwritev2."""
    tid, args, name = request.tid, request.args, request.name
    fd = signed(args[0])
    found = context.watched(tid, fd, thorough=False)
    if found is None:
        if fd == 1 and context.log.is_kept:
            _mark(context, request)
        return None
    copy, node = found
    if name in ("write", "pwrite64"):
        segments = [(args[1], args[2])] if args[2] else []
    else:
        segments = read_vector(tid, args[1], args[2])
    offset = args[3] if name.startswith("p") else None
    if name == "pwritev2" and offset == 2**64 - 1:
        offset = None
    if not segments or (offset is not None and offset >= 2**63):
        os.close(copy)
        return None
    return WriteJob(
        context,
        request,
        "write",
        path=_label(context, node),
        source=Memory(tid, segments),
        fd=copy,
        node=node,
        offset=offset,
        rwf=args[5] if name == "pwritev2" else 0,
        held=(copy,),
    )


def copy(context: Context, request: Request) -> Job | None:
    """Prepare sendfile and copy_file_range."""
    tid, args = request.tid, request.args
    if request.name == "sendfile":
        target, source, pointer, length, out_pointer = (
            args[0],
            args[1],
            args[2],
            args[3],
            0,
        )
    else:
        source, pointer, target, out_pointer, length = args[:5]
    found = context.watched(tid, signed(target), thorough=False)
    if found is None:
        return None
    fd, node = found
    context.flush_maps()  # the source may be a mapped file
    taken = context.tracees.take(tid, signed(source))
    other = OtherFile(tid, taken, pointer, length)
    offset = None
    if out_pointer:
        (offset,) = struct.unpack("=q", read_memory(tid, out_pointer, 8))
    if not other.length:
        os.close(fd)
        os.close(taken)
        return None
    return WriteJob(
        context,
        request,
        "write",
        path=_label(context, node),
        source=other,
        fd=fd,
        node=node,
        offset=offset,
        pointer=out_pointer,
        held=(fd,),
    )


def splice(context: Context, request: Request) -> Job | None:
    """Refuse splice into a watched file: it could block us; programs then copy."""
    found = context.watched(request.tid, signed(request.args[2]), thorough=False)
    if found is None:
        return None
    os.close(found[0])
    raise RefusedError(errno.EINVAL)


class RefusedError(Exception):
    """A call is to fail with this errno without being counted."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def resize(context: Context, request: Request) -> Job | None:
    """Prepare ftruncate and fallocate."""
    tid, args = request.tid, request.args
    found = context.watched(tid, signed(args[0]), thorough=False)
    if found is None:
        return None
    fd, node = found
    if request.name == "ftruncate":
        kind = "trunc"
    else:
        kind = "falloc"
        if args[1] & _REFUSED_MODES:
            os.close(fd)
            raise RefusedError(errno.EOPNOTSUPP)

    def act() -> dict[str, Any]:
        if kind == "trunc":
            os.ftruncate(fd, args[1])
            return {"node": node, "len": args[1]}
        mode, off, length = signed(args[1]), args[2], args[3]
        call = LIBC.fallocate(fd, mode, ctypes.c_int64(off), ctypes.c_int64(length))
        if call < 0:
            raise OSError(ctypes.get_errno(), "fallocate")
        if node in context.maps:
            context.maps.refresh(node, off, off + length)
        return {"node": node, "off": off, "len": length, "mode": mode}

    return Job(context, request, kind, path=_label(context, node), act=act, held=(fd,))


def fsync(context: Context, request: Request) -> Job | None:
    """Prepare fsync and fdatasync, of files and of folders."""
    found = context.watched(request.tid, signed(request.args[0]), thorough=True)
    if found is None:
        return None
    fd, node = found
    is_folder = not os.path.isfile(f"/proc/self/fd/{fd}")

    def act() -> dict[str, Any]:
        if context.real_fsync:
            os.fsync(fd)
        return {"node": node}

    kind = "fsyncdir" if is_folder else "fsync"
    return Job(context, request, kind, path=_label(context, node), act=act, held=(fd,))


def sync(context: Context, request: Request) -> Job | None:
    """Prepare sync and syncfs: everything written so far becomes durable."""
    if request.name == "syncfs":
        found = context.watched(request.tid, signed(request.args[0]), thorough=True)
        if found is None:
            return None
        os.close(found[0])

    def act() -> dict[str, Any]:
        if context.real_fsync:
            os.sync()
        return {}

    return Job(context, request, "sync", path=None, act=act)


def msync(context: Context, request: Request) -> Job | None:
    """Prepare a synchronous msync of a mapped watched file."""
    if not request.args[2] & _MS_SYNC:
        return None
    node = _mapped_node(context, request.tid, request.args[0])
    if node is None:
        return None

    def act() -> dict[str, Any]:
        return {"node": node}

    return Job(context, request, "msync", path=_label(context, node), act=act)


def mmap(context: Context, request: Request) -> Job | None:
    """Begin to follow a watched file that is mapped shared and writable."""
    found = context.watched(request.tid, signed(request.args[4]), thorough=True)
    if found is None:
        return None
    fd, node = found
    if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDWR:
        os.close(fd)
        return None
    context.maps.add(node, fd)
    return None


def _mark(context: Context, request: Request) -> None:
    tid, args = request.tid, request.args
    if request.name in ("write", "pwrite64"):
        segments = [(args[1], min(args[2], 1 << 16))]
    else:
        segments = read_vector(tid, args[1], args[2])
    text = b"".join(
        read_memory(tid, start, min(length, 1 << 16)) for start, length in segments
    )
    process = context.tracees.process_of(tid)
    context.log.add(
        op="mark",
        tid=tid,
        pid=process,
        rank=context.rank_of(process),
        text=text.decode("utf-8", "replace"),
    )


def _mapped_node(context: Context, tid: int, address: int) -> int | None:
    with open(f"/proc/{tid}/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            span, _, _, _, rest = line.split(" ", 4)
            start, _, end = span.partition("-")
            if int(start, 16) <= address < int(end, 16):
                path = rest.strip().partition(" ")[2].strip()
                label = context.nodes.label(path) if path else None
                return context.nodes.at(label) if label else None
    return None


def _label(context: Context, node: int) -> str | None:
    return context.nodes.label_of(node)


CALLS_ON_DATA: dict[str, Callable[[Context, Request], Job | None]] = {
    **dict.fromkeys(("write", "pwrite64", "writev", "pwritev", "pwritev2"), write),
    **dict.fromkeys(("sendfile", "copy_file_range"), copy),
    **dict.fromkeys(("ftruncate", "fallocate"), resize),
    **dict.fromkeys(("fsync", "fdatasync"), fsync),
    **dict.fromkeys(("sync", "syncfs"), sync),
    "splice": splice,
    "msync": msync,
    "mmap": mmap,
}
ALL_CALLS: dict[str, Prepare] = {**CALLS, **CALLS_ON_DATA}
