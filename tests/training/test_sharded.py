"""FSDP2 on two ranks: saved, lost, loaded, with the bits of a quiet run."""

import pickle
import shutil

import pytest
import torch

from spotchaos.errors import CheckpointError, StoreError
from spotchaos.stores.local import LocalStore
from spotchaos.training.checkpoint import CheckpointStore
from spotchaos.training.manifest import NAME
from spotchaos.training.peers import join
from spotchaos.training.rng import capture_rng, restore_rng, seed_everything
from spotchaos.training.sharded import ShardedStore, _Reader
from spotchaos.training.sync import Mirror

fsdp = pytest.importorskip("torch.distributed.fsdp")
if not hasattr(fsdp, "fully_shard"):
    pytest.skip("fully_shard came with torch 2.6", allow_module_level=True)

pytestmark = pytest.mark.ddp


def train(out, steps, *, fail_at=None, copies=None):
    """Train with FSDP2 to `steps`, saving after each; return the weights as lists."""
    peers = join(timeout_s=20)
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


class Hostile:
    def __reduce__(self):
        import os

        return os.system, ("touch /tmp/hostile-metadata-ran",)


def test_a_hostile_metadata_file_is_refused_and_does_not_run(tmp_path):
    import os

    (tmp_path / ".metadata").write_bytes(pickle.dumps(Hostile()))
    with pytest.raises(CheckpointError, match=r"asks for posix\.system"):
        _Reader(tmp_path).read_metadata()
    assert not os.path.exists("/tmp/hostile-metadata-ran")
