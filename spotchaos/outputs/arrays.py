"""Arrays and named tensors in files: their rows, without loading them whole."""

from __future__ import annotations

import ast
import json
import math
from array import array
from collections.abc import Callable, Iterator
from typing import IO, Any

from spotchaos.outputs.tables import Fields, Row, Table, TornError, as_bytes

_FLOATS = {"<f4": "f", "<f8": "d", "F32": "f", "F64": "d"}
_READ_BYTES = 1 << 20


def npy_table(part: str, opener: Callable[[], IO[bytes]], size: int) -> Table:
    """Return the rows of a NumPy array, by their index.

    Raises:
        TornError: its header breaks off, or it is shorter than that says.
    """
    with opener() as file:
        start, header = _npy_header(file)
    shape, kind = header["shape"], str(header["descr"])
    count = shape[0] if shape and not header["fortran_order"] else 1
    item = _item_bytes(kind)
    whole = math.prod(shape) * item
    if size - start < whole:
        raise TornError(f"the array is of {whole} bytes, and {size - start} are there")
    width = whole // count if count else 0

    def rows() -> Iterator[Row]:
        with opener() as file:
            file.read(start)
            yield "shape", f"{shape} {kind}".encode()
            at_once = max(1, _READ_BYTES // max(1, width))
            for first in range(0, count, at_once):
                block = file.read(width * min(at_once, count - first))
                for index in range(len(block) // width if width else 0):
                    row = block[index * width : (index + 1) * width]
                    yield str(first + index), row

    return Table(part, "array", rows, lambda raw: numbers_in(raw, kind))


def numbers_in(raw: bytes, kind: str) -> Fields:
    """Return the numbers of a row as fields; its bytes if they are no floats."""
    code = _FLOATS.get(kind)
    if code is None or len(raw) % array(code).itemsize:
        return as_bytes(raw)
    found = array(code)
    found.frombytes(raw)
    return {f"[{index}]": value for index, value in enumerate(found)}


def _npy_header(file: IO[bytes]) -> tuple[int, dict[str, Any]]:
    prefix = file.read(8)
    width = 2 if prefix[6:7] == b"\x01" else 4
    length = int.from_bytes(file.read(width), "little")
    text = file.read(length)
    try:
        header = ast.literal_eval(text.decode("latin-1"))
    except (ValueError, SyntaxError):
        header = None
    if len(text) < length or not isinstance(header, dict):
        raise TornError("the header of the array breaks off")
    return 8 + width + length, header


def _item_bytes(kind: str) -> int:
    digits = "".join(letter for letter in kind[1:] if letter.isdecimal())
    size = int(digits or 1)
    return size * 4 if kind[1:2] == "U" else size


def safetensors_table(part: str, opener: Callable[[], IO[bytes]], size: int) -> Table:
    """Return the tensors of a safetensors file, by name.

    Raises:
        TornError: the file is shorter than its header says.
    """
    with opener() as file:
        length = int.from_bytes(file.read(8), "little")
        text = file.read(length)
    try:
        header = json.loads(text)
    except ValueError:
        raise TornError("the header of the tensors breaks off") from None
    header.pop("__metadata__", None)
    start = 8 + length
    end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if size < start + end:
        raise TornError(f"the tensors are of {start + end} bytes, and {size} are there")

    def rows() -> Iterator[Row]:
        with opener() as file:
            file.read(start)
            at = 0
            for name, entry in sorted(
                header.items(), key=lambda item: item[1]["data_offsets"]
            ):
                first, last = entry["data_offsets"]
                file.read(first - at)
                yield (
                    name,
                    f"{entry['dtype']} {entry['shape']}:".encode()
                    + file.read(last - first),
                )
                at = last

    def decode(raw: bytes) -> Fields:
        kind, _, data = raw.partition(b":")
        return numbers_in(data, kind.decode().partition(" ")[0])

    return Table(part, "tensors", rows, decode)
