"""What a loop of somebody else's brings: odd modules, other optimizers, wrong files."""

import copy

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader

from spotchaos.errors import CheckpointError, UsageError
from spotchaos.training.checkpoint import CheckpointStore
from spotchaos.training.manifest import DamagedError, FileEntry, Manifest
from spotchaos.training.plain import first_difference
from spotchaos.training.sampler import ResumableSampler, ResumableStream
from spotchaos.training.state import TrainingState


class MadeLate(nn.Module):
    """Fills a buffer in its first forward, as caches of masks are."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.register_buffer("mask", None, persistent=False)

    def forward(self, x):
        if self.mask is None:
            self.mask = torch.rand(6)
        return self.inner(x) * self.mask


class Registered(nn.Module):
    """Registers one in its first forward."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x):
        if not hasattr(self, "mask"):
            self.register_buffer("mask", torch.rand(6), persistent=False)
        return self.inner(x) * self.mask


class OverGraph(nn.Module):
    """Has sparse buffers."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.register_buffer("edges", torch.eye(6).to_sparse())
        self.register_buffer("rows", torch.eye(6).to_sparse_csr())

    def forward(self, x):
        return (self.edges @ self.inner(x).T).T


def lazy():
    return nn.Sequential(nn.LazyLinear(6), nn.LazyBatchNorm1d(), nn.Linear(6, 2))


def train(model, saved, steps):
    """Return the state after so many steps more, from what was saved, if anything."""
    torch.manual_seed(0)
    module = model()
    optimizer = torch.optim.AdamW(module.parameters(), 1e-2)
    state = TrainingState(model=module, optimizers=optimizer)
    if saved is not None:
        state.restore(saved)
    for _ in range(steps):
        optimizer.zero_grad()
        module(torch.randn(4, 6)).pow(2).mean().backward()
        optimizer.step()
        state.step += 1
    return state.capture()


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta")
@pytest.mark.parametrize(
    "model", [MadeLate, Registered, OverGraph, lazy], ids=lambda model: model.__name__
)
def test_a_module_made_in_its_first_forward_or_sparse_goes_on(model, tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(train(model, None, 3), step=3)
    resumed = train(model, store.load_latest(), 4)
    assert first_difference(train(model, None, 7), resumed, "state") is None


def test_weights_without_values_are_refused_when_they_are_captured():
    with pytest.raises(CheckpointError, match=r"model.0.weight has no values yet"):
        TrainingState(model=lazy()).capture()


def made(kind, optimizer=torch.optim.SGD, **parts):
    torch.manual_seed(1)
    model = nn.Linear(2, 2)
    stepped = optimizer(model.parameters(), 0.1)
    model(torch.ones(1, 2)).sum().backward()
    stepped.step()
    schedule = kind(stepped)
    return TrainingState(model=model, optimizers=stepped, schedulers=schedule, **parts)


def by_steps(optimizer):
    return lr_scheduler.StepLR(optimizer, 3)


def by_cosine(optimizer):
    return lr_scheduler.CosineAnnealingLR(optimizer, 9)


class Counts:
    def state_dict(self):
        return {"n": 1}

    def load_state_dict(self, state):
        pass


@pytest.mark.parametrize(
    ("saved", "says"),
    [
        (
            lambda: made(by_steps, torch.optim.Adam),
            "optimizer 'main' is of another kind",
        ),
        (lambda: made(by_cosine), "scheduler 'main' is of another kind"),
        (
            lambda: made(by_steps, generators={"noise": torch.Generator()}),
            r"the checkpoint has generators \['noise'\], this program has \[\]",
        ),
        (
            lambda: made(by_steps, own={"patience": Counts()}),
            r"components of a rank's own \['patience'\], this program has \[\]",
        ),
    ],
    ids=["optimizer", "scheduler", "generator", "own"],
)
def test_another_component_is_refused_before_anything_changes(saved, says):
    state = made(by_steps)
    theirs = saved().capture()
    before = copy.deepcopy(state.capture())
    with pytest.raises(CheckpointError, match=says):
        state.restore(theirs)
    assert first_difference(before, state.capture(), "state") is None


def test_a_position_in_other_data_is_refused_before_anything_changes():
    theirs = made(by_cosine, sampler=ResumableSampler(10, seed=1)).capture()
    state = made(by_cosine, sampler=ResumableSampler(12, seed=1))
    with torch.no_grad():
        next(state._model.parameters()).zero_()
    before = copy.deepcopy(state.capture())
    with pytest.raises(CheckpointError, match="has length 10, this run has 12"):
        state.restore(theirs)
    assert first_difference(before, state.capture(), "state") is None


@pytest.mark.parametrize("state", [{"model": {}, "epoch": 3}, {}, [1], None])
def test_what_was_never_captured_is_refused(state):
    with pytest.raises(CheckpointError, match="this is no captured state: it lacks"):
        TrainingState(model=nn.Linear(2, 2)).restore(state)


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ({"state": {"net": nn.Linear(2, 2)}}, "state.net holds a Linear"),
        ({"step": -1}, "of step -1"),
        ({"notes": {"loss": torch.ones(())}}, "the notes of a checkpoint hold what"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_could_not_be_read_back_is_not_saved(tmp_path, what, says):
    store = CheckpointStore(tmp_path)
    store.save({"x": 1}, step=1)
    with pytest.raises(CheckpointError, match=says):
        store.save(**{"state": {"x": 2}, "step": 2, **what})
    assert [folder.name for folder in store.committed()] == ["step-00000001"]


def test_numbers_may_be_tensors(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save({"x": 1}, step=torch.tensor(3), score=torch.tensor(0.5))
    assert (store.newest().step, store.newest().manifest.score) == (3, 0.5)


def test_a_score_that_is_no_number_is_not_the_best(tmp_path):
    store = CheckpointStore(tmp_path, keep=1)
    for step, score in enumerate((0.5, float("nan"), 0.7), 1):
        store.save({"x": 1}, step=step, score=score)
    assert [folder.name[-1] for folder in store.committed()] == ["3", "1"]


@pytest.mark.parametrize("name", ["../state.pt", "/tmp/state.pt", "a/b", "..", ""])
def test_a_manifest_names_no_file_elsewhere(name):
    manifest = Manifest(
        run_id="", step=1, epoch=0, world_size=1, saved_at="",
        files={name: FileEntry(1, "0")},
    )  # fmt: skip
    with pytest.raises(DamagedError, match="is foreign"):
        Manifest.parse(manifest.to_bytes(), of="step-1")


def test_each_sample_comes_once_where_the_batch_grows_in_an_epoch():
    before = ResumableSampler(20, seed=1, multiple_of=4)
    before.advance(8)
    after = ResumableSampler(20, seed=1, multiple_of=6)
    after.load_state_dict(before.state_dict())
    assert sorted([*before.order()[:8], *after]) == list(range(20))
    assert len(after) == 12


def numbers(epoch):
    return range(100 * epoch, 100 * epoch + 8)


def test_a_stream_refuses_workers_that_outlive_an_epoch():
    stream = ResumableStream(numbers, batch=2)
    loader = DataLoader(
        stream, batch_size=2, num_workers=1, persistent_workers=True,
        generator=torch.Generator(),
    )  # fmt: skip
    first = [batch.tolist() for batch in loader]
    assert first == [[0, 1], [2, 3], [4, 5], [6, 7]]
    stream.next_epoch()
    with pytest.raises(UsageError, match="whose workers persist"):
        list(loader)


def test_shards_of_a_model_are_no_checkpoint_of_it(forked):
    def work():
        import torch.distributed as dist
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
        mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
        said = []
        for placement in (Replicate(), Shard(0)):
            model = nn.Linear(4, 4, bias=False)
            whole = distribute_tensor(model.weight.data, mesh, [placement])
            model.weight = nn.Parameter(whole)
            try:
                said.append(sorted(TrainingState(model=model).capture()["model"]))
            except CheckpointError as error:
                said.append(error.message)
        return said

    child = forked.one(work)
    forked.wait([child])
    assert child.result == [
        ["weight"],
        "model.weight is spread over ranks, and this rank has its shard only",
    ]
