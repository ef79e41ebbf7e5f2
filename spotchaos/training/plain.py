"""Trees of plain values and tensors: what a checkpoint may hold, and how two compare."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from spotchaos.errors import CheckpointError

_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
_COUNTER = "spotchaos:counter"
_LEAVES = (int, float, str, bytes, bool, type(None), torch.Tensor, torch.Size)


def to_plain(value: Any, where: str, *, marks: bool = True) -> Any:
    """Return `value` with nothing in it that `torch.load(weights_only=True)` refuses.

    What cannot be read back is refused when it is saved, not when it is needed.

    Args:
        value: the state of a component.
        where: its name, for messages.
        marks: what `torch.load` reads and `from_plain` must tell apart is marked.

    Raises:
        CheckpointError: an object in it is neither plain nor a tensor.
    """
    if isinstance(value, torch.Tensor):
        if is_lazy(value):
            raise CheckpointError(
                f"{where} has no values yet",
                hint="give the model one batch before its state is captured",
            )
        if _is_a_shard(value):
            raise CheckpointError(
                f"{where} is spread over ranks, and this rank has its shard only",
                hint="save such a model with ShardedStore, to which each rank gives its own",
            )
        return value
    if type(value) in _LEAVES:
        return value
    if isinstance(value, torch.dtype | torch.device):
        return value
    if isinstance(value, Counter):  # MultiStepLR keeps its milestones in one
        return {_COUNTER: dict(value)} if marks else value
    if isinstance(value, Mapping):
        plain = {
            key: to_plain(item, f"{where}.{key}", marks=marks)
            for key, item in value.items()
        }
        return OrderedDict(plain) if isinstance(value, OrderedDict) else plain
    if isinstance(value, list | tuple):
        items = [
            to_plain(item, f"{where}[{i}]", marks=marks) for i, item in enumerate(value)
        ]
        return items if isinstance(value, list) else tuple(items)
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return value.item()  # a scalar of numpy's
    raise CheckpointError(
        f"{where} holds a {type(value).__name__}, which a checkpoint cannot hold",
        hint="keep numbers, strings, tensors, lists and dicts in the state",
    )


def _is_a_shard(tensor: Any) -> bool:
    """Tell whether a tensor is a distributed one (DTensor) that no rank has whole."""
    mesh = getattr(tensor, "device_mesh", None)
    if mesh is None or mesh.size() < 2:
        return False
    return not all(placement.is_replicate() for placement in tensor.placements)


def from_plain(value: Any) -> Any:
    """Undo `to_plain`."""
    if isinstance(value, Mapping):
        if value.keys() == {_COUNTER}:
            return Counter(value[_COUNTER])
        plain = {key: from_plain(item) for key, item in value.items()}
        return OrderedDict(plain) if isinstance(value, OrderedDict) else plain
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        return type(value)(from_plain(item) for item in value)
    return value


def first_difference(left: Any, right: Any, where: str) -> str | None:
    """Name the first place at which two trees differ in any bit; None if they do not.

    A NaN equals itself and -0.0 differs from 0.0, since bytes are compared. The order of
    keys does not matter, and lists equal tuples.
    """
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return None if _same_bits(left, right) else where
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        if left.keys() != right.keys():
            odd = sorted(map(str, left.keys() ^ right.keys()))
            return f"{where}.{odd[0]}"
        pairs = [(f"{where}.{key}", left[key], right[key]) for key in left]
    elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
        if len(left) != len(right):
            return where
        pairs = [
            (f"{where}[{i}]", a, b)
            for i, (a, b) in enumerate(zip(left, right, strict=True))
        ]
    elif isinstance(left, float) and isinstance(right, float):
        same = left.hex() == right.hex()
        return None if same else where
    else:
        return None if type(left) is type(right) and left == right else where
    for place, a, b in pairs:
        if (found := first_difference(a, b, place)) is not None:
            return found
    return None


def _same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if left.layout != right.layout:
        return False
    left, right = left.detach().cpu(), right.detach().cpu()
    if left.layout in _COMPRESSED or left.layout is torch.sparse_coo:
        pairs = zip(_pieces(left), _pieces(right), strict=True)
        return all(_same_bits(ours, theirs) for ours, theirs in pairs)
    if left.layout is torch.strided and left.numel() > 0:
        left = left.contiguous().reshape(-1).view(torch.uint8)
        right = right.contiguous().reshape(-1).view(torch.uint8)
    return bool(torch.equal(left, right))


def _pieces(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the dense tensors of which a sparse one is made."""
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce()
        return [tensor.indices(), tensor.values()]
    by_row = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
    outer = tensor.crow_indices() if by_row else tensor.ccol_indices()
    inner = tensor.col_indices() if by_row else tensor.row_indices()
    return [outer, inner, tensor.values()]
