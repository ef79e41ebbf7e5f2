"""Everything that decides the next step: captured together, put back in the right order."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import Any

import torch

from spotchaos.errors import CheckpointError


def capture_rng(
    generators: Mapping[str, torch.Generator] | None = None,
) -> dict[str, Any]:
    """Return the state of every random stream of this process.

    Args:
        generators: further generators of torch, by name.

    Returns:
        Plain values and tensors only, so that `torch.load(weights_only=True)` reads them.
    """
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": {"version": version, "words": list(words), "gauss": gauss},
        "torch": torch.get_rng_state(),
        "generators": {n: g.get_state() for n, g in (generators or {}).items()},
    }
    if "numpy" in sys.modules:
        import numpy as np

        name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
        state["numpy"] = {
            "name": name,
            "keys": [int(key) for key in keys],
            "position": position,
            "has_gauss": has_gauss,
            "cached": cached,
        }
    if torch.cuda.is_available():
        state["cuda"] = list(torch.cuda.get_rng_state_all())
    return state


def seed_everything(seed: int) -> None:
    """Start every random stream of this process from `seed`, 0 or more."""
    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        import numpy as np

        np.random.seed(seed % 2**32)


def restore_rng(
    state: Mapping[str, Any], generators: Mapping[str, torch.Generator] | None = None
) -> None:
    """Put every random stream back; call it last, since building things draws."""
    python = state["python"]
    random.setstate((python["version"], tuple(python["words"]), python["gauss"]))
    torch.set_rng_state(state["torch"])
    for name, generator in (generators or {}).items():
        if name not in state["generators"]:
            raise CheckpointError(
                f"the checkpoint has no state for generator {name!r}",
                hint="give the generators that the run was saved with",
            )
        generator.set_state(state["generators"][name])
    if "numpy" in state:
        import numpy as np

        kept = state["numpy"]
        np.random.set_state(
            (
                kept["name"],
                np.array(kept["keys"], dtype=np.uint32),
                kept["position"],
                kept["has_gauss"],
                kept["cached"],
            )
        )
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
