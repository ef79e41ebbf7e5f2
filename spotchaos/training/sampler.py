"""Which samples come next: a function of seed, epoch and position, and of nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from spotchaos.errors import CheckpointError, UsageError


class ResumableSampler:
    """Shuffled sample numbers whose position counts what was *trained on*.

    The order of an epoch is a function of (seed, epoch). The position counts samples of
    all ranks together, so it means the same with another number of ranks, and it moves
    only when `advance` says that a step was completed: what a loader has fetched ahead
    does not count. Every iterator starts at the position of the moment it is made.

    Args:
        length: samples in the data set.
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
        self,
        length: int,
        *,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        multiple_of: int = 1,
        shuffle: bool = True,
    ) -> None:
        if length < multiple_of:
            raise UsageError(
                f"{length} samples do not fill a step of {multiple_of}",
                hint="use a smaller batch, fewer ranks or more data",
            )
        self.length = length
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.multiple_of = multiple_of
        self.shuffle = shuffle
        self.epoch = 0
        self.position = 0

    @property
    def usable(self) -> int:
        """Samples of one epoch that fill whole steps."""
        return self.length - self.length % self.multiple_of

    @property
    def epoch_is_over(self) -> bool:
        """Whether no whole step is left in this epoch."""
        return self.position + self.multiple_of > self.usable

    def order(self) -> list[int]:
        """Return the sample numbers of this epoch, for all ranks together."""
        if not self.shuffle:
            return list(range(self.length))
        import torch

        # A generator of its own: neither the program's draws nor ours disturb each other.
        generator = torch.Generator()
        generator.manual_seed(_mix(self.seed, self.epoch))
        drawn: list[int] = torch.randperm(self.length, generator=generator).tolist()
        return drawn

    def __iter__(self) -> Iterator[int]:
        """Yield this rank's samples from the position on, to the end of the epoch."""
        mine = self.order()[self.position + self.rank : self.usable : self.world_size]
        return iter(mine)

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
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a saved position.

        Raises:
            CheckpointError: it belongs to other data or another seed, so that going on
                would train on some samples twice and on others never.
        """
        for name in ("seed", "length"):
            if state[name] != getattr(self, name):
                raise CheckpointError(
                    f"the saved data position has {name} {state[name]}, "
                    f"this run has {getattr(self, name)}",
                    hint="resume with the data and the seed that the run began with",
                )
        self.epoch = int(state["epoch"])
        self.position = int(state["position"])


def _mix(*numbers: int) -> int:
    """Make one seed of several numbers, so that neighbours give unlike seeds."""
    mixed = 0x9E3779B97F4A7C15
    for number in numbers:
        # The finalizer of splitmix64. Source: Steele et al., OOPSLA 2014.
        mixed = (mixed + number + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        mixed ^= mixed >> 31
    return mixed >> 1
