"""Which samples come next: a function of seed, epoch and position, and of nothing else."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Iterator, Mapping, Sized
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from spotchaos.errors import CheckpointError, UsageError
from spotchaos.training.rng import capture_rng, mix, restore_rng, seed_everything


class SampleNumber(int):
    """The number of a sample that remembers its epoch, also on its way to a worker."""

    epoch: int

    def __new__(cls, number: int, epoch: int) -> SampleNumber:
        made = super().__new__(cls, number)
        made.epoch = epoch
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return SampleNumber, (int(self), self.epoch)


class ResumableSampler:
    """Shuffled sample numbers whose position counts what was *trained on*.

    The order of an epoch is a function of (seed, epoch). The position counts samples of
    all ranks together, so it means the same with another number of ranks, and it moves
    only when `advance` says that a step was completed: what a loader has fetched ahead
    does not count. Every iterator starts at the position of the moment it is made, and
    yields one epoch; `next_epoch` is called by whoever trains.

    Args:
        data: the data set, or its number of samples.
        seed: makes the order of every epoch.
        rank: this rank, from 0.
        world_size: ranks that share the samples.
        multiple_of: samples of one step over all ranks; the rest of an epoch that does
            not fill a step is left out, another rest in each epoch.
        shuffle: whether the order is drawn; without it samples come in their own order.

    Raises:
        UsageError: the data set does not fill one step.
    """

    def __init__(
        self, data: Sized | int, *, seed: int, rank: int = 0, world_size: int = 1,
        multiple_of: int = 1, shuffle: bool = True,
    ) -> None:  # fmt: skip
        self.length = data if isinstance(data, int) else len(data)
        if self.length < multiple_of:
            raise UsageError(
                f"{self.length} samples do not fill a step of {multiple_of}",
                hint="use a smaller batch, fewer ranks or more data",
            )
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.multiple_of = multiple_of
        self.shuffle = shuffle
        self.epoch = 0
        self.position = 0

    @property
    def usable(self) -> int:
        """Samples of this epoch that were trained on, or fill whole steps still.

        Counted from the position, which another size of a step may have left.
        """
        return self.length - (self.length - self.position) % self.multiple_of

    @property
    def epoch_is_over(self) -> bool:
        """Whether no whole step is left in this epoch."""
        return self.position + self.multiple_of > self.usable

    def order(self) -> list[int]:
        """Return the sample numbers of this epoch, for all ranks together."""
        if not self.shuffle:
            return list(range(self.length))
        # A generator of its own: neither the program's draws nor ours disturb each other.
        generator = torch.Generator()
        generator.manual_seed(mix(self.seed, self.epoch))
        drawn: list[int] = torch.randperm(self.length, generator=generator).tolist()
        return drawn

    def __iter__(self) -> Iterator[SampleNumber]:
        """Yield this rank's samples from the position on, to the end of the epoch."""
        return self.share(self.rank, self.world_size)

    def share(self, number: int, of: int) -> Iterator[SampleNumber]:
        """Yield every `of`-th sample from the position on, beginning with the `number`-th."""
        epoch = self.epoch
        mine = self.order()[self.position + number : self.usable : of]
        return (SampleNumber(each, epoch) for each in mine)

    def __len__(self) -> int:
        left = self.usable - self.position - self.rank
        return max(0, -(-left // self.world_size))

    def advance(self, samples: int) -> None:
        """Count `samples`, of all ranks together, as trained on."""
        self.position += samples

    def next_epoch(self) -> None:
        """Go to the start of the next epoch."""
        self.epoch += 1
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "position": self.position,
            "seed": self.seed,
            "length": self.length,
            "shuffle": self.shuffle,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a saved position.

        Raises:
            CheckpointError: it belongs to other data or another seed, so that going on
                would train on some samples twice and on others never.
        """
        for name in ("seed", "length", "shuffle"):
            if state[name] != getattr(self, name):
                raise CheckpointError(
                    f"the saved data position has {name} {state[name]}, "
                    f"this run has {getattr(self, name)}",
                    hint="resume with the data and the seed that the run began with",
                )
        self.epoch = int(state["epoch"])
        self.position = int(state["position"])


class Shard:
    """One of several equal shares of what a sampler yields, at the sampler's position.

    Args:
        sampler: the whole; its own rank does not matter here.
        number: of this share, from 0.
        of: how many there are.
    """

    def __init__(self, sampler: ResumableSampler, number: int, *, of: int) -> None:
        self._sampler = sampler
        self._number = number
        self._of = of

    def __iter__(self) -> Iterator[SampleNumber]:
        return self._sampler.share(self._number, self._of)

    def __len__(self) -> int:
        left = self._sampler.usable - self._sampler.position - self._number
        return max(0, -(-left // self._of))


class SeededSamples(Dataset[Any]):  # type: ignore[misc]  # torch is untyped here
    """A data set whose random augmentation is a function of (seed, epoch, sample).

    Whatever a sample draws from random, numpy or torch is the same in every process, with
    any number of workers, before and after a resume; the program's own streams stay as
    they were. Take its samples by numbers from `ResumableSampler`.

    Args:
        data: the data set, with its augmentation.
        seed: the run's.
    """

    def __init__(self, data: Any, *, seed: int) -> None:
        self._data = data
        self._seed = seed

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, number: int) -> Any:
        epoch = getattr(number, "epoch", 0)
        if get_worker_info() is not None:  # a worker's streams are nobody else's
            seed_everything(mix(self._seed, epoch, int(number)))
            return self._data[int(number)]
        kept = _streams()
        seed_everything(mix(self._seed, epoch, int(number)))
        try:
            return self._data[int(number)]
        finally:
            _put_back(kept)


class ResumableStream(IterableDataset[Any]):  # type: ignore[misc]  # as above
    """A stream of samples whose position counts what was trained on.

    Args:
        make: given an epoch, returns an iterable that yields the same samples in the same
            order whenever it is asked; an iterable with a method `skip(n)` is asked to
            jump, any other is read up to the position.
        rank: this rank; it takes every `world_size`-th sample.
        world_size: ranks that share the stream.
        batch: the loader's batch size; needed only for loaders with workers, which take
            turns batch by batch. They must not persist from one epoch to the next.
    """

    def __init__(
        self, make: Any, *, rank: int = 0, world_size: int = 1, batch: int | None = None
    ) -> None:
        self._make = make
        self._batch = batch
        self._is_read = False  # in this worker's copy
        self.rank = rank
        self.world_size = world_size
        self.epoch = 0
        self.position = 0

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        if worker is not None and self._batch is None:
            raise UsageError(
                "a ResumableStream without `batch` was given to a loader with workers",
                hint="pass the loader's batch size as `batch`, or use num_workers=0",
            )
        if worker is not None:
            if self._is_read:
                raise UsageError(
                    "a ResumableStream was given to a loader whose workers persist: they"
                    " know the epoch and the position of their start only",
                    hint="leave out persistent_workers, or use num_workers=0",
                )
            self._is_read = True
        samples = self._make(self.epoch)
        if hasattr(samples, "skip"):
            samples = samples.skip(self.position)
        else:
            samples = itertools.islice(samples, self.position, None)
        mine = itertools.islice(samples, self.rank, None, self.world_size)
        for number, sample in enumerate(mine):
            if worker is not None and self._batch is not None:
                # A loader asks its workers in turn, one batch each.
                turn = (number // self._batch) % worker.num_workers
                if turn != worker.id:
                    continue
            yield sample

    def advance(self, samples: int) -> None:
        """Count `samples`, of all ranks together, as trained on."""
        self.position += samples

    def next_epoch(self) -> None:
        """Go to the start of the next epoch."""
        self.epoch += 1
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.epoch = int(state["epoch"])
        self.position = int(state["position"])


def _streams() -> Any:
    if torch.cuda.is_initialized():
        return capture_rng()
    numpy_state = None
    if "numpy" in sys.modules:
        import numpy as np

        numpy_state = np.random.get_state()
    return random.getstate(), torch.get_rng_state(), numpy_state


def _put_back(kept: Any) -> None:
    if isinstance(kept, dict):
        restore_rng(kept)
        return
    random.setstate(kept[0])
    torch.set_rng_state(kept[1])
    if kept[2] is not None:
        import numpy as np

        np.random.set_state(kept[2])
