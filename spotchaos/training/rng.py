"""Every random stream of a process: read, put back, started anew."""

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

        kept: Any = np.random.get_state(legacy=True)
        name, keys, position, has_gauss, cached = kept
        state["numpy"] = {
            "name": str(name),
            "keys": keys.tolist(),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached": float(cached),
        }
    # Asking would start CUDA, which a run on the CPU never does.
    if torch.cuda.is_initialized():
        state["cuda"] = list(torch.cuda.get_rng_state_all())
    return state


def restore_rng(
    state: Mapping[str, Any], generators: Mapping[str, torch.Generator] | None = None
) -> None:
    """Put every random stream back; call it last, since building things draws.

    Raises:
        CheckpointError: a generator was not saved, or the machine has fewer GPUs.
    """
    for name in generators or {}:
        if name not in state["generators"]:
            raise CheckpointError(
                f"the checkpoint has no state for generator {name!r}",
                hint="give the generators that the run was saved with",
            )
    if "cuda" in state and torch.cuda.is_available():
        if len(state["cuda"]) != torch.cuda.device_count():
            raise CheckpointError(
                f"the checkpoint has random states for {len(state['cuda'])} GPUs, "
                f"this machine has {torch.cuda.device_count()}",
                hint="resume on a machine with as many GPUs, or hide some of them",
            )
        torch.cuda.set_rng_state_all([each.cpu() for each in state["cuda"]])
    python = state["python"]
    random.setstate((python["version"], tuple(python["words"]), python["gauss"]))
    torch.set_rng_state(state["torch"].cpu())
    for name, generator in (generators or {}).items():
        generator.set_state(state["generators"][name].cpu())
    if "numpy" in state:
        import numpy as np

        kept = state["numpy"]
        keys = np.array(kept["keys"], dtype=np.uint32)
        rest = (kept["position"], kept["has_gauss"], kept["cached"])
        np.random.set_state((kept["name"], keys, *rest))


def seed_everything(*numbers: int) -> None:
    """Start every random stream of this process from `numbers`."""
    seed = mix(*numbers)
    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        import numpy as np

        np.random.seed(seed % 2**32)


def mix(*numbers: int) -> int:
    """Make one seed of several numbers, below 2**63, so that neighbours are unlike.

    Source: the finalizer of splitmix64 (Steele et al., OOPSLA 2014).
    """
    mixed = 0x9E3779B97F4A7C15
    for number in numbers:
        mixed = (mixed + number + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        mixed ^= mixed >> 31
    return mixed >> 1
