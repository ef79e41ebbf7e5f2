"""Recording what Python lets be seen of file ops, where nothing outside of it can record.

No audit event tells of a write, a close or an fsync, nor of what compiled code does. So
before each op that Python announces the watched folders are looked through, and what has
changed since the last look goes into an op log, in the format of the supervisor's. Files
that nobody announced count as put in place whole.
"""

from __future__ import annotations

import atexit
import fnmatch
import json
import os
import stat
import sys
import threading
import time
from typing import TYPE_CHECKING

from spotchaos.probe.checkpoint_io import SAVES
from spotchaos.probe.lines import LINES
from spotchaos.probe.record import Appending
from spotchaos.probe.session import SESSION

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, NamedTuple

    class Seen(NamedTuple):
        """What one look showed of one path."""

        kind: str
        inode: int
        size: int
        mtime_ns: int
        mode: int
        target: str | None

else:
    from collections import namedtuple

    Seen = namedtuple("Seen", "kind inode size mtime_ns mode target")

FORMAT = 1  # of `launch/supervisor/notify_log.py`
_IGNORED = ("*.log", "events.out.tfevents*", "*.pyc", "__pycache__")
_CHANGING = frozenset(
    ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink")
)
_CHANGING |= {"os.truncate", "shutil.rmtree", "shutil.move"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_PIECE = 1 << 20


class Recorder:
    """Looks at the watched folders and writes down what has changed."""

    def __init__(self, log: str, roots: list[str]) -> None:
        # Whoever comes second, a loader's worker or a launcher's child, records nothing.
        flags = os.O_CREAT | os.O_EXCL
        self._log = Appending(log, flags=flags, mode=0o666)
        self._data = Appending(log + ".data", flags=flags, mode=0o666)
        self._roots = roots
        self._owner = os.getpid()
        self._began = self._looked = time.monotonic()
        self._lock = threading.RLock()
        self._busy = False
        self._number = 0
        self._offset = 0
        self._next = 1
        self._hidden = 0
        self._nodes: dict[str, int] = {}
        self._opened: dict[str, bool] = {}  # label -> it was emptied, and not seen yet
        self._where: str | None = None
        self._writer = ""
        self._seen: dict[str, Seen] = {}
        self._add(
            op="header",
            format=FORMAT,
            mechanism="python",
            roots=roots,
            began_s=self._began,
        )
        self._seen = self._look()
        for label in sorted(self._seen):
            one = self._seen[label]
            self._add(
                op="start",
                path=label,
                node=self._new(label),
                kind=one.kind,
                len=one.size,
                mode=one.mode,
                target=one.target,
            )

    def install(self) -> None:
        """Listen to Python's audit events and to the writers that are known."""
        sys.addaudithook(self._audit)
        begun, entered, left, wrote = SAVES.begin, SAVES.enter, SAVES.leave, SAVES.wrote

        def begin(writer: str, held: Iterable[str] = ()) -> None:
            self._writer = writer
            begun(writer, held)

        def enter() -> int:
            self.look(sys._getframe())
            return entered()

        def note(path: Any) -> None:
            if self._writer == "torch.save" and SAVES.is_nested():
                # It opens the file itself, in C++, and writes it in place.
                self._note_opened(path, emptied=True)
            wrote(path)

        def leave() -> None:
            left()
            self.look(None)

        SAVES.begin, SAVES.enter = begin, enter  # type: ignore[method-assign]  # of this
        SAVES.wrote, SAVES.leave = note, leave  # type: ignore[method-assign]  # one object
        atexit.register(self._end)

    def look(self, frame: Any) -> None:
        """Write down what has changed; what changes next is the doing of `frame`'s line."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            if self._busy:
                return
            self._busy = True
            try:
                self._compare(self._look())
            except OSError as error:
                SESSION.trouble("recording of file ops", error)
            finally:
                self._busy = False
                self._looked = time.monotonic()
        if frame is not None:
            self._where = LINES.place(frame)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" and event not in _CHANGING:
            return
        if self._busy or os.getpid() != self._owner:
            return
        flags = arguments[2] if event == "open" and len(arguments) > 2 else 0
        if event == "open":
            if not isinstance(flags, int) or not flags & _WRITING:
                return
            if self._label(arguments[0]) is None:
                return
        self.look(sys._getframe())
        if event == "open":
            self._note_opened(arguments[0], emptied=bool(flags & os.O_TRUNC))

    def _note_opened(self, path: Any, *, emptied: bool) -> None:
        label = self._label(path)
        if label is not None:
            self._opened[label] = emptied

    def _label(self, path: Any) -> str | None:
        try:
            text = os.path.abspath(os.fsdecode(path))
        except TypeError:
            return None
        folder, name = os.path.split(text)
        text = os.path.join(os.path.realpath(folder), name)
        for number, root in enumerate(self._roots):
            if text.startswith(root + "/"):
                return f"{number}/{text[len(root) + 1 :]}"
        return None

    # --- looking ---

    def _look(self) -> dict[str, Seen]:
        found: dict[str, Seen] = {}
        for number, root in enumerate(self._roots):
            stack = [(root, str(number))] if os.path.isdir(root) else []
            while stack:
                folder, label = stack.pop()
                found[label] = _seen(folder)
                try:
                    names = os.listdir(folder)
                except OSError:
                    continue  # gone meanwhile
                for name in names:
                    if any(fnmatch.fnmatch(name, one) for one in _IGNORED):
                        continue
                    path, inner = os.path.join(folder, name), f"{label}/{name}"
                    try:
                        one = _seen(path)
                    except OSError:
                        continue
                    if one.kind == "dir":
                        stack.append((path, inner))
                    elif one.kind:
                        found[inner] = one
        return found

    def _compare(self, now: dict[str, Seen]) -> None:
        before = self._seen
        for label in sorted(now):
            if label not in before and now[label].kind == "dir":
                self._take_folder(label, now, before)
        gone = {one: label for label, one in before.items() if label not in now}
        changed = [k for k in sorted(now) if now[k] != before.get(k)]
        for label in changed:
            origin = gone.get(now[label])
            if origin is not None and now[label].kind != "dir":
                self._rename(origin, label, before)
        for label in sorted(set(before) - set(now), reverse=True):
            kind = before.pop(label).kind
            self._op(
                "rmdir" if kind == "dir" else "unlink",
                path=label,
                node=self._nodes.pop(label),
            )
            self._opened.pop(label, None)
        changed = [k for k in changed if now[k] != before.get(k)]
        for label in sorted(changed, key=lambda one: now[one].mtime_ns):
            if now[label].kind == "file":
                self._take_file(label, now[label], before.get(label))
            elif now[label].kind == "link":
                self._take_link(label, now[label], replaces=label in before)
        self._seen = now

    def _take_folder(
        self, label: str, now: dict[str, Seen], before: dict[str, Seen]
    ) -> None:
        for old, one in before.items():
            same = one.kind == "dir" and one.inode == now[label].inode
            if same and old not in now:
                self._rename(old, label, before)
                return
        before[label] = now[label]
        self._op("mkdir", path=label, node=self._new(label), mode=now[label].mode)

    def _rename(self, old: str, new: str, before: dict[str, Seen]) -> None:
        over = self._nodes.get(new)
        self._op("rename", path=old, to=new, node=self._nodes[old], over=over)
        for label in [k for k in before if k == old or k.startswith(old + "/")]:
            moved = new + label[len(old) :]
            before[moved] = before.pop(label)
            self._nodes[moved] = self._nodes.pop(label)
        self._opened.pop(old, None)

    def _take_link(self, label: str, one: Seen, *, replaces: bool) -> None:
        over = self._nodes.get(label)
        at = self._aside(label) if replaces else label
        node = self._new(at)
        self._op("symlink", path=at, node=node, target=one.target)
        if replaces:
            self._into_place(at, label, node, over)

    def _take_file(self, label: str, one: Seen, was: Seen | None) -> None:
        path = self._path(label)
        emptied = self._opened.get(label)
        if was is not None and was.inode == one.inode:
            node = self._nodes[label]
            grown = emptied is False and one.size >= was.size
            if not grown:
                self._op("trunc", path=label, node=node, len=0)
            self._write(label, path, node, was.size if grown else 0, one.size)
        elif was is None and emptied is not None:
            node = self._new(label)
            self._op("creat", path=label, node=node, mode=one.mode)
            self._write(label, path, node, 0, one.size)
        else:
            over, at = self._nodes.get(label), self._aside(label)
            node = self._new(at)
            self._op("creat", path=at, node=node, mode=one.mode)
            self._write(at, path, node, 0, one.size)
            self._into_place(at, label, node, over)
        if label in self._opened:
            self._opened[label] = False

    def _aside(self, label: str) -> str:
        self._hidden += 1
        return f"{os.path.dirname(label)}/.unseen-{self._hidden}"

    def _into_place(self, at: str, label: str, node: int, over: int | None) -> None:
        self._op("rename", path=at, to=label, node=node, over=over)
        del self._nodes[at]
        self._nodes[label] = node

    # --- writing down ---

    def _path(self, label: str) -> str:
        number, _, inner = label.partition("/")
        return os.path.join(self._roots[int(number)], inner)

    def _new(self, label: str) -> int:
        node = self._nodes[label] = self._next
        self._next += 1
        return node

    def _write(self, label: str, path: str, node: int, start: int, end: int) -> None:
        began, at = self._offset, start
        with open(path, "rb") as file:
            file.seek(start)
            while at < end:
                piece = file.read(min(_PIECE, end - at))
                if not piece:
                    break
                self._data.write(piece)
                self._offset += len(piece)
                at += len(piece)
        if at > start:
            self._op(
                "write",
                path=label,
                node=node,
                off=start,
                len=at - start,
                data_off=began,
            )

    def _op(self, kind: str, **fields: Any) -> None:
        self._number += 1
        self._add(
            op=kind,
            n=self._number,
            pid=self._owner,
            tid=threading.get_native_id(),
            where=self._where,
            # It is seen late: the op that was announced at the last look came right then.
            t=round(self._looked - self._began, 6),
            **fields,
        )

    def _add(self, **fields: Any) -> None:
        line = {key: value for key, value in fields.items() if value is not None}
        line.setdefault("t", round(time.monotonic() - self._began, 6))
        self._log.write(json.dumps(line).encode() + b"\n")

    def _end(self) -> None:
        if os.getpid() == self._owner:
            self.look(None)
            self._add(op="end", complete=1, ops=self._number)


def begin(log: str) -> None:
    """Record this process, unless another one of the program is recorded already.

    Raises:
        OSError: the log cannot be made.
    """
    roots = [SESSION.orders["folder"], SESSION.orders["out"]]
    try:
        recorder = Recorder(log, [os.path.realpath(root) for root in roots if root])
    except FileExistsError:
        return
    recorder.install()


def _seen(path: str) -> Seen:
    found = os.lstat(path)
    kind, size, target = "", 0, None
    if stat.S_ISDIR(found.st_mode):
        # What is put into a folder changes its time; that is told of the things in it.
        return Seen("dir", found.st_ino, 0, 0, stat.S_IMODE(found.st_mode), None)
    if stat.S_ISLNK(found.st_mode):
        kind, target = "link", os.readlink(path)
    elif stat.S_ISREG(found.st_mode):
        kind, size = "file", found.st_size
    mode = stat.S_IMODE(found.st_mode)
    return Seen(kind, found.st_ino, size, found.st_mtime_ns, mode, target)
