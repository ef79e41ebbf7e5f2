"""What ranks tell each other: every exchange ends within a bound, or raises on all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


class Peers:
    """The ranks of one run, as seen by one of them.

    Small exchanges go through a gloo group, whatever group the gradients take. A rank
    that dies closes its connections, and the others raise at once; one that stands still
    is given up after `timeout_s`.

    Args:
        rank: this rank, from 0.
        world_size: how many there are; with 1 nothing is ever sent.
        control: the group for small exchanges; None with one rank.
    """

    def __init__(self, rank: int, world_size: int, control: Any = None) -> None:
        self.rank = rank
        self.world_size = world_size
        self._control = control

    @property
    def leads(self) -> bool:
        """Whether this rank is the one that writes."""
        return self.rank == 0

    def agree(self, wish: int) -> int:
        """Return the greatest wish of all ranks; every rank gets the same answer."""
        if self.world_size == 1:
            return wish
        wishes = torch.tensor([wish], dtype=torch.int64)
        dist.all_reduce(wishes, op=dist.ReduceOp.MAX, group=self._control)
        return int(wishes.item())

    def gather(self, mine: Any) -> list[Any]:
        """Return what each rank gave, in the order of ranks, on every rank."""
        if self.world_size == 1:
            return [mine]
        theirs: list[Any] = [None] * self.world_size
        dist.all_gather_object(theirs, mine, group=self._control)
        return theirs

    def broadcast(self, mine: Any) -> Any:
        """Return what rank 0 gave."""
        if self.world_size == 1:
            return mine
        box = [mine]
        dist.broadcast_object_list(box, src=0, group=self._control)
        return box[0]

    def broadcast_bytes(self, mine: bytes | None) -> torch.Tensor:
        """Return rank 0's bytes, as a tensor; the others give None."""
        size = self.broadcast(None if mine is None else len(mine))
        if mine is None:
            data = torch.empty(size, dtype=torch.uint8)
        else:
            data = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
        if self.world_size > 1:
            dist.broadcast(data, src=0, group=self._control)
        return data

    def leave(self) -> None:
        """Close the group. Models wrapped for it must be gone by now (facts: exit)."""
        if self.world_size > 1 and dist.is_initialized():
            dist.destroy_process_group()


def join(
    environment: Mapping[str, str] = os.environ, *, timeout_s: float = 30.0
) -> Peers:
    """Meet the other ranks, as the variables of torchrun describe them.

    Args:
        environment: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; without WORLD_SIZE
            this is the only rank.
        timeout_s: how long any exchange may take before it raises.
    """
    rank = int(environment.get("RANK", "0"))
    world_size = int(environment.get("WORLD_SIZE", "1"))
    if world_size == 1:
        return Peers(0, 1)
    bound = timedelta(seconds=timeout_s)
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(
        backend, store=_store(environment, rank, world_size), rank=rank,
        world_size=world_size, timeout=bound,
    )  # fmt: skip
    control = None
    if backend != "gloo":
        control = dist.new_group(backend="gloo", timeout=bound)
    return Peers(rank, world_size, control)


def _store(environment: Mapping[str, str], rank: int, world_size: int) -> Any:
    """Open the key-value store where ranks find each other; None for torch's own way.

    Ranks that we started ourselves hand rank 0 a socket that listens already, so that
    nobody else can take the port between its choice and its use.
    """
    descriptor = environment.get("SPOTCHAOS_RENDEZVOUS_FD")
    # Importing takes seconds on a busy machine, so meeting has a longer bound of its own.
    meeting = timedelta(seconds=300)
    address, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    if descriptor is None:
        return next(iter(dist.rendezvous("env://", timeout=meeting)))[0]
    if rank == 0:
        store = dist.TCPStore(
            address, port, world_size, is_master=True, timeout=meeting,
            wait_for_workers=False, master_listen_fd=int(descriptor),
        )  # fmt: skip
    else:
        store = dist.TCPStore(
            address, port, world_size, is_master=False, timeout=meeting,
            wait_for_workers=False,
        )  # fmt: skip
    return store
