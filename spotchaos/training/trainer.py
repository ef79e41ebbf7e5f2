"""Train with DDP so that an interruption at any moment changes no bit of the result."""

from __future__ import annotations

import gc
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset

from spotchaos.clock import Clock, SystemClock
from spotchaos.errors import CheckpointError, SpotchaosError, UsageError
from spotchaos.training.keeper import Keeper
from spotchaos.training.peers import Peers
from spotchaos.training.reducer import VirtualWorkers, settle_buckets
from spotchaos.training.rng import capture_rng, mix, restore_rng, seed_everything
from spotchaos.training.sampler import ResumableSampler, Shard
from spotchaos.training.state import TrainingState, refuse_other_world
from spotchaos.training.watch import (
    InterruptionWatch,
    Request,
    ignore_signals_in_workers,
)

if TYPE_CHECKING:  # it imports much, and most runs need none of it
    from spotchaos.training.sharded import ShardedStore

log = logging.getLogger(__name__)

Batch = Any
LossOf = Callable[[nn.Module, Batch], torch.Tensor]

_DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How long to train, how fast, and how often to save."""

    steps: int = 50
    save_every: int = 5  # steps
    batch: int = 4  # samples of one micro-batch of one rank, or virtual worker
    accumulate: int = 2  # micro-batches of one step
    rate: float = 3e-3
    warm_up: int = 5  # steps
    seed: int = 0
    loader_workers: int = 0  # processes for each rank
    precision: str = "fp32"  # or bf16, fp16: the forward pass; weights stay fp32
    average: float = 0.0  # decay of an averaged copy of the model; 0: none
    evaluate_every: int = 0  # steps; 0: never

    def rate_at(self, step: int) -> float:
        """Return the share of `rate` after `step` steps: a ramp, then half a cosine."""
        if step < self.warm_up:
            return (step + 1) / self.warm_up
        done = (step - self.warm_up) / max(1, self.steps - self.warm_up)
        return 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))


class Trainer:
    """Trains a model on every rank, saves on rank 0, resumes from the newest whole save.

    Args:
        model: built alike on every rank, on the device it trains on; sharded by FSDP2
            (`fully_shard`) if `keeper` is a ShardedStore.
        data: a data set with a length.
        loss_of: computes the mean loss of a batch; all parameters take part in it.
        keeper: where checkpoints go and come from; a ShardedStore for a sharded model,
            which then goes with neither virtual workers, nor averages, nor fp16.
        peers: the ranks of this run.
        schedule: how long, how fast, how often.
        watch: says when the machine will be lost.
        held_out: data to evaluate on.
        virtual_workers: a fixed number of workers that any number of ranks imitates bit
            for bit; None for as many as there are ranks, with plain DDP.
        allow_inexact: go on from a checkpoint of another number of ranks, though the bits
            of an uninterrupted run are lost.
        on_step: called after each step with its number and loss.
        clock: measures how long a step takes.
    """

    def __init__(
        self, *, model: nn.Module, data: Dataset[Any], loss_of: LossOf,
        keeper: Keeper | ShardedStore, peers: Peers, schedule: Schedule, watch: InterruptionWatch,
        held_out: Dataset[Any] | None = None, virtual_workers: int | None = None,
        allow_inexact: bool = False, on_step: Sequence[Callable[[int, float], None]] = (),
        clock: Clock | None = None,
    ) -> None:  # fmt: skip
        self.model = model
        self._wrapped: nn.Module = model
        self._loss_of = loss_of
        self._keeper = keeper
        self._sharded = None if isinstance(keeper, Keeper) else keeper
        if self._sharded is not None:
            _refuse_with_shards(schedule, virtual_workers)
        self._peers = peers
        self._schedule = schedule
        self._watch = watch
        self._held_out = held_out
        self._allow_inexact = allow_inexact
        self._on_step = on_step
        self._clock = clock or SystemClock()
        self._step_s = 0.0
        self.steps_s: list[float] = []  # of this attempt
        self._score: float | None = None
        self._virtual = (
            None
            if virtual_workers is None
            else VirtualWorkers(model, virtual_workers, peers)
        )
        self._shards = (
            peers.world_size if self._virtual is None else self._virtual.workers
        )
        self._mine = [peers.rank] if self._virtual is None else self._virtual.mine
        self._samples_per_step = schedule.batch * schedule.accumulate * self._shards
        self._data = data
        self.sampler = ResumableSampler(
            data, seed=schedule.seed, multiple_of=self._samples_per_step
        )
        self._build_optimizer()
        self._batches: dict[int, Iterator[Batch]] = {}

    @property
    def step(self) -> int:
        """Completed steps."""
        return self.state.step

    def run(self) -> bool:
        """Train to the end, or to the next safe point after a notice.

        Returns:
            Whether the run is finished. If not, its state is saved and durable.

        Raises:
            CheckpointError: a save failed, here or on another rank, or the checkpoint to
                go on from must not be used.
        """
        if self._sharded is not None:
            self._sharded.prepare()
        else:
            self._peers.led(self._keeper.prepare)
        self._seed()
        saved_at = self._resume()
        if self.step < self._schedule.steps:
            self._wrap()
        while self.step < self._schedule.steps:
            loss = self._timed_step()
            for hook in self._on_step:
                hook(self.step, loss)
            log.info("step %d loss %.4f", self.step, loss)
            request = self._agreed()
            if request < Request.STOP and self._is_due(self._schedule.evaluate_every):
                request = self._evaluate()
            is_last = self.step == self._schedule.steps
            if is_last or request or self._is_due(self._schedule.save_every):
                self._save(at_once=is_last or request >= Request.STOP)
                saved_at = self.step
                self._watch.mark_saved()
            if request >= Request.STOP and not is_last:
                log.info("stopping at step %d, saved", self.step)
                self._watch.acknowledge()
                return False
        if saved_at != self.step:
            self._save(at_once=True)
        if self._watch.must_stop:
            self._watch.acknowledge()
        return True

    def close(self) -> None:
        """Let go of the process group, DDP first: alive at exit it can hang."""
        if self._wrapped is not self.model:
            self._wrapped = self.model
            gc.collect()  # its hooks refer back to it
        self._peers.leave()

    def _build_optimizer(self) -> None:
        schedule = self._schedule
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=schedule.rate)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, schedule.rate_at
        )
        device = next(self.model.parameters()).device
        self._device = device
        self._scaler = torch.amp.GradScaler(
            device.type, enabled=schedule.precision == "fp16", init_scale=1024.0
        )
        averages: dict[str, Any] = {}
        self.average: AveragedModel | None = None
        if schedule.average:
            self.average = AveragedModel(
                self.model, multi_avg_fn=get_ema_multi_avg_fn(schedule.average),
                use_buffers=True,
            )  # fmt: skip
            averages["average"] = self.average
        self.state = TrainingState(
            model=self.model, optimizers=self.optimizer, schedulers=self.scheduler,
            scaler=self._scaler, averages=averages, sampler=self.sampler,
        )  # fmt: skip

    def _seed(self) -> None:
        """Start the streams of this rank, or of each worker that it imitates."""
        if self._virtual is None:
            seed_everything(mix(self._schedule.seed, self._peers.rank))
            return
        for worker in self._mine:
            seed_everything(mix(self._schedule.seed, worker))
            self._virtual.streams[worker] = capture_rng()

    def _wrap(self) -> None:
        if self._peers.world_size == 1 or self._virtual or self._sharded:
            return
        self._wrapped = DistributedDataParallel(self.model)
        batch = self._to_device(
            torch.utils.data.default_collate([self._data[0]] * self._schedule.batch)
        )
        self._wrapped.train()
        settle_buckets(self._wrapped, lambda: self._loss(batch))

    def _timed_step(self) -> float:
        if self.sampler.epoch_is_over:
            for batches in self._batches.values():
                next(batches, None)  # its end, which ends the loader's workers as well
            self.sampler.next_epoch()
            self._batches = {}
        if not self._batches:
            self._batches = {shard: self._open(shard) for shard in self._mine}
        began_s = self._clock.monotonic()
        loss = self._train_step()
        took_s = self._clock.monotonic() - began_s
        self._step_s = max(took_s, 0.8 * self._step_s)  # a cautious estimate
        self.steps_s.append(took_s)
        return loss

    def _open(self, shard: int) -> Iterator[Batch]:
        # A loader draws a seed for its workers whenever an iterator is made; with its own
        # generator that draw does not disturb the stream of the model's dropout.
        generator = torch.Generator()
        generator.manual_seed(mix(self._schedule.seed, self.sampler.epoch, shard))
        loader = DataLoader(
            self._data, batch_size=self._schedule.batch,
            sampler=Shard(self.sampler, shard, of=self._shards),
            num_workers=self._schedule.loader_workers, generator=generator,
        )  # fmt: skip
        with ignore_signals_in_workers():
            return iter(loader)

    def _train_step(self) -> float:
        self._wrapped.train()
        if self._virtual is not None:
            loss = self._virtual.step(self._accumulate)
        else:
            self.optimizer.zero_grad(set_to_none=True)
            loss = self._accumulate(self._peers.rank)
        scale = self._scaler.get_scale()
        self._scaler.step(self.optimizer)
        self._scaler.update()
        # A step that overflowed was skipped: the schedule does not move either.
        if self._scaler.get_scale() >= scale:
            self.scheduler.step()
        if self.average is not None:
            self.average.update_parameters(self.model)
        self.sampler.advance(self._samples_per_step)
        self.state.step += 1
        return loss

    def _accumulate(self, shard: int) -> float:
        """Add the gradient of one shard's micro-batches, and return their mean loss."""
        total = 0.0
        parts = self._schedule.accumulate
        for part in range(parts):
            batch = self._to_device(next(self._batches[shard]))
            with self._reducing(now=part == parts - 1):
                loss = self._loss(batch) / parts
                self._scaler.scale(loss).backward()
            total += loss.item()
        return total

    def _loss(self, batch: Batch) -> torch.Tensor:
        dtype = _DTYPES[self._schedule.precision]
        with torch.autocast(self._device.type, dtype, enabled=dtype is not None):
            return self._loss_of(self._wrapped, batch)

    def _to_device(self, batch: Batch) -> Batch:
        if isinstance(batch, torch.Tensor):
            return batch.to(self._device)
        if isinstance(batch, Mapping):
            return {key: self._to_device(value) for key, value in batch.items()}
        if isinstance(batch, list | tuple):
            return [self._to_device(value) for value in batch]
        return batch

    def _reducing(self, *, now: bool) -> AbstractContextManager[None]:
        if self._sharded is not None:
            self.model.set_requires_gradient_sync(now)
        if now or not isinstance(self._wrapped, DistributedDataParallel):
            return nullcontext()
        waiting: AbstractContextManager[None] = self._wrapped.no_sync()
        return waiting

    def _is_due(self, every: int) -> bool:
        return every > 0 and self.step % every == 0

    def _agreed(self) -> Request:
        """Return what all ranks do now.

        Raises:
            CheckpointError: a save in the background has failed, on whichever rank.
        """
        mine = Request.FAIL if self._keeper.fault else self._watch.requested
        request = Request(self._peers.agree(mine))
        if request is Request.FAIL:
            faults = self._peers.gather(self._keeper.fault)
            raise CheckpointError(
                f"a save before step {self.step} failed: "
                f"{'; '.join(fault for fault in faults if fault)}"
            )
        if request is Request.STOP and self._can_finish():
            return (
                Request.SAVE
                if self._is_due(self._schedule.save_every)
                else Request.GO_ON
            )
        return request

    def _can_finish(self) -> bool:
        """Whether the rest of the run, and its save, fit before the deadline."""
        left = self._schedule.steps - self.step
        needs_s = left * self._step_s + 2.0 * self._keeper.slowest_save_s + 1.0
        told = self._peers.gather(
            (self._watch.requested, self._watch.seconds_left(), needs_s)
        )
        windows_s = [seconds for request, seconds, _ in told if request >= Request.STOP]
        longest_s = max(needs for _, _, needs in told)
        # A signal names no deadline: it may mean now.
        return all(seconds is not None and seconds > longest_s for seconds in windows_s)

    def _evaluate(self) -> Request:
        """Score the held-out data, and leave early if the machine will be lost.

        No random stream moves, and weights are never swapped: the averaged copy is
        evaluated where it is.
        """
        if self._held_out is None:
            return Request.GO_ON
        streams = capture_rng()
        judged: nn.Module = self.model if self.average is None else self.average
        judged.eval()
        loader = DataLoader(
            self._held_out, batch_size=self._schedule.batch, generator=torch.Generator()
        )
        request, total, batches = Request.GO_ON, 0.0, 0
        with torch.no_grad():
            for batch in loader:
                total += self._loss_of(judged, self._to_device(batch)).item()
                batches += 1
                request = self._agreed()
                if request >= Request.STOP:
                    break
        judged.train()
        restore_rng(streams)
        if request < Request.STOP and batches:
            self._score = total / batches
            log.info("step %d held-out loss %.4f", self.step, self._score)
        return request

    def _save(self, *, at_once: bool) -> None:
        """Hand the state to the keeper; with `at_once` it is durable on return."""
        if self._sharded is not None:
            self._sharded.save(
                self.model, self.optimizer, step=self.step, mine=self.state.mine(),
                shared=self.state.capture_parts(), epoch=self.sampler.epoch,
                score=self._score,
            )  # fmt: skip
            if at_once:
                self._sharded.wait(self._watch.seconds_left())
            self._score = None
            return
        keeper = self._keeper
        assert isinstance(keeper, Keeper)
        gathered = self._peers.gather(self._streams())
        streams = {shard: mine for some in gathered for shard, mine in some.items()}

        def save() -> None:
            state = self.state.capture([streams[shard] for shard in sorted(streams)])
            keeper.save(
                state, step=self.step, epoch=self.sampler.epoch,
                world_size=self._shards, score=self._score,
            )  # fmt: skip
            if at_once:
                keeper.wait(self._watch.seconds_left())

        try:
            # Every rank learns how it went: nobody trains on past a save that failed.
            self._peers.led(save)
        except (OSError, SpotchaosError) as error:
            raise CheckpointError(
                f"step {self.step} could not be saved: {error}"
            ) from error
        self._score = None

    def _streams(self) -> dict[int, Any]:
        if self._virtual is None:
            return {self._peers.rank: self.state.mine()}
        return {
            worker: {"rng": self._virtual.streams[worker], "own": {}}
            for worker in self._mine
        }

    def _resume(self) -> int | None:
        """Put back the newest whole checkpoint, and return its step; None without one."""
        found = (
            self._load(self._keeper)
            if isinstance(self._keeper, Keeper)
            else self._load_shards(self._keeper)
        )
        if not found:
            log.info("starting at step 0")
            return None
        log.info("resuming after step %d", self.step)
        return self.step

    def _load(self, keeper: Keeper) -> bool:
        state = keeper.load_for(self._peers)
        if state is None:
            return False
        self.state.restore(
            state, rank=self._mine[0], world_size=self._shards,
            allow_inexact=self._allow_inexact,
        )  # fmt: skip
        if self._virtual is not None:
            for worker in self._mine:
                self._virtual.streams[worker] = state["ranks"][worker]["rng"]
        return True

    def _load_shards(self, sharded: ShardedStore) -> bool:
        found = sharded.load(self.model, self.optimizer)
        if found is None:
            return False
        if not self._allow_inexact:
            refuse_other_world(found["world_size"], self._shards)
        self.state.restore_parts(found["shared"])
        self.state.step = found["step"]
        self.state.restore_mine(found["mine"], self._peers.rank)
        return True


def _refuse_with_shards(schedule: Schedule, virtual_workers: int | None) -> None:
    odd = {
        "virtual workers": virtual_workers is not None,
        "an average": schedule.average > 0,
        "fp16": schedule.precision == "fp16",
    }
    for name, is_asked in odd.items():
        if is_asked:
            raise UsageError(
                f"a sharded model goes not with {name}",
                hint="leave it out, or train the model whole on each rank",
            )


def be_deterministic() -> None:
    """Ask torch for algorithms that repeat, bit for bit, on whatever device.

    Call it before the first use of CUDA: cuBLAS reads its setting once
    (https://docs.pytorch.org/docs/stable/notes/randomness.html).
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    torch.backends.cudnn.benchmark = False
