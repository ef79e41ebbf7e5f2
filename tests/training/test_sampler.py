"""Every sample of an epoch exactly once, wherever the run is cut and however often."""

import random
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.utils.data import DataLoader, Dataset, get_worker_info

from spotchaos.errors import CheckpointError, UsageError
from spotchaos.training.sampler import (
    ResumableSampler,
    ResumableStream,
    SampleNumber,
    SeededSamples,
    Shard,
)


def epoch_of(samplers, batch):
    """Take one step of `batch` samples on each rank; return the numbers of all."""
    taken = [list(sampler)[:batch] for sampler in samplers]
    for sampler in samplers:
        sampler.advance(batch * len(samplers))
    return [number for rank in taken for number in rank]


@given(
    length=st.integers(8, 60),
    seed=st.integers(0, 2**32),
    batch=st.integers(1, 3),
    cuts=st.lists(st.tuples(st.integers(1, 4), st.sampled_from([1, 2, 4])), max_size=6),
)
@settings(max_examples=100)
def test_each_sample_comes_once_in_an_epoch_whatever_the_cuts(
    length, seed, batch, cuts
):
    # Each cut: train some steps, save, start again with another number of ranks.
    position = ResumableSampler(length, seed=seed).state_dict()
    seen = []
    for steps, ranks in [*cuts, (10**6, 1)]:
        samplers = [
            ResumableSampler(length, seed=seed, rank=r, world_size=ranks)
            for r in range(ranks)
        ]
        for sampler in samplers:
            sampler.load_state_dict(position)
        for _ in range(steps):
            left = length - samplers[0].position
            if left < batch * ranks:
                break
            seen += epoch_of(samplers, batch)
        position = samplers[0].state_dict()
    assert max(Counter(seen).values(), default=1) == 1
    assert len(seen) > length - 3  # at most a batch of one rank is left over
    whole = ResumableSampler(length, seed=seed).order()
    assert sorted(seen) == sorted(whole[: len(seen)])


def test_the_order_differs_between_epochs_and_seeds_and_repeats():
    sampler = ResumableSampler(50, seed=3)
    first = list(sampler)
    sampler.next_epoch()
    second = list(sampler)
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    assert list(ResumableSampler(50, seed=4)) != first
    assert list(ResumableSampler(50, seed=3)) == first


def test_drawing_the_order_moves_no_stream_of_the_program():
    before = torch.get_rng_state()
    list(ResumableSampler(50, seed=3))
    assert torch.equal(before, torch.get_rng_state())


def test_the_rest_that_fills_no_step_is_left_out_another_one_each_epoch():
    sampler = ResumableSampler(10, seed=1, multiple_of=4)
    left_out = []
    for _ in range(8):
        left_out.append(set(range(10)) - set(sampler))
        sampler.advance(8)
        assert sampler.epoch_is_over
        sampler.next_epoch()
    assert all(len(rest) == 2 for rest in left_out)
    assert len(set(map(frozenset, left_out))) > 1


def test_a_save_at_the_end_of_an_epoch_resumes_in_the_next():
    sampler = ResumableSampler(8, seed=1, multiple_of=4)
    sampler.advance(8)
    fresh = ResumableSampler(8, seed=1, multiple_of=4)
    fresh.load_state_dict(sampler.state_dict())
    assert fresh.epoch_is_over
    assert list(fresh) == []
    fresh.next_epoch()
    sampler.next_epoch()
    assert list(fresh) == list(sampler)
    assert len(list(fresh)) == 8


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"data": 9, "seed": 1}, "has length 8, this run has 9"),
        ({"data": 8, "seed": 2}, "has seed 1, this run has 2"),
        (
            {"data": 8, "seed": 1, "shuffle": False},
            "has shuffle True, this run has False",
        ),
    ],
)
def test_a_position_in_other_data_is_refused(other, what):
    saved = ResumableSampler(8, seed=1).state_dict()
    with pytest.raises(CheckpointError, match=what):
        ResumableSampler(other.pop("data"), **other).load_state_dict(saved)


def test_data_that_fill_no_step_are_refused():
    with pytest.raises(UsageError, match="3 samples do not fill a step of 4"):
        ResumableSampler(3, seed=1, multiple_of=4)


def test_shards_share_the_position_of_their_sampler():
    sampler = ResumableSampler(12, seed=1)
    shards = [Shard(sampler, number, of=3) for number in range(3)]
    sampler.advance(3)
    together = [number for group in zip(*shards, strict=True) for number in group]
    assert together == list(sampler)
    assert [len(shard) for shard in shards] == [3, 3, 3]


class Noisy(Dataset):
    """Augments by every stream there is, and says where it ran."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        draws = (random.random(), float(np.random.rand()), float(torch.rand(())))  # noqa: TID251 - as a user's augmentation draws
        return index, draws, get_worker_info() is not None


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("cut", [0, 4])
def test_augmentation_is_a_function_of_seed_epoch_and_sample(workers, cut):
    def epoch(number, workers, start):
        sampler = ResumableSampler(12, seed=3)
        sampler.epoch = number
        sampler.advance(start)
        loader = DataLoader(
            SeededSamples(Noisy(), seed=5), batch_size=2, sampler=sampler,
            num_workers=workers, collate_fn=list, generator=torch.Generator(),
        )  # fmt: skip
        samples = [sample for batch in loader for sample in batch]
        assert all(sample[2] == (workers > 0) for sample in samples)
        return [sample[:2] for sample in samples]

    whole = epoch(1, 0, 0)
    assert epoch(1, workers, cut) == whole[cut:]
    assert dict(epoch(2, 0, 0)) != dict(whole)


def test_augmentation_in_this_process_leaves_the_program_s_streams_alone():
    def streams():
        return (
            random.getstate(),
            np.random.get_state()[1].tolist(),
            torch.get_rng_state(),
        )

    before = streams()
    SeededSamples(Noisy(), seed=5)[SampleNumber(3, 1)]
    after = streams()
    assert before[:2] == after[:2]
    assert torch.equal(before[2], after[2])


def test_a_sample_number_remembers_its_epoch_on_its_way_to_a_worker():
    import pickle

    number = pickle.loads(pickle.dumps(SampleNumber(7, 3)))
    assert (number, number.epoch) == (7, 3)


def numbers(epoch):
    return iter(range(100 * epoch, 100 * epoch + 24))


class Skippable:
    def __init__(self, epoch):
        self.rest = list(numbers(epoch))

    def skip(self, count):
        return iter(self.rest[count:])


@pytest.mark.parametrize("make", [numbers, Skippable])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("cuts", [[], [4, 1, 1]])
def test_a_stream_yields_each_sample_once_in_order(make, workers, cuts):
    stream = ResumableStream(make, batch=3)
    seen = []
    for steps in [*cuts, 99]:
        fresh = ResumableStream(make, batch=3)
        fresh.load_state_dict(stream.state_dict())
        stream = fresh
        loader = DataLoader(
            stream, batch_size=3, num_workers=workers, generator=torch.Generator()
        )
        for number, batch in enumerate(loader):
            if number == steps:
                break  # what was fetched beyond is lost with the process
            seen += batch.tolist()
            stream.advance(len(batch))
    assert seen == list(range(24))


def test_ranks_share_a_stream():
    ranks = [ResumableStream(numbers, rank=r, world_size=2) for r in range(2)]
    for stream in ranks:
        stream.advance(4)
    assert [list(stream)[:3] for stream in ranks] == [[4, 6, 8], [5, 7, 9]]


def test_a_stream_that_does_not_know_its_batch_refuses_workers():
    loader = DataLoader(
        ResumableStream(numbers),
        batch_size=3,
        num_workers=1,
        generator=torch.Generator(),
    )
    with pytest.raises(UsageError, match="without `batch` was given to a loader"):
        list(loader)
