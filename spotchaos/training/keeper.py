"""Save and load for a run: local disk first, in the background, mirrored to a store."""

from __future__ import annotations

import io
import logging
from collections.abc import Mapping
from typing import Any

import torch

from spotchaos.clock import Clock, SystemClock
from spotchaos.training.background import BackgroundSaver
from spotchaos.training.checkpoint import STATE, Checkpoint, CheckpointStore
from spotchaos.training.peers import Peers
from spotchaos.training.sync import Mirror

log = logging.getLogger(__name__)


class Keeper:
    """Keeps the checkpoints of one run; only rank 0's saves.

    Args:
        store: the folder on the local disk.
        mirror: copies what is committed there to another store, and brings it back.
        in_background: write while training goes on.
        finish_within_s: how long `wait` gives the mirror when nobody names a deadline.
        clock: measures saves.
    """

    def __init__(
        self, store: CheckpointStore, *, mirror: Mirror | None = None,
        in_background: bool = True, finish_within_s: float = 600.0,
        clock: Clock | None = None,
    ) -> None:  # fmt: skip
        self.store = store
        self.slowest_save_s = 0.0
        self._mirror = mirror
        self._finish_within_s = finish_within_s
        self._clock = clock or SystemClock()
        self._saver = BackgroundSaver(self._write, clock=self._clock)
        self._in_background = in_background
        self._labels: dict[int, dict[str, Any]] = {}

    @property
    def fault(self) -> str:
        """What went wrong in the background, or an empty string."""
        return self._saver.fault or ("" if self._mirror is None else self._mirror.fault)

    def prepare(self) -> None:
        """Sweep what interrupted saves left, and fetch what is newer elsewhere."""
        self.store.prepare()
        if self._mirror is not None:
            self._mirror.prepare()
            self._mirror.fetch_newer()

    def save(self, state: Mapping[str, Any], *, step: int, **labels: Any) -> None:
        """Save a state; durable on return, or later if in the background.

        Args:
            state: from `TrainingState.capture`.
            step: completed steps.
            labels: further arguments of `CheckpointStore.save`.

        Raises:
            OSError: the disk refused.
            CheckpointError: this save, or the one before it, failed.
        """
        self._labels[step] = labels
        if self._in_background:
            self._saver.save(state, step)
        else:
            self._write(state, step)

    def wait(self, within_s: float | None = None) -> None:
        """Return once everything that was saved is durable wherever it must be.

        Args:
            within_s: seconds to the deadline; None if nobody named one.

        Raises:
            CheckpointError: something failed, or was not done in time: say so, rather than
                end as if all were well.
        """
        began_s = self._clock.monotonic()
        bound_s = self._finish_within_s if within_s is None else max(0.0, within_s)
        self._saver.wait(bound_s)
        if self._mirror is not None:
            spent_s = self._clock.monotonic() - began_s
            self._mirror.wait(max(0.0, bound_s - spent_s))

    def load_for(self, peers: Peers) -> dict[str, Any] | None:
        """Return the state to go on from, the same on every rank; None if there is none.

        Rank 0 chooses. A rank that does not see the file, on a disk of its own, is sent
        the bytes.

        Raises:
            CheckpointError: on every rank, if rank 0 cannot use what it found.
        """
        chosen: Checkpoint | None = None

        def choose() -> None:
            nonlocal chosen
            chosen = self.store.newest()

        peers.led(choose)
        step = peers.broadcast(None if chosen is None else chosen.step)
        if step is None:
            return None
        if peers.world_size == 1:
            assert chosen is not None
            return self.store.load(chosen)
        # Bytes rather than paths: what every rank goes on from is the same by construction.
        data = None
        if chosen is not None:
            data = (chosen.folder / STATE).read_bytes()
        return _parsed(peers.broadcast_bytes(data), f"step {step}")

    def _write(self, state: Mapping[str, Any], step: int) -> None:
        began_s = self._clock.monotonic()
        checkpoint = self.store.save(state, step=step, **self._labels.pop(step, {}))
        took_s = self._clock.monotonic() - began_s
        self.slowest_save_s = max(self.slowest_save_s, took_s)
        if self._mirror is not None:
            self._mirror.send(checkpoint)


def _parsed(data: torch.Tensor, name: str) -> dict[str, Any]:
    from spotchaos.training.checkpoint import load_state

    return load_state(io.BytesIO(data.numpy().tobytes()), name)
