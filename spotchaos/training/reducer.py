"""Gradients summed over ranks in an order that a resume does not change."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from spotchaos.training.state import capture_rng, restore_rng

# DDP lays its buckets out anew after its first backward; the second pass uses them.
_PASSES = 2


def settle_buckets(ddp: nn.Module, loss: Callable[[], torch.Tensor]) -> None:
    """Bring DDP's gradient buckets into the layout that the rest of the run will have.

    DDP rebuilds its buckets after its first iteration, and the order in which a ring adds
    follows the layout. An uninterrupted run is past that, a resumed one is not, so with
    three ranks or more its first step would differ in the last bits. Throw-away passes
    settle it: gradients are dropped, buffers and random streams are put back.

    Args:
        ddp: the model, wrapped for this process group.
        loss: computes a loss over every parameter, with any data of the usual shape.
    """
    buffers = {name: b.detach().clone() for name, b in ddp.named_buffers()}
    rng = capture_rng()
    for _ in range(_PASSES):
        loss().backward()
        ddp.zero_grad(set_to_none=True)
    with torch.no_grad():
        for name, buffer in ddp.named_buffers():
            buffer.copy_(buffers[name])
    restore_rng(rng)
