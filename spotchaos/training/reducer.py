"""Gradients summed over ranks in an order that neither a resume nor their number changes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from spotchaos.errors import UsageError
from spotchaos.training.peers import Peers
from spotchaos.training.rng import capture_rng, restore_rng

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
    _put_back(ddp, buffers)
    restore_rng(rng)


def share_out(workers: int, world_size: int) -> list[list[int]]:
    """Give each rank a run of virtual workers, as even as it goes.

    Raises:
        UsageError: there are more ranks than workers, so that some would have no work.
    """
    if world_size > workers:
        raise UsageError(
            f"{workers} virtual workers are too few for {world_size} ranks",
            hint=f"start at most {workers} ranks, or a new run with more virtual workers",
        )
    bounds = [rank * workers // world_size for rank in range(world_size + 1)]
    return [list(range(a, b)) for a, b in itertools.pairwise(bounds)]


class VirtualWorkers:
    """Computes a step as a fixed number of workers would, whatever number of ranks there is.

    Each worker has its own share of the data, its own random streams, and starts from the
    same buffers. Their gradients are added in the order of workers, element by element, so
    the sum has the same bits on 1 rank as on 4.

    Source: Li et al., "EasyScale", SC 2023.

    Args:
        model: the model, not wrapped.
        workers: how many; fixed for the whole run.
        peers: the ranks that share them out.
    """

    def __init__(self, model: nn.Module, workers: int, peers: Peers) -> None:
        self.workers = workers
        self.shares = share_out(workers, peers.world_size)
        self.mine = self.shares[peers.rank]
        self.streams: dict[int, Any] = {}
        self._model = model
        self._peers = peers
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._length = sum(p.numel() for p in self._parameters)

    def step(self, compute: Callable[[int], float]) -> float:
        """Leave the mean gradient of all workers in the parameters.

        Args:
            compute: given a worker, adds its gradient to the parameters' and returns its
                loss.

        Returns:
            The mean loss of all workers, the same on every rank.
        """
        before = {n: b.detach().clone() for n, b in self._model.named_buffers()}
        after: dict[str, torch.Tensor] = {}
        gradients = []
        losses = []
        for worker in self.mine:
            _put_back(self._model, before)
            restore_rng(self.streams[worker])
            self._model.zero_grad(set_to_none=True)
            losses.append(compute(worker))
            gradients.append(self._flat())
            self.streams[worker] = capture_rng()
            if worker == self.mine[0]:
                after = {n: b.detach().clone() for n, b in self._model.named_buffers()}
        if before:  # worker 0's statistics count, as rank 0's do under DDP
            after = self._peers.broadcast(after)
            _put_back(self._model, after)
        self._spread(self._sum(gradients))
        every = self._peers.gather(losses)
        return sum((loss for some in every for loss in some), 0.0) / self.workers

    def _flat(self) -> torch.Tensor:
        parts = [
            (torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1)
            for p in self._parameters
        ]
        # One dtype for the exchange; widening loses nothing.
        return torch.cat([part.to(torch.float32) for part in parts])

    def _spread(self, total: torch.Tensor) -> None:
        start = 0
        for parameter in self._parameters:
            part = total[start : start + parameter.numel()]
            parameter.grad = part.view_as(parameter).to(parameter.dtype)
            start += parameter.numel()

    def _sum(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        """Add the gradients of all workers in their order, and divide by their number."""
        ranks = self._peers.world_size
        if ranks == 1:
            return _in_order(gradients) / self.workers
        # Each rank adds up one slice: sent once, and not to every rank.
        width = -(-self._length // ranks)
        room = torch.zeros(len(gradients), ranks * width, device=gradients[0].device)
        for row, gradient in enumerate(gradients):
            room[row, : self._length] = gradient
        outgoing = room.view(len(gradients), ranks, width).transpose(0, 1).contiguous()
        incoming = outgoing.new_empty(self.workers, width)
        dist.all_to_all_single(
            incoming,
            outgoing.view(-1, width),
            output_split_sizes=[len(share) for share in self.shares],
            input_split_sizes=[len(gradients)] * ranks,
        )
        mine = _in_order(list(incoming)) / self.workers
        slices = [torch.empty_like(mine) for _ in range(ranks)]
        dist.all_gather(slices, mine)
        return torch.cat(slices)[: self._length]


def _in_order(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    total = gradients[0].clone()
    for gradient in gradients[1:]:
        total += gradient
    return total


def _put_back(model: nn.Module, buffers: Mapping[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
