"""What is in the store outlives the machine, and nothing else is believed to."""

import logging
import os
import random
import shutil
import threading

import boto3
import pytest
import torch
from moto.server import ThreadedMotoServer

from spotchaos.clock import ManualClock
from spotchaos.errors import CheckpointError, StoreError
from spotchaos.stores.local import LocalStore
from spotchaos.stores.retry import Retry
from spotchaos.stores.s3 import S3Store
from spotchaos.training.checkpoint import CheckpointStore
from spotchaos.training.keeper import Keeper
from spotchaos.training.peers import join
from spotchaos.training.plain import first_difference
from spotchaos.training.sharded import ShardedStore
from spotchaos.training.sync import Mirror

LIMIT_S = 20


def state_of(step):
    return {"step": step, "w": torch.full((1000,), float(step))}


class Machine:
    """A local disk that can be lost, and a store that cannot."""

    def __init__(self, folder, store, *, run_id="run", keep=2):
        self.folder = folder
        self.local = CheckpointStore(folder, run_id=run_id, keep=keep)
        self.mirror = Mirror(self.local, store)

    def save(self, *steps):
        for step in steps:
            self.mirror.send(self.local.save(state_of(step), step=step))
            self.mirror.wait(LIMIT_S)

    def newest(self):
        self.mirror.prepare()
        self.mirror.fetch_newer()
        newest = self.local.newest()
        return None if newest is None else newest.step


@pytest.fixture
def shared(tmp_path):
    return LocalStore(str(tmp_path / "store"))


def test_an_empty_machine_goes_on_from_the_store(tmp_path, shared):
    Machine(tmp_path / "one", shared).save(1, 2, 3)
    two = Machine(tmp_path / "two", shared)
    assert two.newest() == 3
    assert torch.equal(two.local.load_latest()["w"], state_of(3)["w"])
    two.save(4)
    assert Machine(tmp_path / "three", shared).newest() == 4


def test_the_store_keeps_as_many_as_the_disk(tmp_path, shared):
    Machine(tmp_path / "one", shared).save(*range(1, 8))
    assert sorted({name.partition("/")[0] for name in shared.names()}) == [
        "step-00000006",
        "step-00000007",
    ]


def test_what_is_newer_here_is_not_replaced_from_there(tmp_path, shared):
    one = Machine(tmp_path / "one", shared)
    one.save(1, 2)
    one.local.save(state_of(3), step=3)  # not sent: the machine was lost in between
    assert Machine(tmp_path / "one", shared).newest() == 3


def test_a_stale_disk_gives_way_to_the_newer_store(tmp_path, shared):
    Machine(tmp_path / "one", shared).save(1)
    shutil.copytree(tmp_path / "one", tmp_path / "stale")
    Machine(tmp_path / "one", shared).save(2, 3)
    assert Machine(tmp_path / "stale", shared).newest() == 3


def test_a_manifest_that_never_came_leaves_no_checkpoint(tmp_path, shared):
    Machine(tmp_path / "one", shared).save(1, 2)
    shared.delete("step-00000002/manifest.json")
    two = Machine(tmp_path / "two", shared)
    assert two.newest() == 1
    two.save(2)  # over what the lost machine left behind
    assert Machine(tmp_path / "three", shared).newest() == 2


@pytest.mark.parametrize("hurt", ["short", "flipped", "missing", "manifest"])
def test_a_damaged_copy_falls_back_to_the_one_before(tmp_path, shared, caplog, hurt):
    Machine(tmp_path / "one", shared).save(1, 2)
    path = shared.root / "step-00000002" / "state.pt"
    if hurt == "short":
        os.truncate(path, 100)
    elif hurt == "missing":
        path.unlink()
    elif hurt == "manifest":
        (path.parent / "manifest.json").write_bytes(b"{")
    else:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    two = Machine(tmp_path / "two", shared)
    with caplog.at_level(logging.WARNING):
        assert two.newest() == 1
    assert "passing over" in caplog.text
    two.save(2, 3)
    assert Machine(tmp_path / "three", shared).newest() == 3


def test_a_damaged_newest_is_replaced_under_another_name(tmp_path, shared):
    Machine(tmp_path / "one", shared).save(1, 2)
    (shared.root / "step-00000002" / "state.pt").write_bytes(b"zeros")
    two = Machine(tmp_path / "two", shared)
    assert two.newest() == 1
    two.save(2)
    three = Machine(tmp_path / "three", shared)
    assert three.newest() == 2
    assert three.local.newest().folder.name == "step-00000002.1"


def test_with_nothing_whole_anywhere_it_refuses_rather_than_starts_over(
    tmp_path, shared
):
    Machine(tmp_path / "one", shared).save(1)
    (shared.root / "step-00000001" / "state.pt").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* is whole"):
        Machine(tmp_path / "two", shared).newest()


def test_the_store_of_another_run_is_refused_and_untouched(tmp_path, shared):
    Machine(tmp_path / "one", shared).save(1)
    before = shared.names()
    with pytest.raises(CheckpointError, match="belongs to run 'run', this is run 'b'"):
        Machine(tmp_path / "two", shared, run_id="b").newest()
    assert shared.names() == before
    assert not list((tmp_path / "two").glob("step-*"))


def test_a_copy_carries_a_sha256(tmp_path, shared):
    from spotchaos.stores.base import sha256_of
    from spotchaos.training.manifest import Manifest

    Machine(tmp_path / "one", shared).save(1)
    data = (shared.root / "step-00000001" / "manifest.json").read_bytes()
    entry = Manifest.parse(data, of="it").files["state.pt"]
    assert entry.sha256 == sha256_of(tmp_path / "one" / "step-00000001" / "state.pt")


class Slow(LocalStore):
    """Holds every write until it is let through."""

    def __init__(self, url):
        super().__init__(url)
        self.began = threading.Event()
        self.go_on = threading.Event()

    def write(self, name, source, **more):
        self.began.set()
        assert self.go_on.wait(LIMIT_S)
        super().write(name, source, **more)


def test_a_checkpoint_stays_on_the_disk_while_it_is_sent(tmp_path):
    store = Slow(str(tmp_path / "store"))
    one = Machine(tmp_path / "one", store, keep=1)
    one.mirror.send(one.local.save(state_of(1), step=1))
    assert store.began.wait(LIMIT_S)
    for step in (2, 3, 4):  # only the last of them is worth sending
        one.mirror.send(one.local.save(state_of(step), step=step))
    assert one.local.committed()[-1].name == "step-00000001"
    store.go_on.set()
    one.mirror.wait(LIMIT_S)
    assert len(one.mirror.lags_s) == 2
    assert Machine(tmp_path / "two", store).newest() == 4
    one.save(5)
    assert [folder.name for folder in one.local.committed()] == ["step-00000005"]


def test_a_copy_that_misses_the_deadline_is_said_to_have_missed_it(tmp_path):
    store = Slow(str(tmp_path / "store"))
    one = Machine(tmp_path / "one", store)
    one.mirror.send(one.local.save(state_of(1), step=1))
    with pytest.raises(StoreError, match="is not done after 0 s"):
        one.mirror.wait(0.01)
    store.go_on.set()
    one.mirror.wait(LIMIT_S)


class Refusing(LocalStore):
    def write(self, name, source, **more):
        raise StoreError(f"{name}: AccessDenied", hint="allow it")


def test_an_upload_that_fails_is_a_failure_and_not_a_log_line(tmp_path):
    one = Machine(tmp_path / "one", Refusing(str(tmp_path / "store")))
    one.mirror.send(one.local.save(state_of(1), step=1))
    with pytest.raises(StoreError, match=r"the copy to .* failed: .*AccessDenied"):
        one.mirror.wait(LIMIT_S)


@pytest.mark.ddp
def test_a_store_that_refuses_ends_the_run_on_every_rank(forked, tmp_path):
    class Once(Refusing):
        def prepare(self):
            pass

    def train():
        local = CheckpointStore(tmp_path / "local", run_id="toy")
        mirror = Mirror(local, Once(str(tmp_path / "store")))
        keeper = Keeper(local, mirror=mirror, in_background=False)
        try:
            forked.train(None, keeper=keeper, steps=400, save_every=2)
        except CheckpointError as error:
            return str(error)
        return "finished"

    ranks = forked.ranks(2, train)
    assert forked.wait(ranks) == [0, 0]
    assert all("AccessDenied" in rank.result for rank in ranks)


@pytest.fixture(scope="module")
def bucket():
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    client = boto3.client(
        "s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1",
        aws_access_key_id="id", aws_secret_access_key="key",
    )  # fmt: skip
    client.create_bucket(Bucket="runs")
    yield client
    client.close()
    server.stop()


@pytest.fixture(params=["s3", "file"])
def url(request, tmp_path, monkeypatch):
    """A place for checkpoints that outlives machines, named by its URL alone."""
    monkeypatch.chdir(tmp_path)
    if request.param == "file":
        return f"file://{tmp_path}/kept"
    client = request.getfixturevalue("bucket")
    monkeypatch.setenv("AWS_ENDPOINT_URL", client.meta.endpoint_url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "key")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    return f"s3://runs/{tmp_path.name}"


def test_a_store_named_by_its_url_outlives_the_machine(url, tmp_path):
    store = CheckpointStore(url, run_id="toy", keep=2)
    store.prepare()
    assert store.load_latest() is None
    for step in (5, 10, 15):
        store.save({"x": torch.full((3,), step)}, step=step)
    here = store.root
    del store
    assert not here.exists()
    again = CheckpointStore(url, run_id="toy", cache=tmp_path / "cache")
    assert again.load_latest()["x"].tolist() == [15, 15, 15]
    assert again.newest().folder.parent == tmp_path / "cache"
    assert sorted(again._remote.names()) == ["step-00000010", "step-00000015"]
    with pytest.raises(CheckpointError, match="belongs to run 'toy'"):
        CheckpointStore(url, run_id="other").newest()
    assert not (tmp_path / url.partition(":")[0]).exists()


def test_a_step_that_the_store_has_is_not_written_over(url):
    CheckpointStore(url).save({"x": 1}, step=5)
    CheckpointStore(url).save({"x": 2}, step=5)
    fresh = CheckpointStore(url)
    assert fresh.load_latest() == {"x": 2}
    assert sorted(fresh._remote.names()) == ["step-00000005", "step-00000005.1"]


def test_a_machine_that_is_lost_within_an_upload_leaves_the_one_before(
    url, monkeypatch
):
    store = CheckpointStore(url)
    store.save({"x": 1}, step=5)
    kind = type(store._remote._store)

    def refuse(self, name, content):
        raise StoreError("the machine is gone")

    with monkeypatch.context() as patched:
        patched.setattr(kind, "commit", refuse)
        with pytest.raises(StoreError, match="failed: the machine is gone"):
            store.save({"x": 2}, step=10)
    assert CheckpointStore(str(store.url)).load_latest() == {"x": 1}


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("s4://bucket/run", "unknown scheme 's4'"),
        ("s3://", "'s3://' names no bucket"),
    ],
)
def test_a_url_that_names_no_store_is_refused(url, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError, match=says):
        CheckpointStore(url)
    assert list(tmp_path.iterdir()) == []


def test_shards_are_not_written_to_a_url(tmp_path):
    with pytest.raises(CheckpointError, match="every rank writes its shard"):
        ShardedStore(CheckpointStore(f"file://{tmp_path}/kept"), join())


@pytest.mark.ddp
def test_three_ranks_lose_their_machine_three_times_with_s3_alone(
    forked, toy, final, tmp_path, bucket
):
    options = {"steps": 16, "save_every": 3, "accumulate": 2}

    def train(machine, kill_at):
        local = CheckpointStore(tmp_path / machine, run_id="toy")
        store = S3Store(
            "s3://runs/toy", client=bucket,
            retry=Retry(clock=ManualClock(), rng=random.Random(0)),
        )  # fmt: skip
        keeper = Keeper(local, mirror=Mirror(local, store), in_background=False)

        def sent(step, loss):
            if step == kill_at:
                keeper.wait()  # what was saved is in the bucket before the machine goes

        return forked.train(
            None, keeper=keeper, kill_at=kill_at, on_step=[sent], **options
        )

    for number, kill_at in enumerate([5, 8, 13]):
        ranks = forked.ranks(3, train, f"machine-{number}", kill_at)
        assert set(forked.wait(ranks)) <= {-9, 1}
        shutil.rmtree(tmp_path / f"machine-{number}")
    ranks = forked.ranks(3, train, "last", None)
    assert forked.wait(ranks) == [0, 0, 0]
    toy(tmp_path / "quiet", ranks=3, **options)
    assert (
        first_difference(final(tmp_path / "quiet"), final(tmp_path / "last"), "s")
        is None
    )
