"""FSDP2 on two ranks: saved, lost, loaded, with the bits of a quiet run."""

import pickle

import pytest
import torch

from spotchaos.errors import CheckpointError
from spotchaos.training.checkpoint import CheckpointStore
from spotchaos.training.peers import join
from spotchaos.training.rng import capture_rng, restore_rng, seed_everything
from spotchaos.training.sharded import ShardedStore, _Reader

fsdp = pytest.importorskip("torch.distributed.fsdp")
if not hasattr(fsdp, "fully_shard"):
    pytest.skip("fully_shard came with torch 2.6", allow_module_level=True)

pytestmark = pytest.mark.ddp


def train(out, steps, *, fail_at=None):
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
    if peers.leads:
        store.prepare()
    sharded = ShardedStore(store, peers)
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
