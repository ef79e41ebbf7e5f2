"""From a file to its tables, told by its first bytes."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import sqlite3
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

import xxhash

from spotchaos.outputs.arrays import npy_table, safetensors_table
from spotchaos.outputs.columns import MAGIC, table_of
from spotchaos.outputs.pickles import Unreadable, is_pickle, pickle_table
from spotchaos.outputs.tables import (
    Fields,
    Row,
    Table,
    TornError,
    as_bytes,
    as_json,
    as_text,
    packed,
)

HEAD_BYTES = 64 << 10
BLOCK_BYTES = 1 << 20
# Tables that tell of the work, and not of what came of it.
_OF_THE_WORK = re.compile(
    r"^(logs?|heartbeats?|leases?|locks?|attempts|sessions?|workers)$"
)
# A member of an archive that is larger than this is compared as bytes.
MOST_MEMBER_BYTES = 256 << 20
# A file of JSON that is larger than this is taken for lines.
MOST_JSON_BYTES = 64 << 20

Open = Callable[[], IO[bytes]]

# What no text holds: a tab, the ends of lines and pages, and escapes apart.
_CONTROL = frozenset(range(32)) - frozenset(b"\t\n\r\f\x1b")

TEXTS = ("json", "document", "csv", "lines")


def tables_of(path: Path, like: str | None = None) -> list[Table]:
    """Return the tables of a file.

    Args:
        path: of the file.
        like: the kind that text is taken for, whatever its first line says: the file
            with which it is compared is of that kind.

    Raises:
        TornError: it is not whole, so that nothing in it can be read.
    """
    if path.is_symlink():
        return [_bytes_table("", lambda: io.BytesIO(bytes(path.readlink())))]
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    if head.startswith(b"SQLite format 3\0"):
        return _sqlite_tables(path)
    for magic, kind in MAGIC.items():
        if head.startswith(magic):
            found = table_of(path, kind)
            return [found or _bytes_table("", lambda: path.open("rb"))]
    size = path.stat().st_size
    return _tables("", lambda: path.open("rb"), head, size, path.name, like)


def _tables(
    part: str,
    opener: Open,
    head: bytes,
    size: int,
    name: str,
    like: str | None = None,
) -> list[Table]:
    if head.startswith(b"\x93NUMPY"):
        return [npy_table(part, opener, size)]
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _archive_tables(part, opener, _zip_members)
    if head[257:262] == b"ustar":
        return _archive_tables(part, opener, _tar_members)
    if head.startswith(b"\x1f\x8b"):
        return _unzipped(part, opener, name)
    if len(head) > 9 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1e8:
        return [safetensors_table(part, opener, size)]
    if is_pickle(head):
        try:
            return [pickle_table(part, opener, size)]
        except Unreadable:
            return [Table(part, "opaque", lambda: iter(()), as_bytes)]
    if is_text(head):
        kind = like if like in TEXTS else _kind_of_text(head, size, name)
        return [_text_table(part, opener, head, kind, name)]
    return [_bytes_table(part, opener)]


def is_text(head: bytes) -> bool:
    """Tell whether the first bytes of a file are text."""
    if _CONTROL.intersection(head):
        return False
    try:
        head.decode()
    except UnicodeDecodeError as error:
        return error.start >= len(head) - 3 and len(head) == HEAD_BYTES
    return True


# --- text ---


def _kind_of_text(head: bytes, size: int, name: str) -> str:
    first = head.split(b"\n", 1)[0].strip()
    if first.startswith(b"{") and as_json(first) is not None:
        return "json"
    if first[:1] in (b"{", b"[") and size <= MOST_JSON_BYTES:
        return "document"
    return "csv" if first and _delimiter(name) else "lines"


def _text_table(part: str, opener: Open, head: bytes, kind: str, name: str) -> Table:
    if kind == "json":
        return Table(part, kind, partial(_lines, opener), as_json, is_divisible=True)
    if kind == "document":
        return Table(part, kind, partial(_whole_json, opener), as_json)
    if kind == "csv":
        delimiter = _delimiter(name) or ","
        first = head.split(b"\n", 1)[0].decode("utf-8", "replace").strip()
        names = next(csv.reader([first], delimiter=delimiter), [])
        rows = partial(_csv_rows, opener, delimiter)
        return Table(part, kind, rows, partial(_csv_fields, names), is_divisible=True)
    return Table(part, kind, partial(_lines, opener), as_text, is_divisible=True)


def _delimiter(name: str) -> str | None:
    suffix = name.lower().removesuffix(".gz").rpartition(".")[2]
    return {"csv": ",", "tsv": "\t"}.get(suffix)


def _lines(opener: Open) -> Iterator[Row]:
    with opener() as file:
        for line in file:
            yield None, line.rstrip(b"\r\n")


def _whole_json(opener: Open) -> Iterator[Row]:
    with opener() as file:
        text = file.read()
    try:
        value = json.loads(text)
    except ValueError as error:
        raise TornError(f"its JSON breaks off: {error}") from None
    if isinstance(value, list):
        for one in value:
            yield None, packed(one)
    else:
        yield None, packed(value)


def _csv_rows(opener: Open, delimiter: str) -> Iterator[Row]:
    with opener() as file:
        text = io.TextIOWrapper(file, encoding="utf-8", errors="replace", newline="")
        reader = csv.reader(text, delimiter=delimiter)
        try:
            next(reader, None)
            for cells in reader:
                yield None, "\x1f".join(cells).encode()
        except csv.Error as error:
            raise TornError(f"its rows break off: {error}") from None


def _csv_fields(names: list[str], raw: bytes) -> Fields | None:
    cells = raw.decode().split("\x1f")
    if len(cells) != len(names):
        return None
    return dict(zip(names, map(_number, cells), strict=True))


def _number(cell: str) -> Any:
    try:
        return float(cell) if not cell.lstrip("-").isdecimal() else int(cell)
    except ValueError:
        return cell


# --- whole files ---


def _bytes_table(part: str, opener: Open) -> Table:
    def rows() -> Iterator[Row]:
        digest, size = xxhash.xxh3_128(), 0
        with opener() as file:
            while block := file.read(BLOCK_BYTES):
                digest.update(block)
                size += len(block)
        yield "all", digest.digest() + size.to_bytes(8, "big")

    return Table(part, "bytes", rows, as_bytes)


def _sqlite_tables(path: Path) -> list[Table]:
    try:
        with _connected(path) as base:
            names = [
                name
                for (name,) in base.execute(
                    "select name from sqlite_master where type = 'table'"
                    " and name not like 'sqlite_%' order by name"
                )
                if not _OF_THE_WORK.search(name)
            ]
    except sqlite3.DatabaseError as error:
        raise TornError(f"SQLite cannot read it: {error}") from None

    def rows(name: str) -> Iterator[Row]:
        quoted = name.replace('"', '""')
        try:
            with _connected(path) as base:
                found = base.execute(f'select * from "{quoted}"')
                names = [column[0] for column in found.description]
                for cells in found:
                    yield None, packed(dict(zip(names, cells, strict=True)))
        except sqlite3.DatabaseError as error:
            raise TornError(f"SQLite cannot read it: {error}") from None

    return [Table(name, "rows", partial(rows, name), as_json) for name in names]


class _connected:  # noqa: N801 - a context manager
    """A copy of a database with what its journal still has to be put into it.

    A reader of the file itself would write to it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> sqlite3.Connection:
        import shutil
        import tempfile

        self._folder = tempfile.TemporaryDirectory(prefix="spotchaos-")
        copy = Path(self._folder.name) / "base"
        for suffix in ("", "-wal", "-journal"):
            beside = self._path.with_name(self._path.name + suffix)
            if beside.is_file():
                shutil.copyfile(beside, f"{copy}{suffix}")
        self._base = sqlite3.connect(copy)
        return self._base

    def __exit__(self, *error: object) -> None:
        self._base.close()
        self._folder.cleanup()


# --- archives ---


def _archive_tables(
    part: str, opener: Open, members: Callable[[IO[bytes]], Iterator[tuple[str, bytes]]]
) -> list[Table]:
    """Return the tables of all members, each read by content in its turn."""
    found: list[Table] = []
    try:
        with opener() as file:
            for name, content in members(file):
                inner = f"{part}/{name}".lstrip("/")
                if len(content) > MOST_MEMBER_BYTES:
                    found.append(_bytes_table(inner, partial(io.BytesIO, content)))
                    continue
                found += _tables(
                    inner,
                    partial(io.BytesIO, content),
                    content[:HEAD_BYTES],
                    len(content),
                    name,
                )
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error) as error:
        raise TornError(f"the archive is not whole: {error}") from None
    return found


def _zip_members(file: IO[bytes]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        # What torch saves is in a folder that is named after the file it was saved to.
        is_torch = any(name.endswith("/data.pkl") for name in names)
        for name in sorted(names):
            if name.endswith(("/", ".data/serialization_id")):
                continue
            yield name.partition("/")[2] if is_torch else name, archive.read(name)


def _tar_members(file: IO[bytes]) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=file) as archive:
        for member in archive:
            if member.isfile():
                content = archive.extractfile(member)
                yield member.name, b"" if content is None else content.read()


class _Unzipped(gzip.GzipFile):
    """Closes the file that it reads as well."""

    def __init__(self, inner: IO[bytes]) -> None:
        super().__init__(fileobj=inner)
        self._inner = inner

    def close(self) -> None:
        super().close()
        self._inner.close()


def _unzipped(part: str, opener: Open, name: str) -> list[Table]:
    def unzipped() -> IO[bytes]:
        return _Unzipped(opener())  # type: ignore[return-value]

    try:
        with unzipped() as file:
            head = file.read(HEAD_BYTES)
            size = len(head)
            while block := file.read(BLOCK_BYTES):
                size += len(block)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise TornError(f"what is compressed breaks off: {error}") from None
    return _tables(part, unzipped, head, size, name.removesuffix(".gz"))
