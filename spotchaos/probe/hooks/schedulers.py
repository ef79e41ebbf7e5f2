"""Learning of schedulers as they are made."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from spotchaos.probe.components import SCHEDULERS

if TYPE_CHECKING:
    from typing import Any


def hook_schedulers(torch: Any) -> None:
    """Follow the constructors; some of torch's own do not call that of their base."""
    module = torch.optim.lr_scheduler
    kinds = {
        kind
        for kind in vars(module).values()
        if isinstance(kind, type)
        and issubclass(kind, module.LRScheduler)
        and "__init__" in vars(kind)
    }
    for kind in kinds:
        _follow(kind)


def _follow(kind: Any) -> None:
    original = kind.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it takes its place
        original(self, *args, **kwargs)
        SCHEDULERS.see(self)

    kind.__init__ = __init__
