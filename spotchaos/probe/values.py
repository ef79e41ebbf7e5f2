"""The canonical spelling of what is not a bulk tensor: equal states are spelled alike.

The order of keys, tuple or list, int or tensor without dimensions, None or missing make
no difference (rules.md 1).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any


def is_tensor(value: Any) -> bool:
    """Whether `value` is a tensor; imports no torch to find out."""
    torch = sys.modules.get("torch")
    # The type alone is asked: `isinstance` has a lazy proxy say of which class it is.
    return torch is not None and issubclass(type(value), torch.Tensor)


def number_of(value: Any) -> str | None:
    """Return the spelling of a number or of a tensor that is one; None for the rest."""
    if is_tensor(value):
        if value.dim() or value.device.type == "meta":
            return None
        value = value.item()
    elif type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        value = value.item()
    if isinstance(value, (bool, int, float)):
        try:
            return repr(float(value))
        except OverflowError:
            return repr(value)
    return None


def put(digest: Any, value: Any, depth: int = 0) -> None:
    """Feed `value` to `digest` in its canonical spelling.

    Args:
        digest: a `fingerprint.Digest`.
        value: numbers, texts, tensors, and mappings and sequences of them; of anything
            else the type's name counts.
        depth: how deep we are; beyond 8, structures count by name only.
    """
    number = number_of(value)
    if number is not None:
        digest.text(number)
    elif value is None:
        digest.text("none")
    elif isinstance(value, (str, bytes)):
        digest.text(repr(value))
    elif is_tensor(value):
        digest.tensor(value)
    elif isinstance(value, dict) and depth < 8:
        digest.text("{")
        for key in sorted(value, key=str):
            if value[key] is not None:
                digest.text(str(key))
                put(digest, value[key], depth + 1)
        digest.text("}")
    elif isinstance(value, (list, tuple)) and depth < 8:
        digest.text("[")
        for item in value:
            put(digest, item, depth + 1)
        digest.text("]")
    elif type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
        digest.text(f"{value.dtype}{value.shape}")
        digest.data(value.tobytes())
    else:
        digest.text(type(value).__qualname__)
