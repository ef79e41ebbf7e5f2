"""The fall-back recorder: run under strace, and read the same op log out of its text.

For machines where a seccomp listener is refused and ptrace is not. It only records: the
kills of strace hit one task and cut no write. Stores into mapped files are invisible,
a descriptor that is both read and written is followed by its writes alone, and names
that lay there before the run have no recorded bytes. `NOT_SEEN` says so in reports.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spotchaos.errors import HarnessError
from spotchaos.launch.isolation.scratch import Scratch
from spotchaos.launch.supervisor.notify_nodes import IGNORED, Nodes
from spotchaos.persistence.oplog import FORMAT, Entry, FileOp, OpLog

MOST_BYTES = 200_000_000  # of one write; four times that goes into the trace
NOT_SEEN = (
    "stores into mapped files and msync",
    "bytes of files that lay there before the run",
    "offsets of descriptors that are read and written",
)
_CALLS = (
    "open,openat,creat,close,dup,dup2,dup3,fcntl,lseek,chdir,fchdir,"
    "clone,clone3,fork,vfork,"
    "write,writev,pwrite64,pwritev,pwritev2,sendfile,copy_file_range,"
    "rename,renameat,renameat2,link,linkat,symlink,symlinkat,"
    "mkdir,mkdirat,unlink,unlinkat,rmdir,truncate,ftruncate,fallocate,"
    "fsync,fdatasync,sync,syncfs"
)
_LINE = re.compile(r"(\d+)\s+(\d+\.\d+) (.*)")
_CALL = re.compile(r"(\w+)\((.*)\)\s+= (-?\d+|0x[0-9a-f]+)(<[^>]*>)?")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')
_FD = re.compile(r"(-?\d+|AT_FDCWD)(?:<((?:\\x[0-9a-f]{2})*)>)?")


def strace_available() -> tuple[bool, str]:
    """Try strace on a program of one line; return whether it works, and a clause."""
    path = shutil.which("strace")
    if path is None:
        return False, "strace is not installed"
    with Scratch(Path(tempfile.gettempdir())) as scratch:
        trace = scratch.path / "trace"
        tried = subprocess.run(
            command(["true"], trace), capture_output=True, text=True, check=False
        )
        if tried.returncode or not trace.exists():
            return False, f"strace may not trace: {tried.stderr.strip()[:200]}"
    return True, f"{path} may trace its children"


def command(program: Sequence[str], trace: Path) -> list[str]:
    """Return the command line that records a program into the file `trace`."""
    return [
        "strace", "-f", "-y", "-ttt", "--seccomp-bpf", "-xx", "-qq",
        "-s", str(MOST_BYTES), "-e", "signal=none", "-e", f"trace={_CALLS}",
        "-o", str(trace), *program,
    ]  # fmt: skip


def scan(roots: Sequence[str], ignore: tuple[str, ...] = IGNORED) -> tuple[Entry, ...]:
    """Return what lies in the folders, to be taken before the run."""
    return tuple(
        Entry(
            path=one.path,
            node=one.node,
            kind=one.kind,
            size=one.size,
            mode=one.mode,
            target=one.target,
        )
        for one in Nodes(list(roots), ignore).scan()
    )


def parse(
    trace: Path,
    roots: Sequence[str],
    *,
    start: tuple[Entry, ...],
    cwd: str,
    ignore: tuple[str, ...] = IGNORED,
) -> OpLog:
    """Read a trace into an op log.

    Args:
        trace: what `command` made strace write.
        roots: the watched folders, absolute.
        start: what `scan` found there before.
        cwd: the folder in which the program was started.
        ignore: as for the supervisor.

    Raises:
        HarnessError: a write was longer than strace was told to show.
    """
    reader = _Reader(Nodes(list(roots), ignore), start, cwd)
    with trace.open(encoding="ascii", errors="replace") as lines:
        for tid, at_s, text in _whole_calls(lines, reader):
            found = _CALL.match(text)
            if found is not None and not found[3].startswith("-"):
                reader.take(tid, at_s, found[1], found[2], int(found[3], 0))
    return OpLog(
        start=start,
        ops=tuple(reader.ops),
        header={"format": FORMAT, "mechanism": "strace", "not_seen": NOT_SEEN},
        blob=bytes(reader.blob),
    )


@dataclass
class _Open:
    """An open file description, shared by copies of its descriptor."""

    offset: int = 0
    append: bool = False


@dataclass
class _Process:
    cwd: str
    fds: dict[int, _Open] = field(default_factory=dict)


class _Reader:
    """Follows names, descriptors and processes through a trace."""

    def __init__(self, nodes: Nodes, start: Iterable[Entry], cwd: str) -> None:
        self.ops: list[FileOp] = []
        self.blob = bytearray()
        self._nodes = nodes
        self._cwd = cwd
        self._threads: dict[int, _Process] = {}
        self._making: list[tuple[int, str]] = []
        self._sizes: dict[int, int] = {}
        self._next = 1
        for entry in start:
            nodes.name(entry.node, entry.path)
            self._sizes[entry.node] = entry.size
            self._next = max(self._next, entry.node + 1)

    def begins_clone(self, tid: int, text: str) -> None:
        """Note that a thread is making another, which may speak first."""
        self._making.append((tid, text))

    def take(self, tid: int, at_s: float, name: str, args: str, result: int) -> None:
        """Take one call that succeeded."""
        process = self._process(tid)
        parts = _split(args)
        if name in ("clone", "clone3", "fork", "vfork"):
            self._making = [one for one in self._making if one[0] != tid]
            self._child(tid, result, args)
        elif name in ("chdir", "fchdir"):
            process.cwd = self._path(process, parts[0], None)
        elif name in ("dup", "dup2", "dup3") or (name == "fcntl" and "F_DUPFD" in args):
            process.fds[result] = process.fds.get(_fd(parts[0]), _Open())
        elif name == "fcntl":
            pass  # locks and flags
        elif name == "close":
            process.fds.pop(_fd(parts[0]), None)
        elif name == "lseek":
            process.fds.setdefault(_fd(parts[0]), _Open()).offset = result
        else:
            for fields in self._op(process, name, parts, args, result):
                number = len(self.ops) + 1
                self.ops.append(
                    FileOp(
                        number=number, tid=tid, pid=tid, at_s=at_s, call=name, **fields
                    )
                )

    def _op(
        self, process: _Process, name: str, parts: list[str], args: str, result: int
    ) -> Iterator[dict[str, Any]]:
        if name in ("open", "openat", "creat"):
            yield from self._opened(process, name, parts, result)
        elif name.startswith(("write", "pwrite")):
            yield from self._written(process, name, parts, args, result)
        elif name in ("sendfile", "copy_file_range"):
            yield from self._copied(process, name, parts, result)
        elif name in ("ftruncate", "truncate", "fallocate"):
            yield from self._resized(process, name, parts)
        elif name in ("fsync", "fdatasync", "sync", "syncfs"):
            label = self._label(process, parts[0], None) if parts and parts[0] else None
            if name.startswith("sync"):
                yield {"kind": "sync"}
            elif label is not None:
                node = self._nodes.at(label)
                is_file = node in self._sizes
                yield {
                    "kind": "fsync" if is_file else "fsyncdir",
                    "path": label,
                    "node": node,
                }
        else:
            yield from self._named(process, name, parts)

    def _opened(
        self, process: _Process, name: str, parts: list[str], result: int
    ) -> Iterator[dict[str, Any]]:
        at = parts if name == "openat" else ["AT_FDCWD", *parts]
        flags = "O_WRONLY|O_CREAT|O_TRUNC" if name == "creat" else at[2]
        process.fds[result] = _Open(append="O_APPEND" in flags)
        label = self._label(process, at[0], at[1])
        if not label or "O_DIRECTORY" in flags:
            return
        node = self._nodes.at(label)
        if node is None and "O_CREAT" in flags:
            node = self._new(label)
            self._sizes[node] = 0
            yield {"kind": "creat", "path": label, "node": node, "mode": _mode(at)}
        elif node is not None and "O_TRUNC" in flags and self._sizes.get(node):
            self._sizes[node] = 0
            yield {"kind": "trunc", "path": label, "node": node, "length": 0}

    def _written(
        self, process: _Process, name: str, parts: list[str], args: str, result: int
    ) -> Iterator[dict[str, Any]]:
        content = b"".join(_text(one) for one in _STRING.findall(args))[:result]
        label = self._label(process, parts[0], None)
        if label is None:
            if _fd(parts[0]) == 1:
                text = content.decode("utf-8", "replace")
                self.ops.append(FileOp(kind="mark", text=text, pid=1))
            return
        if any(cut for _, cut in _STRING.findall(args)):
            raise HarnessError(
                f"a write of {result} bytes to {label} is longer than strace shows",
                hint="save a smaller checkpoint, or run where a listener is allowed",
            )
        position = None
        if name.startswith("pwrite"):
            position = int(parts[-1 if name != "pwritev2" else -2])
        yield self._write(process, label, _fd(parts[0]), content, position)

    def _copied(
        self, process: _Process, name: str, parts: list[str], result: int
    ) -> Iterator[dict[str, Any]]:
        out, source, pointer = (0, 1, 2) if name == "sendfile" else (2, 0, 1)
        label = self._label(process, parts[out], None)
        if label is None or not result:
            return
        given = re.match(r"\[(\d+)", parts[pointer])
        opened = process.fds.setdefault(_fd(parts[source]), _Open())
        begin = int(given[1]) if given else opened.offset
        if not given:
            opened.offset += result
        content = self._content(process, parts[source], begin, result)
        target = re.match(r"\[(\d+)", parts[3]) if name == "copy_file_range" else None
        position = int(target[1]) if target else None
        yield self._write(process, label, _fd(parts[out]), content, position)

    def _write(
        self,
        process: _Process,
        label: str,
        fd: int,
        content: bytes,
        position: int | None,
    ) -> dict[str, Any]:
        node = self._nodes.at(label)
        opened = process.fds.setdefault(fd, _Open())
        size = self._sizes.get(node or 0, 0)
        at = size if opened.append else opened.offset if position is None else position
        if position is None:
            opened.offset = at + len(content)
        self._sizes[node or 0] = max(size, at + len(content))
        data_off = len(self.blob)
        self.blob += content
        return {
            "kind": "write",
            "path": label,
            "node": node,
            "offset": at,
            "length": len(content),
            "data_off": data_off,
        }

    def _content(self, process: _Process, fd: str, begin: int, length: int) -> bytes:
        """Return bytes of a file as the ops so far have made it, or as it lies there."""
        label = self._label(process, fd, None)
        node = None if label is None else self._nodes.at(label)
        written = [op for op in self.ops if op.kind == "write" and op.node == node]
        if node is None or not written:
            path = Path(self._path(process, fd, None))
            content = path.read_bytes() if path.is_file() else b""
            return content[begin : begin + length].ljust(length, b"\0")
        made = bytearray(self._sizes[node])
        for op in written:
            piece = self.blob[op.data_off : op.data_off + op.length]
            made[op.offset : op.offset + op.length] = piece
        return bytes(made[begin : begin + length])

    def _resized(
        self, process: _Process, name: str, parts: list[str]
    ) -> Iterator[dict[str, Any]]:
        if name == "truncate":
            label = self._label(process, "AT_FDCWD", parts[0])
        else:
            label = self._label(process, parts[0], None)
        node = self._nodes.at(label) if label else None
        if node is None:
            return
        if name != "fallocate":
            self._sizes[node] = int(parts[1])
            yield {
                "kind": "trunc",
                "path": label,
                "node": node,
                "length": int(parts[1]),
            }
            return
        mode = (1 if "KEEP_SIZE" in parts[1] else 0) | (2 if "PUNCH" in parts[1] else 0)
        offset, length = int(parts[2]), int(parts[3])
        if not mode:
            self._sizes[node] = max(self._sizes.get(node, 0), offset + length)
        yield {
            "kind": "falloc", "path": label, "node": node, "mode": mode,
            "offset": offset, "length": length,
        }  # fmt: skip

    def _named(
        self, process: _Process, name: str, parts: list[str]
    ) -> Iterator[dict[str, Any]]:
        at = parts if name.endswith(("at", "at2")) else _with_folders(name, parts)
        if name.startswith(("rename", "link")):
            old, new = self._label(process, *at[:2]), self._label(process, *at[2:4])
            node = self._nodes.at(old) if old else None
            if name.startswith("rename") and old and new:
                over = self._nodes.at(new)
                self._nodes.move(old, new)
                yield {
                    "kind": "rename",
                    "path": old,
                    "to": new,
                    "node": node,
                    "over": over,
                }
            elif name.startswith("link") and new and node:
                self._nodes.name(node, new)
                yield {"kind": "link", "path": old, "to": new, "node": node}
            return
        if name.startswith("symlink"):
            target, *at = (
                parts if name == "symlinkat" else [parts[0], "AT_FDCWD", parts[1]]
            )
            label = self._label(process, *at[:2])
            if label:
                text = _text(_STRING.findall(target)[0]).decode(
                    "utf-8", "surrogateescape"
                )
                yield {
                    "kind": "symlink",
                    "path": label,
                    "node": self._new(label),
                    "target": text,
                }
            return
        label = self._label(process, *at[:2])
        if not label:
            return
        if name.startswith("mkdir"):
            yield {"kind": "mkdir", "path": label, "node": self._new(label)}
        else:
            kind = "rmdir" if name == "rmdir" or "REMOVEDIR" in at[-1] else "unlink"
            node = self._nodes.at(label)
            self._nodes.unname(label)
            yield {"kind": kind, "path": label, "node": node}

    def _new(self, label: str) -> int:
        node = self._next
        self._next += 1
        self._nodes.name(node, label)
        return node

    def _label(self, process: _Process, folder: str, path: str | None) -> str | None:
        return self._nodes.label(self._path(process, folder, path))

    def _path(self, process: _Process, folder: str, path: str | None) -> str:
        # A descriptor is annotated with the path it has now; a string may be relative.
        found = _STRING.fullmatch(folder)
        if found is not None:
            folder, path = "AT_FDCWD", folder
        base = process.cwd
        annotated = _FD.fullmatch(folder)
        if annotated is not None and annotated[2] is not None:
            base = _text((annotated[2], "")).decode("utf-8", "surrogateescape")
        if path is None:
            return base.removesuffix(" (deleted)")
        text = _text(_STRING.findall(path)[0]).decode("utf-8", "surrogateescape")
        return str(Path(base, text))

    def _process(self, tid: int) -> _Process:
        if tid not in self._threads:
            if self._making:
                self._child(self._making[-1][0], tid, self._making[-1][1])
            else:
                self._threads[tid] = _Process(self._cwd)
        return self._threads[tid]

    def _child(self, parent: int, child: int, how: str) -> None:
        if child in self._threads:
            return
        process = self._process(parent)
        if "CLONE_THREAD" in how:
            self._threads[child] = process
        else:
            self._threads[child] = _Process(process.cwd, dict(process.fds))


def _whole_calls(
    lines: Iterable[str], reader: _Reader
) -> Iterator[tuple[int, float, str]]:
    """Join calls that strace has shown in two parts; yield them as they ended."""
    begun: dict[int, str] = {}
    for line in lines:
        found = _LINE.match(line.rstrip("\n"))
        if found is None:
            continue
        tid, at_s, text = int(found[1]), float(found[2]), found[3]
        if text.endswith("<unfinished ...>"):
            begun[tid] = text.removesuffix("<unfinished ...>").rstrip()
            if text.startswith(("clone", "fork", "vfork")):
                reader.begins_clone(tid, text)
            continue
        if text.startswith("<... "):
            text = begun.pop(tid, "") + text.partition(" resumed>")[2]
        yield tid, at_s, text


def _with_folders(name: str, parts: list[str]) -> list[str]:
    if name in ("rename", "link"):
        return ["AT_FDCWD", parts[0], "AT_FDCWD", parts[1]]
    return ["AT_FDCWD", *parts]


def _split(args: str) -> list[str]:
    """Split at the commas that stand in no bracket; strings hold hex digits only."""
    parts, depth, begin = [], 0, 0
    for at in (m.start() for m in re.finditer(r"[\[\]{},]", args)):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(args[at], 0)
        if args[at] == "," and not depth:
            parts.append(args[begin:at].strip())
            begin = at + 1
    return [*parts, args[begin:].strip()]


def _text(string: tuple[str, str]) -> bytes:
    return bytes.fromhex(string[0].replace("\\x", ""))


def _fd(text: str) -> int:
    found = re.match(r"-?\d+", text)
    return int(found[0]) if found else -1


def _mode(parts: Sequence[str]) -> int | None:
    return int(parts[3], 8) & ~0o022 if len(parts) > 3 else None
