"""If the program imports a `spotchaos` of its own, it finds the parts that we left there."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any


def hook_own_package(module: Any) -> None:
    """Bind subpackages that are in `sys.modules` already, as an import would have."""
    for name in ("probe", "trace"):
        found = sys.modules.get(f"spotchaos.{name}")
        if found is not None and not hasattr(module, name):
            setattr(module, name, found)
