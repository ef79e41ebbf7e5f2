"""Train with DDP so that an interruption at any moment changes no bit of the result."""

from __future__ import annotations

import gc
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from spotchaos.training.checkpoint import CheckpointStore
from spotchaos.training.peers import Peers
from spotchaos.training.reducer import settle_buckets
from spotchaos.training.sampler import ResumableSampler
from spotchaos.training.state import capture_rng, restore_rng, seed_everything
from spotchaos.training.watch import STOP, InterruptionWatch

log = logging.getLogger(__name__)

Batch = Any
LossOf = Callable[[nn.Module, Batch], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How long to train, and how fast."""

    steps: int = 50
    save_every: int = 5
    batch: int = 4  # samples of one micro-batch of one rank
    accumulate: int = 2  # micro-batches of one step
    rate: float = 3e-3
    warm_up: int = 5  # steps
    seed: int = 0
    workers: int = 0  # loader processes for each rank

    def rate_at(self, step: int) -> float:
        """Return the share of `rate` after `step` steps: a ramp, then half a cosine."""
        if step < self.warm_up:
            return (step + 1) / self.warm_up
        done = (step - self.warm_up) / max(1, self.steps - self.warm_up)
        return 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))


class Trainer:
    """Trains a model on every rank, saves on rank 0, resumes from the newest whole save.

    Args:
        model: built alike on every rank.
        data: a data set with a length.
        loss_of: computes the mean loss of a batch; all parameters take part in it.
        store: where checkpoints live.
        peers: the ranks of this run.
        schedule: how long and how fast.
        watch: says when the machine will be lost.
    """

    def __init__(
        self, *, model: nn.Module, data: Dataset[Any], loss_of: LossOf,
        store: CheckpointStore, peers: Peers, schedule: Schedule,
        watch: InterruptionWatch,
    ) -> None:  # fmt: skip
        self.model = model
        self.step = 0
        self._loss_of = loss_of
        self._store = store
        self._peers = peers
        self._schedule = schedule
        self._watch = watch
        self._samples_per_step = schedule.batch * schedule.accumulate * peers.world_size
        self.sampler = ResumableSampler(
            len(data),
            seed=schedule.seed,
            rank=peers.rank,
            world_size=peers.world_size,
            multiple_of=self._samples_per_step,
        )
        # The loader draws a seed for its workers whenever an iterator is made; with its
        # own generator that draw does not disturb the stream of the model's dropout.
        self._loader = DataLoader(
            data, batch_size=schedule.batch, sampler=self.sampler,
            num_workers=schedule.workers, generator=torch.Generator(),
        )  # fmt: skip
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=schedule.rate)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, schedule.rate_at
        )
        self._wrapped: nn.Module = model

    def run(self) -> bool:
        """Train to the end, or to the next safe point after a notice.

        Returns:
            Whether the run is finished. If not, its state is saved and durable.
        """
        if self._peers.leads:
            self._store.prepare()
        self._seed()
        saved_at = self._resume()
        if self.step < self._schedule.steps:
            self._wrap()
        batches: Iterator[Batch] | None = None
        while self.step < self._schedule.steps:
            if self.sampler.epoch_is_over:
                self.sampler.next_epoch()
                batches = None
            if batches is None:
                batches = self._batches()
            loss = self._train_step(batches)
            wish = self._peers.agree(self._watch.wish)
            last = self.step == self._schedule.steps
            if last or wish or self.step % self._schedule.save_every == 0:
                self._save()
                saved_at = self.step
            log.info("step %d loss %.4f", self.step, loss)
            if wish >= STOP and not last:
                log.info("stopping at step %d, saved", self.step)
                return False
        if saved_at != self.step:
            self._save()
        return True

    def close(self) -> None:
        """Let go of the process group, DDP first: alive at exit it can hang."""
        self._wrapped = self.model
        gc.collect()
        self._peers.leave()

    def _seed(self) -> None:
        seed_everything(self._schedule.seed * 1_000_003 + self._peers.rank)

    def _batches(self) -> Iterator[Batch]:
        self._loader.generator.manual_seed(self._schedule.seed + self.sampler.epoch)
        return iter(self._loader)

    def _wrap(self) -> None:
        if self._peers.world_size == 1:
            return
        self._wrapped = DistributedDataParallel(self.model)
        data = self._loader.dataset
        batch = self._loader.collate_fn([data[0]] * self._schedule.batch)
        settle_buckets(self._wrapped, lambda: self._loss_of(self._wrapped, batch))

    def _train_step(self, batches: Iterator[Batch]) -> float:
        self._wrapped.train()
        self.optimizer.zero_grad(set_to_none=True)
        total = 0.0
        parts = self._schedule.accumulate
        for part in range(parts):
            with self._reducing(now=part == parts - 1):
                loss = self._loss_of(self._wrapped, next(batches)) / parts
                loss.backward()
            total += loss.item()
        self.optimizer.step()
        self.scheduler.step()
        self.sampler.advance(self._samples_per_step)
        self.step += 1
        return total

    def _reducing(self, *, now: bool) -> AbstractContextManager[None]:
        if now or not isinstance(self._wrapped, DistributedDataParallel):
            return nullcontext()
        waiting: AbstractContextManager[None] = self._wrapped.no_sync()
        return waiting

    def _save(self) -> None:
        ranks = self._peers.gather(capture_rng())
        fault = ""
        if self._peers.leads:
            state = {
                "step": self.step,
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scheduler": self.scheduler.state_dict(),
                "sampler": self.sampler.state_dict(),
                "ranks": ranks,
            }
            try:
                self._store.save(
                    state, step=self.step, epoch=self.sampler.epoch,
                    world_size=self._peers.world_size,
                )  # fmt: skip
            except OSError as error:
                fault = str(error)
        # Every rank learns how it went: nobody trains on past a save that failed.
        fault = self._peers.broadcast(fault)
        if fault:
            raise OSError(f"step {self.step} could not be saved: {fault}")

    def _resume(self) -> int | None:
        """Put back the newest whole checkpoint, and return its step; None without one."""
        state = self._store.load_latest() if self._peers.leads else None
        state = self._peers.broadcast(state)
        if state is None:
            log.info("starting at step 0")
            return None
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.sampler.load_state_dict(state["sampler"])
        self.step = int(state["step"])
        restore_rng(state["ranks"][self._peers.rank])
        log.info("resuming after step %d", self.step)
        return self.step
