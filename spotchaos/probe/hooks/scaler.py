"""Learning of gradient scalers as they are made."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from spotchaos.probe.components import SCALERS

if TYPE_CHECKING:
    from typing import Any


def hook_scaler(torch: Any) -> None:
    """Follow the constructor of the base of all of them."""
    kind = torch.amp.GradScaler
    original = kind.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it takes its place
        original(self, *args, **kwargs)
        SCALERS.see(self)

    kind.__init__ = __init__
