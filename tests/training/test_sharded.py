"""FSDP2 on two ranks: saved, lost, loaded, with the bits of a quiet run."""

import collections
import os
import pickle
import shutil
import signal

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING
from torch.utils.data import TensorDataset

from spotchaos.errors import CheckpointError, SpotchaosError, StoreError
from spotchaos.stores.local import LocalStore
from spotchaos.training.checkpoint import CheckpointStore
from spotchaos.training.manifest import NAME
from spotchaos.training.peers import join
from spotchaos.training.rng import capture_rng, restore_rng, seed_everything
from spotchaos.training.sharded import ShardedStore, _Reader, _Unpickler
from spotchaos.training.sync import Mirror
from spotchaos.training.trainer import Schedule, Trainer
from spotchaos.training.watch import InterruptionWatch

fsdp = pytest.importorskip("torch.distributed.fsdp")
if not hasattr(fsdp, "fully_shard"):
    pytest.skip("fully_shard came with torch 2.6", allow_module_level=True)

pytestmark = pytest.mark.ddp


def train(out, steps, *, fail_at=None, copies=None):
    """Train with FSDP2 to `steps`, saving after each; return the weights as lists."""
    peers = join(timeout_s=20, device=torch.device("cpu"))
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 4)
    )
    fsdp.fully_shard(model[0])
    fsdp.fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    store = CheckpointStore(out, run_id="fsdp")
    mirror = None if copies is None else Mirror(store, copies)
    sharded = ShardedStore(store, peers, mirror=mirror)
    sharded.prepare()
    seed_everything(peers.rank)
    found = sharded.load(model, optimizer)
    step = 0
    if found is not None:
        step = found["step"]
        restore_rng(found["mine"])
    while step < steps:
        x = torch.randn(5, 6)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        step += 1
        if step == fail_at and peers.rank == 1:
            torch.distributed.checkpoint.FileSystemWriter.write_data = broken
        sharded.save(model, optimizer, step=step, mine=capture_rng())
    sharded.wait(20.0)
    weights = [p.full_tensor().detach().tolist() for p in model.parameters()]
    del model, optimizer
    peers.leave()
    return weights


def broken(self, *args, **more):
    raise OSError(28, "No space left on device")


def on_two_ranks(forked, *args, **more):
    ranks = forked.ranks(2, lambda: train(*args, **more))
    return forked.wait(ranks), [rank.result for rank in ranks]


def test_a_resumed_run_has_the_bits_of_a_quiet_one(forked, tmp_path):
    codes, quiet = on_two_ranks(forked, tmp_path / "quiet", 6)
    assert codes == [0, 0]
    for steps in (2, 3, 6):
        codes, cut = on_two_ranks(forked, tmp_path / "cut", steps)
        assert codes == [0, 0]
    assert cut == quiet


def test_every_file_is_in_the_manifest_and_damage_falls_back(forked, tmp_path):
    on_two_ranks(forked, tmp_path, 2)
    store = CheckpointStore(tmp_path)
    newest = store.newest()
    assert newest.manifest.files.keys() == {
        ".metadata", "state.pt", "__0_0.distcp", "__1_0.distcp",
    }  # fmt: skip
    path = newest.folder / "__1_0.distcp"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert store.newest().step == 1


def test_a_failure_on_one_rank_reaches_both_and_spares_the_last_checkpoint(
    forked, tmp_path
):
    def attempt():
        try:
            return train(tmp_path, 4, fail_at=3)
        except CheckpointError as error:
            return str(error)

    ranks = forked.ranks(2, attempt)
    assert forked.wait(ranks) == [0, 0]
    for rank in ranks:
        assert "step 3 could not be saved" in rank.result
        assert "No space left" in rank.result
    assert CheckpointStore(tmp_path).newest().step == 2
    assert not (tmp_path / "step-00000003").exists()


def test_machines_are_lost_and_the_copy_elsewhere_goes_on_with_the_same_bits(
    forked, tmp_path
):
    copies = LocalStore(str(tmp_path / "copies"))
    codes, quiet = on_two_ranks(forked, tmp_path / "quiet", 6)
    assert codes == [0, 0]
    for number, steps in enumerate((2, 3, 6)):
        machine = tmp_path / f"machine-{number}"
        codes, cut = on_two_ranks(forked, machine, steps, copies=copies)
        assert codes == [0, 0]
        shutil.rmtree(machine)
    assert cut == quiet
    kept = {name for name in copies.names() if name.startswith("step-00000006/")}
    assert kept == {
        f"step-00000006/{name}"
        for name in (".metadata", "state.pt", "__0_0.distcp", "__1_0.distcp", NAME)
    }


def test_a_damaged_shard_elsewhere_falls_back_to_the_copy_before(forked, tmp_path):
    copies = LocalStore(str(tmp_path / "copies"))
    on_two_ranks(forked, tmp_path / "one", 3, copies=copies)
    path = copies.root / "step-00000003" / "__1_0.distcp"
    path.write_bytes(path.read_bytes()[:-1])
    store = CheckpointStore(tmp_path / "two", run_id="fsdp")
    assert Mirror(store, copies).fetch_newer().step == 2


class Refusing(LocalStore):
    def write(self, name, source, **more):
        if name.startswith("step-"):
            raise StoreError(f"{name}: AccessDenied", hint="allow it")
        super().write(name, source, **more)


def test_a_copy_that_fails_reaches_both_ranks(forked, tmp_path):
    copies = Refusing(str(tmp_path / "copies"))

    def attempt():
        try:
            return train(tmp_path / "out", 4, copies=copies)
        except CheckpointError as error:
            return str(error)

    ranks = forked.ranks(2, attempt)
    assert forked.wait(ranks) == [0, 0]
    assert all("AccessDenied" in rank.result for rank in ranks)


# --- the trainer on a sharded model


def train_sharded(out, *, kill_at=None, signal_at=None, copies=None, **options):
    """Train a sharded toy on this rank; return whether it is finished, or why not."""

    def interrupt(step, loss):
        for number, at in ((signal.SIGKILL, kill_at), (signal.SIGTERM, signal_at)):
            if step == at:
                os.kill(os.getpid(), number)

    with InterruptionWatch() as watch:
        peers = join(timeout_s=20, device=torch.device("cpu"))
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(6, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 3)
        )
        fsdp.fully_shard(model[0])
        fsdp.fully_shard(model)
        local = CheckpointStore(out, run_id="toy")
        mirror = None if copies is None else Mirror(local, copies)
        try:
            trainer = Trainer(
                model=model, data=TOY_DATA, loss_of=toy_loss, peers=peers, watch=watch,
                keeper=ShardedStore(local, peers, mirror=mirror), on_step=[interrupt],
                held_out=TOY_DATA, schedule=Schedule(batch=2, warm_up=2, **options),
            )  # fmt: skip
            return trainer.run()
        except SpotchaosError as error:
            return str(error)
        finally:
            peers.leave()


TOY_DATA = TensorDataset(torch.randn(60, 6), torch.randint(0, 3, (60,)))


def toy_loss(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])


def on_ranks(forked, out, ranks=2, **options):
    started = forked.ranks(ranks, lambda: train_sharded(out, **options))
    return forked.wait(started), [rank.result for rank in started]


def shards(out):
    """Return what the newest checkpoint holds, as bytes by name of file.

    Torch's own index is left out: each save gets a number of its own there.
    """
    newest = CheckpointStore(out).newest()
    names = newest.manifest.files.keys() - {".metadata"}
    return {name: (newest.folder / name).read_bytes() for name in names}


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_the_trainer_goes_on_with_the_bits_of_a_quiet_run(forked, tmp_path, ranks):
    options = {
        "steps": 8, "save_every": 3, "accumulate": 2, "evaluate_every": 4, "ranks": ranks,
        "precision": "bf16",
    }  # fmt: skip
    copies = LocalStore(str(tmp_path / "copies"))
    assert on_ranks(forked, tmp_path / "quiet", **options)[1] == [True] * ranks
    cut = tmp_path / "cut"
    codes, _ = on_ranks(forked, cut, kill_at=4, copies=copies, **options)
    assert -signal.SIGKILL in codes
    answers = on_ranks(forked, cut, signal_at=7, copies=copies, **options)[1]
    assert answers == [False] * ranks
    assert CheckpointStore(cut).newest().step == 7
    shutil.rmtree(cut)  # the machine is lost, and all that it had was sent
    assert on_ranks(forked, cut, copies=copies, **options)[1] == [True] * ranks
    assert shards(cut) == shards(tmp_path / "quiet")


def test_another_world_is_refused_by_every_rank_unless_inexact_is_allowed(
    forked, tmp_path
):
    on_ranks(forked, tmp_path, steps=2)
    answers = on_ranks(forked, tmp_path, steps=4, ranks=3)[1]
    assert all("written by 2 ranks, this run has 3" in answer for answer in answers)
    assert CheckpointStore(tmp_path).newest().step == 2


@pytest.mark.parametrize(
    ("options", "odd"),
    [({"average": 0.9}, "an average"), ({"precision": "fp16"}, "fp16")],
)
def test_what_goes_not_with_shards_is_refused(forked, tmp_path, options, odd):
    answers = on_ranks(forked, tmp_path, steps=2, **options)[1]
    assert all(f"a sharded model goes not with {odd}" in answer for answer in answers)


def test_a_checkpoint_of_another_model_is_refused_on_every_rank(forked, tmp_path):
    on_ranks(forked, tmp_path, steps=2)

    def other():
        peers = join(timeout_s=20, device=torch.device("cpu"))
        model = torch.nn.Sequential(torch.nn.Linear(6, 24), torch.nn.Linear(24, 3))
        fsdp.fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters())
        try:
            ShardedStore(CheckpointStore(tmp_path), peers).load(model, optimizer)
        except CheckpointError as error:
            return str(error)
        finally:
            peers.leave()

    ranks = forked.ranks(2, other)
    assert forked.wait(ranks) == [0, 0]
    assert all("does not fit this model" in rank.result for rank in ranks)


class Hostile:
    def __reduce__(self):
        return os.system, ("touch /tmp/hostile-metadata-ran",)


def test_a_hostile_metadata_file_is_refused_and_does_not_run(tmp_path):
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Hostile()))
    with pytest.raises(CheckpointError, match=r"asks for posix\.system"):
        _Reader(tmp_path).read_metadata()
    assert not os.path.exists("/tmp/hostile-metadata-ran")


def _load(folder):
    with (folder / ".metadata").open("rb") as file:
        return _Unpickler(file).load()


class Reaching:
    """What is pickled as `getattr(owner, name)`, as older Pythons do with enums."""

    def __init__(self, owner, name):
        self.of = owner, name

    def __reduce__(self):
        return getattr, self.of


def test_of_what_is_reached_by_name_only_the_members_of_an_enum_are_let_in(tmp_path):
    plan = dcp.metadata.StorageMeta()
    plan.modules = [Reaching(_MEM_FORMAT_ENCODING, "TORCH_CHANNELS_LAST")]
    (tmp_path / ".metadata").write_bytes(pickle.dumps(plan))
    assert _load(tmp_path).modules == [_MEM_FORMAT_ENCODING.TORCH_CHANNELS_LAST]
    for owner, name in ((collections.OrderedDict, "fromkeys"), (dict, "__class__")):
        (tmp_path / ".metadata").write_bytes(pickle.dumps(Reaching(owner, name)))
        with pytest.raises(CheckpointError, match="which no checkpoint needs"):
            _load(tmp_path)
