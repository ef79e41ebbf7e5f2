"""What loaders handed out lately, so that a forward's data can be traced to its samples.

A batch that was received is not one that was trained on (rules.md 2): a program skips
some, a wrapper fetches one ahead. So a forward's tensors are matched with the batches
they came from, by identity, then by the memory they share, then by content.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING

from spotchaos.probe.fingerprint import tensor_digest
from spotchaos.probe.leaves import leaves_of
from spotchaos.probe.values import is_tensor

if TYPE_CHECKING:
    from typing import Any

# Loaders fetch a few ahead and programs accumulate some; older ones are not looked up.
_KEPT = 64
# Content is hashed at the fetch, since a copy to a device may outlive the original.
_MOST_BYTES = 32 << 20


class _Entry:
    """One batch as a loader returned it."""

    __slots__ = ("digests", "ids", "ranges", "references")

    def __init__(self, ids: list[str], tensors: list[Any]) -> None:
        self.ids = ids
        self.references = [weakref.ref(t) for t in tensors]
        self.ranges = [_range(t) for t in tensors]
        self.digests = {
            tensor_digest(t)
            for t in tensors
            if t.numel() > 1 and t.numel() * t.element_size() <= _MOST_BYTES
        }

    def has(self, tensor: Any) -> bool:
        return any(reference() is tensor for reference in self.references)

    def part(self, tensor: Any) -> list[str] | None:
        """Return the ids of the rows that `tensor` is a view of, None if of none."""
        if tensor.dim() == 0 or tensor.numel() == 0 or tensor.device.type != "cpu":
            return None
        start = tensor.data_ptr()
        for reference, (low, high, count, row) in zip(self.references, self.ranges):
            if reference() is None or not low <= start < high or not row:
                continue
            first, rest = divmod(start - low, row)
            own = tensor.stride(0) * tensor.element_size()
            rows = int(tensor.shape[0])
            if count != len(self.ids) or own != row or rest + 1 > row or rows == count:
                return self.ids  # the very list: who is given it again adds no sample
            return self.ids[first : first + rows]
        return None


class Fetched:
    """The newest batches of all loaders of this process."""

    def __init__(self) -> None:
        self._entries: deque[_Entry] = deque(maxlen=_KEPT)

    def add(self, ids: list[str], data: Any) -> None:
        """Remember that a loader returned `data`, made of the samples `ids`."""
        tensors = [leaf for _, leaf in leaves_of(data) if is_tensor(leaf)]
        if tensors:
            self._entries.append(_Entry(ids, tensors))

    def ids_of(self, tensors: list[Any]) -> list[str] | None:
        """Return the ids of the samples in `tensors`; None if no loader made them."""
        newest_first = list(reversed(self._entries))
        for tensor in tensors:
            for entry in newest_first:
                if entry.has(tensor):
                    return entry.ids
        for tensor in tensors:
            for entry in newest_first:
                ids = entry.part(tensor)
                if ids is not None:
                    return ids
        for tensor in tensors:
            if not newest_first or tensor.numel() <= 1:
                continue
            digest = tensor_digest(tensor)
            for entry in newest_first:
                if digest in entry.digests:
                    return entry.ids
        return None


FETCHED = Fetched()


def _range(tensor: Any) -> tuple[int, int, int, int]:
    """Return (start, end, rows, bytes from row to row) of a tensor's memory."""
    if tensor.device.type != "cpu" or tensor.dim() == 0 or not tensor.is_contiguous():
        return 0, 0, 0, 0
    start = int(tensor.data_ptr())
    size = int(tensor.numel() * tensor.element_size())
    return (
        start,
        start + size,
        int(tensor.shape[0]),
        int(tensor.stride(0) * tensor.element_size()),
    )
