"""The reference core: what a training program needs to survive being interrupted.

Importing this package imports no torch; a name is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spotchaos.training.checkpoint import CheckpointStore
    from spotchaos.training.keeper import Keeper
    from spotchaos.training.peers import join
    from spotchaos.training.rng import seed_everything
    from spotchaos.training.sampler import (
        ResumableSampler,
        ResumableStream,
        SeededSamples,
    )
    from spotchaos.training.sharded import ShardedStore
    from spotchaos.training.state import TrainingState
    from spotchaos.training.sync import Mirror
    from spotchaos.training.trainer import Schedule, Trainer
    from spotchaos.training.watch import InterruptionWatch, ignore_signals_in_workers

_HOMES = {
    "CheckpointStore": "checkpoint",
    "InterruptionWatch": "watch",
    "Keeper": "keeper",
    "Mirror": "sync",
    "ResumableSampler": "sampler",
    "ResumableStream": "sampler",
    "Schedule": "trainer",
    "SeededSamples": "sampler",
    "ShardedStore": "sharded",
    "Trainer": "trainer",
    "TrainingState": "state",
    "ignore_signals_in_workers": "watch",
    "join": "peers",
    "seed_everything": "rng",
}

__all__ = [
    "CheckpointStore",
    "InterruptionWatch",
    "Keeper",
    "Mirror",
    "ResumableSampler",
    "ResumableStream",
    "Schedule",
    "SeededSamples",
    "ShardedStore",
    "Trainer",
    "TrainingState",
    "ignore_signals_in_workers",
    "join",
    "seed_everything",
]


# Names of the last release, which warn and go with the next one.
_DEPRECATED = {"deaf_workers": "watch"}


def __getattr__(name: str) -> Any:
    if name in _DEPRECATED:
        home = importlib.import_module(f"{__name__}.{_DEPRECATED[name]}")
        return getattr(home, name)
    if name in _HOMES:
        home = importlib.import_module(f"{__name__}.{_HOMES[name]}")
        return getattr(home, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
