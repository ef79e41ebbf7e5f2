"""Parquet and Arrow files, where pyarrow is installed: their rows, batch by batch."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from spotchaos.outputs.tables import Row, Table, TornError, as_json, packed

# How such files begin, and end.
MAGIC = {b"PAR1": "parquet", b"ARROW1": "arrow"}


def table_of(path: Path, kind: str) -> Table | None:
    """Return the rows of a file; None if nothing here can read it.

    Args:
        path: of the file.
        kind: "parquet" or "arrow".

    Raises:
        TornError: its footer is missing, or damaged.
    """
    try:
        import pyarrow  # type: ignore[import-not-found]
        from pyarrow import ipc, parquet
    except ImportError:
        if not _ends_well(path, kind):
            raise TornError("its footer is missing") from None
        return None

    def batches() -> Iterator[Any]:
        if kind == "parquet":
            with parquet.ParquetFile(path) as file:
                yield from file.iter_batches(batch_size=4096)
        else:
            with ipc.open_file(path) as file:
                yield from map(file.get_batch, range(file.num_record_batches))

    def rows() -> Iterator[Row]:
        try:
            for batch in batches():
                for record in batch.to_pylist():
                    yield None, packed(record)
        except (pyarrow.ArrowException, OSError) as error:
            raise TornError(f"it cannot be read: {error}") from None

    next(rows(), None)  # a footer that is missing is seen now
    return Table("", "rows", rows, as_json, is_divisible=True)


def unread_columns(paths: Iterable[Path]) -> str:
    """Return a clause on files of columns that are compared by their bytes; else nothing."""
    if importlib.util.find_spec("pyarrow") is not None:
        return ""
    count = sum(_magic(path) in MAGIC for path in paths if path.is_file())
    if not count:
        return ""
    return (
        f"; {count} Parquet or Arrow file{'' if count == 1 else 's'} compared by bytes,"
        " since pyarrow is not installed (the extra `columns`)"
    )


def _magic(path: Path) -> bytes:
    with path.open("rb") as file:
        head = file.read(6)
    return head[:4] if head.startswith(b"PAR1") else head


def _ends_well(path: Path, kind: str) -> bool:
    """Tell whether the magic word with which such a file ends is there."""
    word = b"PAR1" if kind == "parquet" else b"ARROW1"
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - len(word)))
        return path.stat().st_size > 2 * len(word) and file.read() == word
