"""Finding the tensors in whatever a program passes around: nested, and of any class."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spotchaos.probe.values import is_tensor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_DEEPEST = 8
_MOST_CHILDREN = 10_000


def leaves_of(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield (name, leaf) in an order that repeats: tensors, numpy arrays, plain values.

    Understands mappings, sequences, dataclasses, and objects that keep a mapping in
    `data` or their attributes (batches of tokenizers, of graphs).
    """
    if value is None or depth > _DEEPEST:
        return
    if is_tensor(value) or isinstance(value, (bool, int, float, str, bytes)):
        yield name, value
        return
    children = _children(value)
    if children is None:
        yield name, value
        return
    for key, child in children[:_MOST_CHILDREN]:
        yield from leaves_of(child, f"{name}.{key}" if name else str(key), depth + 1)


def _children(value: Any) -> list[tuple[Any, Any]] | None:
    if isinstance(value, dict):
        return sorted(value.items(), key=lambda item: str(item[0]))
    if isinstance(value, (list, tuple)):
        return list(enumerate(value))
    if type(value).__module__.partition(".")[0] == "numpy" or isinstance(value, type):
        return None
    kept = getattr(value, "__dict__", None)
    if not isinstance(kept, dict) or callable(value):
        return None
    inner = kept.get("data")
    if isinstance(inner, dict):
        return sorted(inner.items(), key=lambda item: str(item[0]))
    return sorted((k, v) for k, v in kept.items() if not k.startswith("__"))
