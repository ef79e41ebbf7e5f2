"""Save while training goes on: copy at the step boundary, write in a thread."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from spotchaos.clock import Clock, SystemClock
from spotchaos.errors import CheckpointError

log = logging.getLogger(__name__)

# A thread copies so many bytes at a time; below so many pieces a second one is no gain.
PIECE, LEAST_PIECES = 4 << 20, 8


class SnapshotPool:
    """Memory for one copy of a state, used again for every save.

    Fresh memory costs page faults on each save; on a GPU it is pinned, so that the copy
    runs at the speed of the bus.
    """

    def __init__(self) -> None:
        self._room: dict[str, torch.Tensor] = {}
        self._moves: list[tuple[torch.Tensor, torch.Tensor]] = []  # to, from

    def copy(self, value: Any) -> Any:
        """Return `value` with each tensor copied into the pool.

        The copy is valid until the next call.
        """
        try:
            copied = self._copy(value, "state")
            _move(self._moves)
        finally:
            self._moves = []
        return copied

    def _copy(self, value: Any, where: str) -> Any:
        if isinstance(value, torch.Tensor):
            return self._copy_tensor(value.detach(), where)
        if isinstance(value, Mapping):
            copied = {
                key: self._copy(item, f"{where}.{key}") for key, item in value.items()
            }
            return OrderedDict(copied) if isinstance(value, OrderedDict) else copied
        if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
            return type(value)(
                self._copy(item, f"{where}[{i}]") for i, item in enumerate(value)
            )
        return value

    @property
    def size_bytes(self) -> int:
        """Bytes that the pool holds."""
        return sum(room.nbytes for room in self._room.values())

    def _copy_tensor(self, tensor: torch.Tensor, where: str) -> torch.Tensor:
        room = self._room.get(where)
        if room is None or (room.shape, room.dtype) != (tensor.shape, tensor.dtype):
            room = torch.empty(
                tensor.shape,
                dtype=tensor.dtype,
                pin_memory=tensor.device.type == "cuda",
            )
            self._room[where] = room
        if _is_bytes(tensor):
            self._moves.append((room, tensor))
        else:
            room.copy_(tensor)  # waits for the device
        return room


def _move(moves: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copy tensors into memory of their size; whole on return.

    Not by `copy_`: its threads meet after each tensor, and where other processes hold the
    cores every meeting waits for them. Seen with 400 tensors of 1 MB on two busy cores:
    2 s instead of 0.2 s. Here two threads take turns at pieces, and meet once.
    """
    pieces = [
        (room.data_ptr() + at, tensor.data_ptr() + at, min(PIECE, tensor.nbytes - at))
        for room, tensor in moves
        for at in range(0, tensor.nbytes, PIECE)
    ]
    queue = iter(pieces)
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                piece = next(queue, None)
            if piece is None:
                return
            ctypes.memmove(*piece)  # lets go of the interpreter's lock

    second = None
    if len(pieces) >= LEAST_PIECES and len(os.sched_getaffinity(0)) > 1:
        second = threading.Thread(target=work, name="snapshot")
        second.start()
    try:
        work()
    finally:
        if second is not None:
            second.join()


def _is_bytes(tensor: torch.Tensor) -> bool:
    """Whether the values lie in this machine's memory, in order, just as they are."""
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


class BackgroundSaver:
    """Writes one checkpoint at a time in a thread of its own.

    A save that comes while the one before is still being written waits for it: two copies
    of a state never exist. An error in the thread is raised by the next call here, and
    `fault` tells it without raising.

    Args:
        write: writes a state durably; runs in the thread.
        clock: measures stalls.
    """

    def __init__(
        self,
        write: Callable[[Mapping[str, Any], int], None],
        *,
        clock: Clock | None = None,
    ) -> None:
        self._write = write
        self._clock = clock or SystemClock()
        self._pool = SnapshotPool()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self.stalls_s: list[float] = []

    @property
    def fault(self) -> str:
        """What went wrong in the thread, or an empty string."""
        return "" if self._error is None else f"{self._error}"

    @property
    def snapshot_bytes(self) -> int:
        """Memory that the copy of the state takes."""
        return self._pool.size_bytes

    def save(self, state: Mapping[str, Any], step: int) -> None:
        """Copy `state` and return; it becomes durable later.

        Raises:
            CheckpointError: the save before this one failed.
        """
        began_s = self._clock.monotonic()
        self.wait()
        snapshot = self._pool.copy(state)
        self.stalls_s.append(self._clock.monotonic() - began_s)
        log.debug("save of step %d stalled training %.4f s", step, self.stalls_s[-1])
        # Not a daemon: the interpreter itself waits for it, even if nobody else does.
        self._thread = threading.Thread(
            target=self._run, args=(snapshot, step), name=f"save-{step}"
        )
        self._thread.start()

    def wait(self, within_s: float | None = None) -> None:
        """Return once nothing is being written.

        Args:
            within_s: how long to wait; None for as long as it takes.

        Raises:
            CheckpointError: the write failed, or is not done within the time.
        """
        if self._thread is not None:
            self._thread.join(within_s)
            if self._thread.is_alive():
                raise CheckpointError(
                    f"the save in the background is not done after {within_s} s",
                    hint="save more often, or to a faster disk",
                )
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise CheckpointError(
                f"the save in the background failed: {error}"
            ) from error

    def _run(self, snapshot: Mapping[str, Any], step: int) -> None:
        try:
            self._write(snapshot, step)
        except BaseException as error:
            self._error = error
