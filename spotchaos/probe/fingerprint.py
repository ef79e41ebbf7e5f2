"""Digests of exact bytes: of tensors where they lie, and of plain values.

XXH3-128 where the program's interpreter has xxhash, else an order-sensitive reduction
by torch itself (blake2b would cost twice a step, rules.md 8). A CPU tensor that is
contiguous is read where it lies; one on a device is reduced there, and 16 bytes travel.
"""

from __future__ import annotations

import sys
from _blake2 import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

# Below this many bytes the reduction's own calls cost more than blake2b.
_SMALL_BYTES = 1 << 14


def content_of(tensor: Any) -> bytes:
    """Return a copy of the bytes of a small, contiguous CPU tensor."""
    import ctypes

    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def buffer_of(tensor: Any) -> Any:
    """Return a buffer over the memory of a contiguous CPU tensor: no copy is made.

    The caller keeps the tensor alive while it uses the buffer.
    """
    import ctypes

    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return b""
    return (ctypes.c_char * size).from_address(tensor.data_ptr())


class Algorithm:
    """The one that this attempt uses, chosen when torch is imported."""

    def __init__(self) -> None:
        self.name = "xxh3_128"
        self.new: Any = None

    def choose(self, wanted: str | None) -> str:
        """Settle on `wanted`, or on the best that this interpreter has."""
        if wanted != "torch_int64":
            try:
                from xxhash import xxh3_128

                self.name, self.new = "xxh3_128", xxh3_128
            except ImportError:
                self.name, self.new = "torch_int64", None
        else:
            self.name, self.new = "torch_int64", None
        return self.name


ALGORITHM = Algorithm()


class Digest:
    """Takes names, values and tensors in order; the order is part of the digest."""

    def __init__(self) -> None:
        if ALGORITHM.new is not None:
            self._state = ALGORITHM.new()
        else:
            self._state = blake2b(digest_size=16)
        self._reduced: list[Any] = []  # sums that are still on their way from a device

    def text(self, value: str) -> None:
        self._state.update(value.encode())
        self._state.update(b"\0")

    def data(self, content: Any) -> None:
        """Take anything that has a buffer."""
        self._state.update(content)

    def tensor(self, tensor: Any) -> None:
        """Take dtype, shape and exact content."""
        for part in plain_parts(tensor):
            self.text(f"{part.dtype}{tuple(part.shape)}")
            if part.device.type == "meta":
                continue
            if part.device.type == "cpu":
                size = part.numel() * part.element_size()
                if ALGORITHM.new is not None or size <= _SMALL_BYTES:
                    self._state.update(buffer_of(part))
                    continue
            self._reduced.append(reduced(part))

    def hex(self) -> str:
        """Return the digest; waits for the devices."""
        if self._reduced:
            torch = sys.modules["torch"]
            for device in dict.fromkeys(r.device for r in self._reduced):
                sums = [r for r in self._reduced if r.device == device]
                self._state.update(content_of(torch.stack(sums).cpu()))
            self._reduced = []
        return str(self._state.hexdigest())


def tensor_digest(tensor: Any) -> str:
    """Return the digest of one tensor's dtype, shape and content."""
    digest = Digest()
    digest.tensor(tensor)
    return digest.hex()


def plain_parts(tensor: Any) -> list[Any]:
    """Return the contiguous, dense tensors that hold the content of `tensor`."""
    torch = sys.modules["torch"]
    local = getattr(tensor, "_local_tensor", None)  # DTensor: what this rank holds
    if local is not None:
        return plain_parts(local)
    kind = type(tensor)
    if kind is not torch.Tensor and kind is not torch.nn.Parameter:
        flatten = getattr(tensor, "__tensor_flatten__", None)
        if flatten is not None:
            names = flatten()[0]
            return [p for name in names for p in plain_parts(getattr(tensor, name))]
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        if tensor.layout is torch.sparse_coo:
            tensor = tensor.coalesce()
            return plain_parts(tensor.indices()) + plain_parts(tensor.values())
        if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
            parts = (tensor.crow_indices(), tensor.col_indices(), tensor.values())
            return [p for part in parts for p in plain_parts(part)]
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return [tensor if tensor.is_contiguous() else tensor.contiguous()]


# Words of 64 bits reduced at once; bounds the memory that a reduction needs.
_CHUNK = 1 << 20
_multipliers: dict[Any, Any] = {}


def reduced(tensor: Any) -> Any:
    """Return two int64 sums on the tensor's own device, which its bytes determine.

    Each word is mixed and multiplied by an odd number of its place: the sums change with
    the order, and, being of integers, not with the order in which they are added up.
    """
    torch = sys.modules["torch"]
    flat = tensor.reshape(-1).view(torch.uint8)
    rest = flat.numel() % 8
    if rest or flat.storage_offset() * flat.element_size() % 8:
        padded = torch.zeros(
            flat.numel() + (-rest) % 8, dtype=torch.uint8, device=flat.device
        )
        padded[: flat.numel()] = flat
        flat = padded
    words = flat.view(torch.int64)
    first, second = _multipliers_on(words.device)
    total = torch.zeros(2, dtype=torch.int64, device=words.device)
    for start in range(0, words.numel(), _CHUNK):
        chunk = words[start : start + _CHUNK]
        count = chunk.numel()
        one = ((chunk ^ (chunk >> 29)) * first[:count]).sum()
        two = ((chunk ^ (chunk >> 47)) * second[:count]).sum()
        total = total * 0x2545F4914F6CDD1D + torch.stack((one, two))
    return total


def _multipliers_on(device: Any) -> Any:
    found = _multipliers.get(device)
    if found is None:
        torch = sys.modules["torch"]
        places = torch.arange(1, _CHUNK + 1, dtype=torch.int64, device=device)
        mixed = []
        for factor in (0x1E3779B97F4A7C15, 0x3C79AC492BA7B653):
            value = places * factor
            value = (value ^ (value >> 31)) * 0x14D049BB133111EB
            mixed.append((value ^ (value >> 29)) | 1)
        found = _multipliers[device] = mixed
    return found
