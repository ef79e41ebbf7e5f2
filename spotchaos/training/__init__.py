"""The reference core: what a training program needs to survive being interrupted.

Importing this package imports no torch; a name is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spotchaos.training.checkpoint import CheckpointStore
    from spotchaos.training.sampler import ResumableSampler
    from spotchaos.training.trainer import Trainer
    from spotchaos.training.watch import InterruptionWatch

_HOMES = {
    "CheckpointStore": "checkpoint",
    "InterruptionWatch": "watch",
    "ResumableSampler": "sampler",
    "Trainer": "trainer",
}

__all__ = [
    "CheckpointStore",
    "InterruptionWatch",
    "ResumableSampler",
    "Trainer",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        home = importlib.import_module(f"{__name__}.{_HOMES[name]}")
        return getattr(home, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
