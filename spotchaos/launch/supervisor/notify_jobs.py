# pathlib costs the program 10 ms at its start, and this may run in its process.
# ruff: noqa: PTH105, PTH115, PTH116, PTH118, PTH123, PTH208
"""One file op that waits to be carried out, and what all of them share."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import stat
from collections.abc import Callable
from typing import Any

from spotchaos.launch.supervisor.frames import FrameTable
from spotchaos.launch.supervisor.notify_log import OpLogWriter
from spotchaos.launch.supervisor.notify_maps import MappedFiles
from spotchaos.launch.supervisor.notify_nodes import Nodes
from spotchaos.launch.supervisor.notify_rules import Rule
from spotchaos.launch.supervisor.notify_tracee import Place, Tracees
from spotchaos.launch.supervisor.seccomp import Listener, Request

BUFFER_BYTES = 2 << 20  # reused: copying whole saves into fresh memory costs twice


class Context:
    """What the supervisor knows while it serves one attempt."""

    def __init__(
        self,
        listener: Listener,
        nodes: Nodes,
        log: OpLogWriter,
        *,
        frames: FrameTable | None = None,
        real_fsync: bool = True,
        break_links: bool = False,
    ) -> None:
        self.listener = listener
        self.nodes = nodes
        self.log = log
        self.frames = frames
        self.real_fsync = real_fsync
        self._break_links = break_links
        self._from_before: set[int] = set()
        self.tracees = Tracees()
        self.maps = MappedFiles()
        self.buffer = mmap.mmap(-1, BUFFER_BYTES)
        self.unread: set[int] = set()  # nodes of before the run, not yet copied
        self._ranks: dict[int, int | None] = {}

    def scan(self) -> None:
        """Log what lies in the watched folders before the first op."""
        for entry in self.nodes.scan():
            if entry.kind == "file":
                self._from_before.add(entry.node)
                if entry.size:
                    self.unread.add(entry.node)
            self.log.add(
                op="start",
                path=entry.path,
                node=entry.node,
                kind=entry.kind,
                len=entry.size,
                mode=entry.mode,
                target=entry.target,
            )

    def keep_base(self, node: int | None, path: str) -> None:
        """Copy a file of before the run into the log, just before it changes."""
        if node in self.unread and self.log.is_kept:
            self.unread.discard(node)
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                offset, length = self.log.add_file(fd)
            finally:
                os.close(fd)
            self.log.add(op="base", node=node, len=length, data_off=offset)

    def own(
        self, node: int, path: str, found: os.stat_result, *, emptied: bool = False
    ) -> None:
        """Give a file its own bytes, if it is a hard link to something kept elsewhere.

        Only files of before the run with one name here are meant: what the program has
        linked itself stays linked. Of one that is about to be emptied no byte is copied.
        """
        if not self._break_links or node not in self._from_before or found.st_nlink < 2:
            return
        self._from_before.discard(node)
        if self.nodes.is_linked(node):
            return
        copy = f"{path}.{os.getpid()}.own"
        if emptied:
            fd = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
            os.close(fd)
            shutil.copystat(path, copy)
        else:
            shutil.copy2(path, copy)
        os.replace(copy, path)
        self.nodes.same(node, os.lstat(path))

    def flush_maps(self) -> None:
        """Log what was stored into mapped files since the last op."""
        for node, at, content in self.maps.changes():
            offset = self.log.offset
            self.log.add_bytes(content)
            self.log.add(
                op="mwrite", node=node, off=at, len=len(content), data_off=offset
            )

    def rank_of(self, process: int) -> int | None:
        """Return the rank of a process: what it noted, its environment, its parent's."""
        noted = self.frames.rank(process) if self.frames else None
        if noted is not None:
            return noted
        if process not in self._ranks:
            self._ranks[process] = _rank_from_environment(process)
        return self._ranks[process]

    def watched(self, tid: int, fd: int, *, thorough: bool) -> tuple[int, int] | None:
        """Return our copy of a descriptor and its node, or None if it is not watched.

        Args:
            tid: the thread that names the descriptor.
            fd: its number there.
            thorough: look the name up too, for descriptors that were opened for
                reading and so passed the filter unseen.
        """
        found = os.stat(f"/proc/{tid}/fd/{fd}")
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
            return None
        node = self.nodes.of(found)
        if node is None and not thorough:
            return None
        copy = self.tracees.take(tid, fd)
        if node is None or self.nodes.is_nameless(node):
            name = os.readlink(f"/proc/self/fd/{copy}")
            if node is not None and not name.endswith(" (deleted)"):
                # A file outside has been given the inode number of a deleted one,
                # unless it never had a name (O_TMPFILE) and has none now.
                label = self.nodes.label(name)
                if label is None:
                    self.nodes.forget_key(found)
                    node = None
            elif node is None:
                label = self.nodes.label(name)
                node = None if label is None else self.adopt(label, name, found)
        if node is None:
            os.close(copy)
            return None
        return copy, node

    def adopt(self, label: str, path: str, found: os.stat_result) -> int:
        """Return the node of a file that is there but that we have not seen made."""
        node = self.nodes.at(label)
        if node is not None:
            self.nodes.same(node, found)
            return node
        node = self.nodes.of(found)
        if node is not None:
            self.nodes.name(node, label)
            return node
        entries = self.describe(label, path)
        if self.log.is_kept:
            self.log.add(op="appear", entries=entries)
        return int(entries[0]["node"])

    def describe(self, label: str, path: str) -> list[dict[str, Any]]:
        """Copy a tree that has come from outside into the log; return its entries."""
        found = os.lstat(path)
        known = self.nodes.of(found)
        entry: dict[str, Any] = {"path": label, "mode": stat.S_IMODE(found.st_mode)}
        if known is not None and not stat.S_ISDIR(found.st_mode):
            self.nodes.name(known, label)
            return [{**entry, "node": known, "kind": "name"}]
        entry["node"] = self.nodes.new(found, label)
        if stat.S_ISLNK(found.st_mode):
            return [{**entry, "kind": "link", "target": os.readlink(path)}]
        if stat.S_ISDIR(found.st_mode):
            entries = [{**entry, "kind": "dir"}]
            for name in sorted(os.listdir(path)):
                inner = os.path.join(path, name)
                inside = f"{label}/{name}" if label else name
                if not self.nodes.is_ignored(inside):
                    entries += self.describe(inside, inner)
            return entries
        entry["kind"] = "file"
        if stat.S_ISREG(found.st_mode):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                entry["data_off"], entry["len"] = self.log.add_file(fd)
            finally:
                os.close(fd)
        return [entry]

    def close(self) -> None:
        """Close what is open."""
        self.maps.close()
        self.tracees.close()
        self.log.close()


class Job:
    """One file op, prepared: it knows what it concerns and how to happen.

    Args:
        context: of the attempt.
        request: the call that waits.
        kind: as in the op log, or `open` for an open that changes nothing.
        path: label of the file; None for a file without a name.
        to: the second label, if there is one.
        act: carries the op out and returns the fields of its log line.
        held: descriptors to close when the job is over.
    """

    def __init__(
        self,
        context: Context,
        request: Request,
        kind: str,
        *,
        path: str | None,
        act: Callable[[], dict[str, Any]],
        to: str | None = None,
        held: tuple[int, ...] = (),
    ) -> None:
        self.context = context
        self.request = request
        self.kind = kind
        self.path = path
        self.to = to
        self.number: int | None = None  # in the op log; None for a mere open
        self.result = 0
        self.length = 0
        self.rule: Rule | None = None
        self._act = act
        self._held = held
        self._process = context.tracees.process_of(request.tid)

    @property
    def names(self) -> tuple[str, ...]:
        """The labels that rules are matched with."""
        return tuple(one for one in (self.path, self.to) if one is not None) or ("",)

    @property
    def process(self) -> int:
        """The process that makes the op."""
        return self._process

    @property
    def rank(self) -> int | None:
        """The rank of that process."""
        return self.context.rank_of(self._process)

    def advance(self, limit: int | None = None) -> None:
        """Carry the op out, or `limit` bytes of it, and log what happened."""
        try:
            fields = self._act()
        except OSError as error:
            self.fail(error.errno or errno.EIO)
        else:
            if self.kind != "open":
                self.log(**fields)

    def fail(self, code: int, **fields: Any) -> None:
        """Let the call fail with errno `code`, and log that it did nothing."""
        self.result = -code
        if self.kind != "open":
            self.log(err=code, **fields)

    def log(self, **fields: Any) -> None:
        """Write one line about this op."""
        where = (
            self.context.frames.where(self.request.tid) if self.context.frames else None
        )
        line = {
            "n": self.number,
            "op": self.kind,
            "tid": self.request.tid,
            "pid": self._process,
            "rank": self.rank,
            "sys": self.request.name,
            "path": self.path,
            "to": self.to,
            "where": where,
        }
        self.context.log.add(**{**line, **fields})

    def respond(self) -> None:
        """Return the result to the program."""
        self.context.listener.answer(self.request, self.result)

    def release(self) -> None:
        """Close what the job holds."""
        for fd in self._held:
            os.close(fd)
        self._held = ()


def places(*found: Place | None) -> tuple[int, ...]:
    """Return the descriptors that these places hold."""
    return tuple(one.folder for one in found if one is not None)


def _rank_from_environment(process: int) -> int | None:
    for _ in range(8):  # a loader's worker is a child of its rank, or a grandchild
        try:
            with open(f"/proc/{process}/environ", "rb") as file:
                for line in file.read().split(b"\0"):
                    if line.startswith(b"RANK=") and line[5:].isdigit():
                        return int(line[5:])
            with open(f"/proc/{process}/stat", "rb") as file:
                process = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError):
            return None
        if process <= 1:
            return None
    return None
