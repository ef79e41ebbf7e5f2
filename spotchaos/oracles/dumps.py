"""Two dumps of one step: which tensor differs, in how many elements, how far apart.

A dump is a folder with `index.json`, a list of {component, name, dtype, shape, file,
offset}, and the raw little-endian bytes that it points into. No torch is needed to read
it. Distance is counted in units in the last place: floats of one format, taken as
integers in order, are as many steps apart as there are floats between them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

# dtype -> (bytes of an element, is it a float whose bits can be put in order)
_FORMATS: dict[str, tuple[int, bool]] = {
    "float64": (8, True),
    "float32": (4, True),
    "float16": (2, True),
    "bfloat16": (2, True),
    "float8_e4m3fn": (1, True),
    "float8_e5m2": (1, True),
    "int64": (8, False),
    "int32": (4, False),
    "int16": (2, False),
    "int8": (1, False),
    "uint8": (1, False),
    "bool": (1, False),
    "complex64": (8, False),
    "complex128": (16, False),
}
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True, slots=True)
class _Tensor:
    component: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int

    @property
    def label(self) -> str:
        return self.name or self.component

    def raw(self) -> bytes:
        width, _ = _FORMATS.get(self.dtype, (1, False))
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return file.read(math.prod(self.shape) * width)


def compare_dumps(expected: Path, found: Path) -> tuple[str, int, int | None] | None:
    """Return the first tensor that differs, how many elements, and the largest distance.

    Args:
        expected: folder (or index file) of the baseline's dump.
        found: that of the attempt's.

    Returns:
        The tensor's name, the count of unequal elements, and the largest distance in
        units in the last place; None for the latter where the elements are no floats,
        or one is not a number, or the shapes or formats differ. None altogether if
        every tensor that both dumps hold is equal.

    Raises:
        OSError: a dump cannot be read.
        ValueError: an index is not what it should be.
    """
    ours, theirs = _index(expected), _index(found)
    for key, tensor in ours.items():
        other = theirs.get(key)
        if other is None:
            continue
        if (tensor.dtype, tensor.shape) != (other.dtype, other.shape):
            return (
                tensor.label,
                max(math.prod(tensor.shape), math.prod(other.shape)),
                None,
            )
        unequal = _compare(tensor, other)
        if unequal is not None:
            return (tensor.label, *unequal)
    return None


def _index(where: Path) -> Mapping[tuple[str, str], _Tensor]:
    """Read all indexes of a dump, in order; names are matched, not positions."""
    files = [where] if where.is_file() else sorted(where.rglob("*.json"))
    return {(t.component, t.name): t for file in files for t in _tensors(file)}


def _tensors(file: Path) -> Iterator[_Tensor]:
    entries: Any = json.loads(file.read_text())
    shared = None
    if isinstance(entries, Mapping):
        shared, entries = entries.get("file"), entries.get("tensors")
    if not isinstance(entries, list):
        raise ValueError(f"{file.name!r} is not the index of a dump")
    for entry in entries:
        try:
            name = entry.get("file") or shared or f"{file.stem}.bin"
            yield _Tensor(
                component=str(entry["component"]),
                name=str(entry["name"]),
                dtype=str(entry["dtype"]).removeprefix("torch."),
                shape=tuple(int(n) for n in entry["shape"]),
                path=file.parent / name,
                offset=int(entry.get("offset") or 0),
            )
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"{file.name!r} holds an entry without {error}") from error


def _compare(ours: _Tensor, theirs: _Tensor) -> tuple[int, int | None] | None:
    left, right = ours.raw(), theirs.raw()
    if left == right:
        return None
    width, is_float = _FORMATS.get(ours.dtype, (1, False))
    if len(left) != len(right) or len(left) % width:
        return max(len(left), len(right)) // width, None
    if width not in _UNSIGNED:
        pairs = zip(_split(left, width), _split(right, width), strict=True)
        return sum(a != b for a, b in pairs), None
    bits = np.dtype(_UNSIGNED[width]).newbyteorder("<")
    a, b = np.frombuffer(left, bits), np.frombuffer(right, bits)
    unequal = a != b
    count = int(np.count_nonzero(unequal))
    if not is_float:
        return count, None
    return count, ulp_distance(a[unequal], b[unequal], dtype=ours.dtype)


def _split(raw: bytes, width: int) -> Iterator[bytes]:
    return (raw[i : i + width] for i in range(0, len(raw), width))


def ulp_distance(a: npt.NDArray[Any], b: npt.NDArray[Any], *, dtype: str) -> int | None:
    """Return the largest distance of two arrays of float bits, or None beside a NaN.

    Args:
        a: bits of the one side, as unsigned integers of the format's width.
        b: those of the other.
        dtype: the format, by torch's name.
    """
    if not a.size:
        return 0
    if bool(np.any(_is_nan(a, dtype) | _is_nan(b, dtype))):
        return None
    left, right = _in_order(a), _in_order(b)
    # Both lie in one order of unsigned integers, so that the difference cannot overflow.
    return int(np.max(np.maximum(left, right) - np.minimum(left, right)))


_EXPONENT: dict[str, int] = {
    "float64": 0x7FF0_0000_0000_0000,
    "float32": 0x7F80_0000,
    "float16": 0x7C00,
    "bfloat16": 0x7F80,
    "float8_e5m2": 0x7C,
    # This format has no infinity: only all ones is not a number.
    "float8_e4m3fn": 0x7E,
}


def _is_nan(bits: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    sign = 1 << (bits.dtype.itemsize * 8 - 1)
    magnitude = bits & bits.dtype.type(sign - 1)
    nan: npt.NDArray[Any] = magnitude > bits.dtype.type(_EXPONENT[dtype])
    return nan


def _in_order(bits: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Map float bits to unsigned integers in the order of their values; +0 and -0 meet."""
    kind = bits.dtype.type
    half = kind(1 << (bits.dtype.itemsize * 8 - 1))
    magnitude = bits & kind(half - kind(1))
    ordered: npt.NDArray[Any] = np.where(
        bits & half, half - magnitude, half + magnitude
    )
    return ordered
