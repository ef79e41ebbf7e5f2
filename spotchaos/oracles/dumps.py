"""Two dumps of one step: which tensor differs, in how many elements, how far apart.

A dump is a folder of indexes and the raw little-endian bytes that they point into, as
`spotchaos.probe.dump` writes them. No torch is needed to read it. Distance is counted in
units in the last place: floats of one format, taken as integers in order, are as many
steps apart as there are floats between them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

# The order in which a reader wants the first tensor that differs: what a step starts
# from, then what it consumed, then what it made.
_ORDER = (
    "weights",
    "buffers",
    "optimizer",
    "batch",
    "gradients",
    "loss",
    "averages",
)
# Formats whose bits can be put in order, with the bits of an infinite exponent.
_INFINITE: dict[str, int] = {
    "float64": 0x7FF0_0000_0000_0000,
    "float32": 0x7F80_0000,
    "float16": 0x7C00,
    "bfloat16": 0x7F80,
    "float8_e5m2": 0x7C,
    # This format has no infinity: only all ones is not a number.
    "float8_e4m3fn": 0x7E,
}
# Bytes of each side that are in memory at once: what a core's own cache holds.
_PIECE = 256 << 10
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True, slots=True)
class _Tensor:
    component: str
    name: str
    dtype: str  # by torch's name
    shape: tuple[int, ...]
    path: Path
    offset: int
    length: int  # bytes

    @property
    def label(self) -> str:
        return self.name or self.component

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    def pieces(self, size: int) -> Iterator[bytearray]:
        """Yield its bytes in order, `size` at a time, in one buffer that is used again."""
        buffer = bytearray(min(size, self.length))
        with self.path.open("rb", buffering=0) as file:
            file.seek(self.offset)
            for at in range(0, self.length, size):
                if self.length - at < size:
                    buffer = buffer[: self.length - at]
                got = file.readinto(buffer)
                if got != len(buffer):
                    raise ValueError(f"{self.path.name!r} ends too early")
                yield buffer


_Key = tuple[int, int, str]  # place of the component, rank, name


def compare_dumps(expected: Path, found: Path) -> tuple[str, int, int | None] | None:
    """Return the first tensor that differs, how many elements, and the largest distance.

    Args:
        expected: folder (or one index) of the baseline's dump.
        found: that of the attempt's.

    Returns:
        The tensor's name, the count of unequal elements, and the largest distance in
        units in the last place; None for the latter where the elements are no floats,
        or one is not a number, or the shapes or formats differ, or an optimizer has
        none. None altogether if every tensor that both dumps hold is equal.

    Raises:
        OSError: a dump cannot be read.
        ValueError: an index is not what it should be.
    """
    ours, theirs = _index(expected), _index(found)
    for key, tensor in ours.items():
        other = theirs.get(key)
        if other is None and tensor.component == "optimizer":
            # It makes its state at its first step: what has none has lost it.
            return tensor.label, tensor.elements, None
        if other is None:
            continue
        if (tensor.dtype, tensor.shape) != (other.dtype, other.shape):
            return tensor.label, max(tensor.elements, other.elements), None
        unequal = _compare(tensor, other)
        if unequal is not None:
            return (tensor.label, *unequal)
    return None


def distance(expected: Path, found: Path) -> tuple[int, int | None]:
    """Return how many elements of two dumps differ in all, and the largest distance.

    Args:
        expected: folder (or one index) of the baseline's dump.
        found: that of the attempt's.

    Returns:
        The count of unequal elements, and the largest distance in units in the last
        place; None for the latter if it is unknown for any tensor.

    Raises:
        OSError: a dump cannot be read.
        ValueError: an index is not what it should be.
    """
    ours, theirs = _index(expected), _index(found)
    number, furthest, is_known = 0, 0, True
    for key, tensor in ours.items():
        other = theirs.get(key)
        if other is None:
            continue
        if (tensor.dtype, tensor.shape) != (other.dtype, other.shape):
            number += max(tensor.elements, other.elements)
            is_known = False
            continue
        unequal, ulp = _compare(tensor, other) or (0, 0)
        number += unequal
        is_known = is_known and ulp is not None
        furthest = max(furthest, ulp or 0)
    return number, furthest if is_known else None


def _index(where: Path) -> Mapping[_Key, _Tensor]:
    """Read all indexes of a dump; tensors are matched by name, not by position."""
    files = [where] if where.is_file() else sorted(where.rglob("*.json"), key=_process)
    found: dict[_Key, _Tensor] = {}
    seen: dict[str, int] = {}
    for file in files:
        index: Any = json.loads(file.read_text())
        if not isinstance(index, Mapping) or not isinstance(index.get("tensors"), list):
            raise ValueError(f"{file.name!r} is not the index of a dump")
        component = str(index.get("component"))
        # Ranks are started in order, so that their processes are, where none is named.
        number = seen.get(component, 0)
        seen[component] = number + 1
        rank = number if index.get("rank") is None else int(index["rank"])
        place = _ORDER.index(component) if component in _ORDER else len(_ORDER)
        for tensor in _tensors(file, index, component):
            found[place, rank, tensor.name] = tensor
    order = {key: index for index, key in enumerate(found)}
    return dict(sorted(found.items(), key=lambda item: (*item[0][:2], order[item[0]])))


def _process(file: Path) -> tuple[int, str]:
    """Order the files of a dump by the process that wrote them."""
    number = re.match(r"\d+", file.name)
    return int(number.group()) if number else 0, file.name


def _tensors(file: Path, index: Mapping[str, Any], component: str) -> Iterator[_Tensor]:
    for entry in index["tensors"]:
        try:
            yield _Tensor(
                component=component,
                name=str(entry["name"]),
                dtype=str(entry.get("torch_dtype") or entry["dtype"]),
                shape=tuple(int(n) for n in entry["shape"]),
                path=file.parent / str(index["data"]),
                offset=int(entry["offset"]),
                length=int(entry["bytes"]),
            )
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"{file.name!r} has an entry without {error}") from error


def _compare(ours: _Tensor, theirs: _Tensor) -> tuple[int, int | None] | None:
    """Return how many elements differ and by how much; None if none does."""
    count = max(1, ours.elements)
    if ours.length != theirs.length or ours.length % count:
        return count, None
    width = ours.length // count
    size = max(1, _PIECE // max(1, width)) * max(1, width)
    number, furthest, is_known = 0, 0, width in _UNSIGNED and ours.dtype in _INFINITE
    for left, right in zip(ours.pieces(size), theirs.pieces(size), strict=True):
        if left == right:
            continue
        if ours.length % count:
            return count, None  # elements of packed bits
        if width not in _UNSIGNED:
            pairs = zip(_split(left, width), _split(right, width), strict=True)
            number += sum(a != b for a, b in pairs)
            continue
        bits = np.dtype(_UNSIGNED[width]).newbyteorder("<")
        a, b = np.frombuffer(left, bits), np.frombuffer(right, bits)
        unequal = a != b
        number += int(np.count_nonzero(unequal))
        if is_known:
            distance = ulp_distance(a[unequal], b[unequal], dtype=ours.dtype)
            is_known = distance is not None
            furthest = max(furthest, distance or 0)
    return (number, furthest if is_known else None) if number else None


def _split(raw: bytearray, width: int) -> Iterator[bytes]:
    whole = bytes(raw)
    return (whole[i : i + width] for i in range(0, len(whole), width))


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


def _is_nan(bits: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    sign = 1 << (bits.dtype.itemsize * 8 - 1)
    magnitude = bits & bits.dtype.type(sign - 1)
    nan: npt.NDArray[Any] = magnitude > bits.dtype.type(_INFINITE[dtype])
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
