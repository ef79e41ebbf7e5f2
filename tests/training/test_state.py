"""Captured and put back, every component is bit for bit what it was."""

import random
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from spotchaos.errors import CheckpointError
from spotchaos.training.checkpoint import CheckpointStore
from spotchaos.training.plain import first_difference
from spotchaos.training.sampler import ResumableSampler
from spotchaos.training.state import TrainingState, unwrapped


def through_a_file(state, tmp_path):
    store = CheckpointStore(tmp_path / "through")
    store.save(state, step=state["step"])
    return store.load_latest()


class Patience:
    def __init__(self):
        self.bad = 0
        self.best = float("inf")

    def state_dict(self):
        return {"bad": self.bad, "best": self.best}

    def load_state_dict(self, state):
        self.bad, self.best = state["bad"], state["best"]


class Program:
    """A program with one of everything."""

    def __init__(self, forked, *, optimizer=torch.optim.AdamW, scheduler=None, seed=0):
        torch.manual_seed(seed)
        self.model = forked.model()
        self.optimizer = optimizer(self.model.parameters(), lr=0.01)
        make = scheduler or (lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5))
        self.scheduler = make(self.optimizer)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        self.average = AveragedModel(
            self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True
        )
        self.sampler = ResumableSampler(60, seed=1)
        self.generator = torch.Generator().manual_seed(9)
        self.patience = Patience()
        self.data = forked.data()
        self.loss = forked.loss
        self.state = TrainingState(
            model=self.model, optimizers=self.optimizer, schedulers=self.scheduler,
            scaler=self.scaler, averages={"ema": self.average}, sampler=self.sampler,
            generators={"noise": self.generator}, extras={"patience": self.patience},
        )  # fmt: skip

    def train(self, steps):
        for _ in range(steps):
            numbers = list(self.sampler)[:4]
            x, y = self.data[numbers]
            x = x + 0.01 * torch.randn(x.shape, generator=self.generator)
            x = x * random.uniform(0.9, 1.1) + float(np.random.rand()) * 0.01
            self.optimizer.zero_grad()
            loss = self.scaler.scale(self.loss(self.model, (x, y)))
            loss.backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            if isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                self.scheduler.step(loss.item())
            else:
                self.scheduler.step()
            self.average.update_parameters(self.model)
            self.sampler.advance(4)
            self.patience.bad += 1
            self.state.step += 1


def chained(optimizer):
    schedulers = torch.optim.lr_scheduler
    return schedulers.SequentialLR(
        optimizer,
        [
            schedulers.LinearLR(optimizer, 0.1, total_iters=3),
            schedulers.CosineAnnealingLR(optimizer, 20),
        ],
        milestones=[3],
    )


SCHEDULERS = {
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5),
    "multi-step": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 4, 7]),
    "one-cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, 30),
    "plateau": lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=1),
    "sequential": chained,
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 4),
}


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("at", [1, 3, 6])
def test_a_fresh_process_goes_on_with_the_same_bits(forked, tmp_path, name, at):
    quiet = Program(forked, scheduler=SCHEDULERS[name])
    quiet.train(at)
    saved = through_a_file(quiet.state.capture(), tmp_path)
    quiet.train(4)
    fresh = Program(forked, scheduler=SCHEDULERS[name], seed=77)
    torch.rand(3), random.random(), np.random.rand()  # noqa: TID251 - streams that have moved
    fresh.state.restore(saved)
    fresh.train(4)
    assert (
        first_difference(quiet.state.capture(), fresh.state.capture(), "state") is None
    )


@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param(torch.optim.AdamW, id="adamw"),
        pytest.param(
            lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9, nesterov=True), id="sgd"
        ),
        pytest.param(torch.optim.Adagrad, id="adagrad"),
        pytest.param(
            lambda p, lr: torch.optim.AdamW(p, lr, amsgrad=True, foreach=True),
            id="amsgrad",
        ),
    ],
)
def test_every_optimizer_goes_on_with_the_same_bits(forked, tmp_path, optimizer):
    quiet = Program(forked, optimizer=optimizer)
    quiet.train(3)
    saved = through_a_file(quiet.state.capture(), tmp_path)
    quiet.train(3)
    fresh = Program(forked, optimizer=optimizer, seed=5)
    fresh.state.restore(saved)
    fresh.train(3)
    assert (
        first_difference(quiet.state.capture(), fresh.state.capture(), "state") is None
    )


def test_32_bit_moments_of_16_bit_weights_are_not_rounded(tmp_path):
    model = nn.Linear(4, 4).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.randn(2, 4, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    for values in optimizer.state.values():
        values["exp_avg"] = torch.rand(values["exp_avg"].shape, dtype=torch.float32)
    state = TrainingState(model=model, optimizers=optimizer)
    saved = through_a_file(state.capture(), tmp_path)
    fresh = nn.Linear(4, 4).to(torch.bfloat16)
    again = torch.optim.AdamW(fresh.parameters(), lr=0.1)
    TrainingState(model=fresh, optimizers=again).restore(saved)
    kept = [values["exp_avg"] for values in again.state.values()]
    assert [moment.dtype for moment in kept] == [torch.float32] * 2
    wanted = [values["exp_avg"] for values in optimizer.state.values()]
    assert all(torch.equal(a, b) for a, b in zip(kept, wanted, strict=True))


def test_moments_follow_the_name_and_not_the_position(tmp_path):
    def build(order):
        model = nn.Linear(3, 3)  # the weight and the bias have other shapes
        named = dict(model.named_parameters())
        optimizer = torch.optim.AdamW([named[name] for name in order], lr=0.1)
        return model, optimizer

    model, optimizer = build(["weight", "bias"])
    model(torch.randn(5, 3)).square().sum().backward()
    optimizer.step()
    saved = through_a_file(
        TrainingState(model=model, optimizers=optimizer).capture(), tmp_path
    )
    fresh, again = build(["bias", "weight"])
    TrainingState(model=fresh, optimizers=again).restore(saved)
    for name, parameter in fresh.named_parameters():
        wanted = optimizer.state[dict(model.named_parameters())[name]]["exp_avg"]
        assert torch.equal(again.state[parameter]["exp_avg"], wanted)


def test_buffers_that_state_dict_leaves_out_are_kept(tmp_path):
    class Cached(nn.Module):
        def __init__(self, value):
            super().__init__()
            self.inner = nn.BatchNorm1d(3)
            self.register_buffer("cache", torch.full((2,), value), persistent=False)

    saved = through_a_file(TrainingState(model=Cached(7.0)).capture(), tmp_path)
    fresh = Cached(0.0)
    TrainingState(model=fresh).restore(saved)
    assert torch.equal(fresh.cache, torch.full((2,), 7.0))


def test_a_wrapped_model_is_saved_as_the_plain_one(tmp_path):
    class Compiled(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self._orig_mod = inner

    plain = nn.Linear(2, 2)
    wrapped = Compiled(nn.DataParallel(plain))
    assert unwrapped(wrapped) is plain
    saved = through_a_file(TrainingState(model=wrapped).capture(), tmp_path)
    fresh = nn.Linear(2, 2)
    TrainingState(model=fresh).restore(saved)
    assert torch.equal(fresh.weight, plain.weight)
    TrainingState(model=Compiled(nn.Linear(2, 2))).restore(saved)


@pytest.mark.parametrize(
    ("build", "what"),
    [
        pytest.param(lambda: nn.Linear(3, 2), "weight is \\(2, 2\\)", id="shape"),
        pytest.param(lambda: nn.Linear(2, 2).double(), "torch.float64", id="dtype"),
        pytest.param(
            lambda: nn.Linear(2, 2, bias=False),
            "beyond ours \\['bias'\\]",
            id="surplus",
        ),
        pytest.param(
            lambda: nn.Sequential(nn.Linear(2, 2)), "lacks \\['0.bias'", id="renamed"
        ),
    ],
)
def test_another_model_is_refused_before_anything_changes(build, what):
    saved = TrainingState(model=nn.Linear(2, 2)).capture()
    other = build()
    before = {name: p.clone() for name, p in other.state_dict().items()}
    streams = torch.get_rng_state()
    with pytest.raises(CheckpointError, match=what) as error:
        TrainingState(model=other).restore(saved)
    assert error.value.hint == "build the model that the run was saved with"
    assert all(torch.equal(before[name], p) for name, p in other.state_dict().items())
    assert torch.equal(streams, torch.get_rng_state())


def test_another_number_of_ranks_is_refused_unless_inexact_is_allowed():
    state = TrainingState(model=nn.Linear(2, 2))
    saved = state.capture([state.mine(), state.mine()])
    with pytest.raises(CheckpointError, match="written by 2 ranks, this run has 3"):
        state.restore(saved, rank=0, world_size=3)
    with pytest.raises(CheckpointError, match="written by 2 ranks, this run has 1"):
        state.restore(saved)
    state.restore(saved, rank=2, world_size=3, allow_inexact=True)
    third = torch.get_rng_state()
    state.restore(saved, rank=0, world_size=3, allow_inexact=True)
    assert not torch.equal(third, torch.get_rng_state())


def test_other_components_are_refused():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    saved = TrainingState(model=model, optimizers=optimizer).capture()
    with pytest.raises(CheckpointError, match="has optimizers \\['main'\\]"):
        TrainingState(model=model).restore(saved)
    with_scaler = TrainingState(
        model=model, optimizers=optimizer, scaler=torch.amp.GradScaler("cpu")
    )
    with pytest.raises(CheckpointError, match="has scaler \\[\\], this program has"):
        with_scaler.restore(saved)


def test_a_component_that_ignores_its_state_is_named():
    class Forgetful(Patience):
        def load_state_dict(self, state):
            pass

    saved = TrainingState(model=nn.Linear(2, 2), extras={"patience": Patience()})
    patience = Forgetful()
    patience.bad = 3
    other = TrainingState(model=nn.Linear(2, 2), extras={"patience": patience})
    with pytest.raises(
        CheckpointError, match=r"state.extras.patience.bad did not take"
    ):
        other.restore(saved.capture())


def test_what_could_not_be_read_back_is_refused_when_it_is_saved():
    class Fancy(Patience):
        def state_dict(self):
            return {"when": {"now": object()}}

    state = TrainingState(model=nn.Linear(2, 2), extras={"fancy": Fancy()})
    with pytest.raises(CheckpointError, match=r"extras.fancy.when.now holds a object"):
        state.capture()


def test_a_generator_that_was_not_saved_is_refused():
    saved = TrainingState(model=nn.Linear(2, 2)).capture()
    other = TrainingState(
        model=nn.Linear(2, 2), generators={"noise": torch.Generator()}
    )
    with pytest.raises(
        CheckpointError, match=r"has generators \[\], this program has \['noise'\]"
    ):
        other.restore(saved)


def test_capturing_moves_no_stream(forked):
    program = Program(forked)
    program.train(1)
    first = program.state.capture()
    assert first_difference(first, program.state.capture(), "state") is None


def test_a_difference_in_the_last_bit_or_in_a_zero_s_sign_is_seen():
    one = torch.tensor([1.0, 0.0])
    assert first_difference(one, torch.tensor([1.0, -0.0]), "w") == "w"
    assert first_difference(one, torch.nextafter(one, one + 1), "w") == "w"
    nan = torch.tensor([float("nan")])
    assert first_difference(nan, nan.clone(), "w") is None
    assert first_difference({"a": [1]}, {"a": [2]}, "s") == "s.a[0]"
    assert first_difference({"a": 1}, {"b": 1}, "s") == "s.a"
    assert first_difference(1, 1.0, "s") == "s"


def test_no_warning_comes_from_restoring(forked, tmp_path):
    quiet = Program(forked)
    quiet.train(2)
    saved = through_a_file(quiet.state.capture(), tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Program(forked).state.restore(saved)
