"""Which weights an object holds that is about to be written.

It may be a copy: training can be some steps further by then, on the thread that writes or
on another, so that only the content tells of which step the checkpoint is. Names are
matched from their end, since a checkpoint puts a model below keys of its own.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from spotchaos.probe.components import sorted_digest, weights
from spotchaos.probe.session import SESSION
from spotchaos.probe.structure import named_tensors
from spotchaos.probe.values import is_tensor
from spotchaos.trace.format import LIVE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_DEEPEST, _MOST_ENTRIES = 8, 100_000
# A checkpoint may hold several copies of a model: itself, an average, the best.
_MOST_COPIES = 8


def weights_in(content: Any, *, beside: bool) -> list[str]:
    """Return the fingerprints that the weights in `content` may have; empty: unknown.

    Args:
        content: what is about to be written.
        beside: training goes on meanwhile. If not, weights that are those in training
            themselves are `LIVE`, and need no fingerprint.
    """
    try:
        return _digests(content, beside=beside)
    except Exception as error:
        SESSION.trouble("weights of what is written", error)
        return []


def _digests(content: Any, *, beside: bool) -> list[str]:
    wanted: dict[str, list[str]] = {}  # root -> names within it
    trained = dict(weights())
    for name in trained:
        root, sign, inner = name.partition(":")
        if not sign or not root.isdigit():
            root, inner = "", name
        wanted.setdefault(root, []).append(inner)
    tensors = dict(itertools.islice(_tensors(content), _MOST_ENTRIES))
    if not wanted or not tensors:
        return []
    copies = [
        [(root, below) for below in _places(names, tensors)]
        for root, names in wanted.items()
    ]
    candidates = []
    for chosen in itertools.islice(itertools.product(*copies), _MOST_COPIES):
        named = [
            (f"{root}:{name}" if root else name, tensors[below + name])
            for root, below in chosen
            for name in wanted[root]
        ]
        if not beside and all(_is_same(tensor, trained[n]) for n, tensor in named):
            return [LIVE]
        candidates.append(named)
    return [sorted_digest(named) for named in candidates]


def _is_same(tensor: Any, other: Any) -> bool:
    """Tell whether two tensors are the same memory, seen alike."""
    if tensor is other:
        return True
    try:
        place = tensor.data_ptr()
        return bool(
            place
            and place == other.data_ptr()
            and (tensor.dtype, tensor.shape) == (other.dtype, other.shape)
        )
    except (AttributeError, NotImplementedError, RuntimeError):
        # A subclass without memory of its own, as of sharded weights.
        return False


def _places(names: list[str], tensors: dict[str, Any]) -> list[str]:
    """Return what stands before all of the names, for each copy of a model."""
    first = names[0]
    ends = [
        path[: len(path) - len(first)]
        for path in tensors
        if path == first or path.endswith("." + first)
    ]
    return [below for below in ends if all(below + name in tensors for name in names)]


def _tensors(content: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    if is_tensor(content):
        yield path, content
    elif depth < _DEEPEST:
        below = path + "." if path else ""
        if isinstance(content, dict):
            pairs: Any = list(content.items())
        elif isinstance(content, (list, tuple)):
            pairs = list(enumerate(content))
        elif "_parameters" in getattr(content, "__dict__", {}):
            pairs = list(named_tensors(content, "_parameters"))
        else:
            pairs = []
        for key, value in pairs:
            yield from _tensors(value, f"{below}{key}", depth + 1)
