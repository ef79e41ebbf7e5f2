"""What ranks tell each other: every exchange ends within a bound, or raises on all."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from spotchaos.errors import CheckpointError

# Bytes of one exchange: each has the bound for itself, however large the whole.
_PIECE_BYTES = 64 << 20


class Peers:
    """The ranks of one run, as seen by one of them.

    Small exchanges go through a gloo group, whatever group the gradients take. A rank
    that dies closes its connections, and the others raise at once; one that stands still
    is given up after `timeout_s`.

    Args:
        rank: this rank, from 0.
        world_size: how many there are; with 1 nothing is ever sent.
        control: the group for small exchanges; None with one rank.
        timeout_s: its bound.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        control: Any = None,
        *,
        timeout_s: float = 30.0,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self._control = control
        self._beat_s = timeout_s / 4

    @property
    def leads(self) -> bool:
        """Whether this rank is the one that writes."""
        return self.rank == 0

    def agree(self, request: int) -> int:
        """Return the greatest request of all ranks; every rank gets the same answer."""
        if self.world_size == 1:
            return request
        requests = torch.tensor([request], dtype=torch.int64)
        dist.all_reduce(requests, op=dist.ReduceOp.MAX, group=self._control)
        return int(requests.item())

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
            for piece in data.split(_PIECE_BYTES):
                dist.broadcast(piece, src=0, group=self._control)
        return data

    def led(self, work: Callable[[], None]) -> None:
        """Have rank 0 do something, however long it takes; every rank returns when it has.

        Rank 0 says again and again that it is still there, so that the bound on silence
        is none on the work: an upload may take minutes.

        Raises:
            Exception: on rank 0, whatever `work` raises.
            CheckpointError: on the others, in the words of what rank 0 raised.
        """
        if self.world_size == 1:
            work()
        elif self.leads:
            self._lead(work)
        else:
            is_done, fault = False, ""
            while not is_done:
                is_done, fault = self.broadcast(None)
            if fault:
                raise CheckpointError(fault)

    def _lead(self, work: Callable[[], None]) -> None:
        done = threading.Event()
        lost: list[BaseException] = []

        def beat() -> None:
            try:
                while not done.wait(self._beat_s):
                    self.broadcast((False, ""))
            except BaseException as error:  # a rank is gone: said when the work is done
                lost.append(error)

        beating = threading.Thread(target=beat, name="still-there", daemon=True)
        beating.start()
        fault = ""
        try:
            work()
        except BaseException as error:
            fault = str(error) or type(error).__name__
            raise
        finally:
            done.set()
            beating.join()
            if not lost:
                self.broadcast((True, fault))
        if lost:
            raise lost[0]

    def leave(self) -> None:
        """Close the group. Models wrapped for it must be gone by now (facts: exit)."""
        if self.world_size > 1 and dist.is_initialized():
            dist.destroy_process_group()


def device_of_rank(environment: Mapping[str, str] = os.environ) -> torch.device:
    """Return the GPU of this rank, or the CPU where there is not one for each.

    NCCL refuses two ranks on one GPU, and all ranks of a machine must choose alike.

    Args:
        environment: LOCAL_RANK and LOCAL_WORLD_SIZE of torchrun; without them this is
            the only rank of the machine.
    """
    if torch.cuda.device_count() < int(environment.get("LOCAL_WORLD_SIZE", "1")):
        return torch.device("cpu")
    return torch.device("cuda", int(environment.get("LOCAL_RANK", "0")))


def join(
    environment: Mapping[str, str] = os.environ,
    *,
    timeout_s: float = 30.0,
    device: torch.device | None = None,
) -> Peers:
    """Meet the other ranks, as the variables of torchrun describe them.

    Args:
        environment: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; without WORLD_SIZE
            this is the only rank.
        timeout_s: how long any exchange may take before it raises.
        device: where the gradients lie, which decides between NCCL and gloo; by default
            what `device_of_rank` chooses.
    """
    rank = int(environment.get("RANK", "0"))
    world_size = int(environment.get("WORLD_SIZE", "1"))
    if world_size == 1:
        return Peers(0, 1)
    bound = timedelta(seconds=timeout_s)
    device = device or device_of_rank(environment)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(
        backend, store=_store(environment, rank, world_size), rank=rank,
        world_size=world_size, timeout=bound,
    )  # fmt: skip
    control = None
    if backend != "gloo":
        control = dist.new_group(backend="gloo", timeout=bound)
    return Peers(rank, world_size, control, timeout_s=timeout_s)


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
