"""The op log: what a recorded run did to its folders, in one total order."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spotchaos.errors import HarnessError

FORMAT = 1

# Kinds that change names; `rename` over an existing name replaces it.
NAME_KINDS = frozenset(
    {
        "creat",
        "mkdir",
        "rename",
        "link",
        "symlink",
        "unlink",
        "rmdir",
        "import",
        "export",
    }
)
# Kinds that change a file's bytes or size.
DATA_KINDS = frozenset({"write", "mwrite", "trunc", "falloc"})
# Kinds that make something durable.
SYNC_KINDS = frozenset({"fsync", "fsyncdir", "sync", "msync"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One thing in a folder: at the start, or come from outside during the run."""

    path: str
    node: int
    kind: str  # file, dir, link, or name (one more name for a known node)
    size: int = 0
    mode: int | None = None
    target: str | None = None
    data_off: int | None = None  # its bytes in the data file; None: in the start folder


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOp:
    """One recorded op on the watched folders, or a mark.

    `number` counts from 1 over everything a program did on purpose; stores into mapped
    files, files that appeared from elsewhere and marks have none.
    """

    kind: str
    number: int | None = None
    node: int | None = None
    path: str | None = None
    to: str | None = None
    offset: int = 0
    length: int = 0
    data_off: int = 0
    over: int | None = None
    target: str | None = None
    text: str | None = None
    entries: tuple[Entry, ...] = ()
    mode: int | None = None
    durable: bool = False  # an O_SYNC write
    exchange: bool = False
    error: int | None = None  # errno; the op did nothing
    rank: int | None = None
    pid: int = 0
    tid: int = 0
    at_s: float = 0.0  # since recording began
    where: str | None = None  # `file:line` of the program
    call: str = ""  # the system call


@dataclass(frozen=True, kw_only=True)
class OpLog:
    """A recorded run: what lay there before, what was done, and where the bytes are."""

    start: tuple[Entry, ...]
    ops: tuple[FileOp, ...]
    header: Mapping[str, Any] = field(default_factory=dict)
    complete: bool = True  # the recorder saw the end
    data: Path | None = None
    blob: bytes = b""  # the bytes themselves, for a log that was made in memory

    @property
    def last(self) -> int:
        """Return the number of the last op."""
        return max((op.number or 0 for op in self.ops), default=0)


def read(path: Path) -> OpLog:
    """Read an op log; a last line that was cut off by a reclaim is left out.

    Args:
        path: of the JSON lines; the bytes lie beside it.

    Raises:
        HarnessError: it is no op log, or one of another format.
    """
    header: dict[str, Any] = {}
    starts: dict[str, Entry] = {}
    bases: dict[int, tuple[int, int]] = {}
    ops: list[FileOp] = []
    complete = False
    for line in _lines(path):
        match line["op"]:
            case "header":
                header = line
            case "start":
                starts[line["path"]] = _entry(line)
            case "base":
                bases[line["node"]] = line["data_off"], line["len"]
            case "end":
                complete = bool(line.get("complete"))
            case "exit":
                pass
            case _:
                ops.append(_file_op(line))
    if header.get("format") != FORMAT:
        raise HarnessError(
            f"{path} is no op log of format {FORMAT}", hint="record the run again"
        )
    start = tuple(
        Entry(
            path=one.path,
            node=one.node,
            kind=one.kind,
            size=bases[one.node][1],
            mode=one.mode,
            data_off=bases[one.node][0],
        )
        if one.kind == "file" and one.node in bases
        else one
        for one in starts.values()
    )
    data = path.with_name(path.name + ".data")
    return OpLog(
        start=start,
        ops=tuple(ops),
        header=header,
        complete=complete,
        data=data if data.exists() else None,
    )


def normalise(ops: Sequence[FileOp]) -> list[tuple[Any, ...]]:
    """Return the ops as what is the same in every run of a repeatable program.

    Random parts of temporary names become `~1`, `~2`, ... in the order in which they
    appear; process ids, times, bytes and marks are left out.
    """
    known: dict[str, str] = {}

    def plain(path: str | None) -> str | None:
        if path is None:
            return None
        return "/".join(_plain_name(part, known) for part in path.split("/"))

    return [
        (op.kind, plain(op.path), plain(op.to), op.offset, op.length, op.rank, op.error)
        for op in ops
        if op.number is not None
    ]


def digest(log: OpLog) -> str:
    """Return 8 hex digits that two recordings of a repeatable program share."""
    text = json.dumps([normalise(log.ops), sorted(one.path for one in log.start)])
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def marks(log: OpLog) -> list[tuple[int, str]]:
    """Return the whole lines that the program wrote to its output.

    Returns:
        Pairs of the number of the next op and the line: at a crash before that op the
        outside world had seen the line.
    """
    found: list[tuple[int, str]] = []
    rest: dict[int, str] = {}
    number = 1
    for op in log.ops:
        if op.number is not None:
            number = op.number + 1
        elif op.kind == "mark":
            *lines, rest[op.pid] = (rest.get(op.pid, "") + (op.text or "")).split("\n")
            found += [(number, line) for line in lines]
    return found


def read_bytes(log: OpLog, offset: int, length: int) -> bytes:
    """Return recorded bytes.

    Raises:
        HarnessError: they were not kept.
    """
    if log.data is None:
        content = log.blob[offset : offset + length]
    else:
        with log.data.open("rb") as file:
            file.seek(offset)
            content = file.read(length)
    if len(content) != length:
        raise HarnessError(
            f"{length} recorded bytes at {offset} are not there",
            hint="record again without discarding data",
        )
    return content


def _lines(path: Path) -> Iterable[dict[str, Any]]:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise HarnessError(f"op log {path} cannot be read: {error.strerror}") from error
    for line in text.split(b"\n")[:-1]:
        try:
            yield json.loads(line)
        except ValueError as error:
            raise HarnessError(f"op log {path} has a line that is no JSON") from error


def _entry(line: Mapping[str, Any]) -> Entry:
    return Entry(
        path=line["path"],
        node=line["node"],
        kind=line["kind"],
        size=line.get("len", 0),
        mode=line.get("mode"),
        target=line.get("target"),
        data_off=line.get("data_off"),
    )


def _file_op(line: Mapping[str, Any]) -> FileOp:
    return FileOp(
        kind=line["op"],
        number=line.get("n"),
        node=line.get("node"),
        path=line.get("path"),
        to=line.get("to"),
        offset=line.get("off", 0),
        length=line.get("len", 0),
        data_off=line.get("data_off", 0),
        over=line.get("over"),
        target=line.get("target"),
        text=line.get("text", line.get("q")),
        entries=tuple(_entry(one) for one in line.get("entries", ())),
        mode=line.get("mode"),
        durable=bool(line.get("durable")),
        exchange=bool(line.get("xchg")),
        error=line.get("err"),
        rank=line.get("rank"),
        pid=line.get("pid", 0),
        tid=line.get("tid", 0),
        at_s=line.get("t", 0.0),
        where=line.get("where"),
        call=line.get("sys", ""),
    )


# What tempfile, safetensors and mkstemp add, and process ids: 6 or more letters and
# digits of mixed kind, or 3 or more digits that stand after a dot in a hidden name.
_TEMPORARY = ("tmp", "partial")
_RANDOM = re.compile(r"(?=[A-Za-z_]*[0-9A-Z])[A-Za-z0-9_]{6,}")


def _plain_name(name: str, known: dict[str, str]) -> str:
    words = name.lower()
    if not name.startswith(".") and not any(word in words for word in _TEMPORARY):
        return name

    def stand_in(found: re.Match[str]) -> str:
        return known.setdefault(found.group(), f"~{len(known) + 1}")

    return _RANDOM.sub(stand_in, name)
