"""The newest whole checkpoint is the one that is found, and never the one removed."""

import errno
import json
import logging
import os
import shutil
from pathlib import Path

import pytest
import torch

from spotchaos.errors import CheckpointError
from spotchaos.training.checkpoint import STATE, CheckpointStore

MANIFEST = "manifest.json"


def state_of(step):
    return {"step": step, "w": torch.full((1000,), float(step))}


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "out", run_id="run", keep=3)


def save(store, *steps, **labels):
    return [store.save(state_of(step), step=step, **labels) for step in steps]


def steps(store):
    return sorted(store.place(folder)[0] for folder in store.committed())


def damage(folder, name=STATE):
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(data)


def test_what_was_saved_is_loaded(store):
    save(store, 4)
    state = store.load_latest()
    assert state["step"] == 4
    assert torch.equal(state["w"], state_of(4)["w"])


def test_an_empty_or_missing_folder_has_no_checkpoint(store):
    assert store.load_latest() is None
    store.prepare()
    assert store.load_latest() is None


def test_a_power_loss_takes_no_folder_that_checkpoints_lie_in(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("spotchaos.training.checkpoint.sync_folder", synced.append)
    CheckpointStore(tmp_path / "runs" / "out").prepare()
    assert synced == [tmp_path / "runs", tmp_path]


def test_newest_is_by_number_and_not_by_name_order(store):
    save(store, 9, 10, 99, 100)
    names = [store.root / "step-9", store.root / "step-00000100"]
    (store.root / "step-00000099").rename(names[0])  # another padding
    assert store.newest().step == 100
    shutil.rmtree(store.root / "step-00000100")
    with_odd_name = store.newest()
    # Its manifest says 99, its name 9: it is not trusted.
    assert with_odd_name.step == 10


def test_newest_is_not_by_file_time(store):
    save(store, 1, 2)
    for folder in (store.root / "step-00000001").iterdir():
        os.utime(folder, (2**31, 2**31))
    os.utime(store.root / "step-00000001", (2**31, 2**31))
    assert store.newest().step == 2


def test_a_copied_folder_is_the_same_store(store, tmp_path):
    save(store, 1, 2)
    shutil.copytree(store.root, tmp_path / "copy", copy_function=shutil.copyfile)
    assert CheckpointStore(tmp_path / "copy", run_id="run").newest().step == 2


@pytest.mark.parametrize(
    ("hurt", "what"),
    [
        pytest.param(damage, "its digest differs", id="flipped-bit"),
        pytest.param(
            lambda f: os.truncate(f / STATE, 99), "has 99 bytes", id="truncated"
        ),
        pytest.param(
            lambda f: (f / STATE).write_bytes(bytes((f / STATE).stat().st_size)),
            "its digest differs",
            id="zeroed",
        ),
        pytest.param(lambda f: (f / STATE).unlink(), "is missing", id="file-missing"),
        pytest.param(
            lambda f: damage(f, MANIFEST),
            "manifest of step-00000002",
            id="manifest-bit",
        ),
        pytest.param(
            lambda f: os.truncate(f / MANIFEST, 20),
            "torn or foreign",
            id="manifest-torn",
        ),
        pytest.param(
            lambda f: (f / MANIFEST).write_bytes(b""),
            "torn or foreign",
            id="manifest-empty",
        ),
        pytest.param(
            lambda f: (f / MANIFEST).write_text("[1, 2]"),
            "torn or foreign",
            id="foreign",
        ),
    ],
)
def test_a_damaged_newest_falls_back_to_the_one_before(store, caplog, hurt, what):
    save(store, 1, 2)
    hurt(store.root / "step-00000002")
    with caplog.at_level(logging.WARNING):
        assert store.load_latest()["step"] == 1
    assert "passing over step-00000002" in caplog.text
    assert what in caplog.text


def test_with_nothing_whole_left_it_refuses_rather_than_starts_over(store):
    save(store, 1, 2)
    damage(store.root / "step-00000001")
    damage(store.root / "step-00000002")
    with pytest.raises(CheckpointError, match="none of the 2 checkpoints") as error:
        store.load_latest()
    assert "start from step 0" in error.value.hint


def test_a_folder_without_a_manifest_was_never_a_checkpoint(store):
    save(store, 1, 2)
    (store.root / "step-00000002" / MANIFEST).unlink()
    assert store.newest().step == 1
    store.prepare()
    assert not (store.root / "step-00000002").exists()


def test_a_folder_of_somebody_else_is_not_swept(store):
    folder = store.root / "step-00000007"
    folder.mkdir(parents=True)
    (folder / "optimizer.bin").write_bytes(b"another tool's")
    store.prepare()
    assert (folder / "optimizer.bin").exists()
    save(store, 7)
    assert (folder / "optimizer.bin").read_bytes() == b"another tool's"
    assert store.newest().step == 7


def test_a_checkpoint_of_another_run_is_refused(store):
    save(store, 1)
    other = CheckpointStore(store.root, run_id="other")
    with pytest.raises(
        CheckpointError, match="belongs to run 'run', this is run 'other'"
    ):
        other.newest()
    assert CheckpointStore(store.root).newest().step == 1


def test_a_manifest_of_a_newer_release_is_refused(store):
    save(store, 1, 2)
    path = store.root / "step-00000002" / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    with pytest.raises(CheckpointError, match="has format 99, this release reads"):
        store.newest()
    assert steps(store) == [1, 2]


class Hostile:
    def __reduce__(self):
        return os.system, ("touch /tmp/hostile-pickle-ran",)


def test_a_hostile_pickle_is_refused_and_does_not_run(store, monkeypatch):
    honest = torch.save
    monkeypatch.setattr(
        torch, "save", lambda state, file: honest({"w": Hostile()}, file)
    )
    save(store, 1)
    with pytest.raises(CheckpointError, match="something else than tensors"):
        store.load_latest()
    assert not os.path.exists("/tmp/hostile-pickle-ran")


def test_saving_a_step_again_touches_no_file_of_the_first(store):
    first, again = save(store, 5, 5)
    assert first.folder != again.folder
    assert store.newest().folder == again.folder
    damage(again.folder)
    assert store.newest().folder == first.folder


def test_retention_keeps_the_newest_whole_ones(store):
    save(store, *range(1, 13))
    assert steps(store) == [10, 11, 12]


def test_retention_never_removes_the_best(store):
    for step, score in [(1, 0.9), (2, 0.1), (3, 0.5), (4, 0.6), (5, 0.7), (6, 0.8)]:
        save(store, step, score=score)
    assert steps(store) == [2, 4, 5, 6]


def test_keep_one_still_has_one_at_every_moment(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path, keep=1)
    save(store, 1)
    seen = []
    unlink, rmtree = Path.unlink, shutil.rmtree

    def note(*args, **more):
        seen.append(CheckpointStore(tmp_path).newest())

    monkeypatch.setattr(
        Path, "unlink", lambda self, **more: (note(), unlink(self, **more))
    )
    monkeypatch.setattr(shutil, "rmtree", lambda *a, **m: (note(), rmtree(*a, **m)))
    save(store, 2)
    assert [checkpoint.step for checkpoint in seen] == [2, 2]


def test_what_was_just_saved_stays_though_a_damaged_one_has_a_higher_step(tmp_path):
    store = CheckpointStore(tmp_path, keep=1)
    save(store, 10)
    save(CheckpointStore(tmp_path, keep=9), 20)
    damage(tmp_path / "step-00000020")
    assert store.newest().step == 10
    save(store, 15)
    assert store.newest().step == 15
    save(store, 25)
    assert steps(store) == [25]


def test_a_removal_cut_short_leaves_no_half_checkpoint(store, monkeypatch):
    save(store, 1, 2, 3)
    monkeypatch.setattr(shutil, "rmtree", lambda *a, **m: None)  # killed right here
    save(store, 4)
    monkeypatch.undo()
    assert steps(store) == [2, 3, 4]
    store.prepare()
    assert not (store.root / "step-00000001").exists()


def test_a_full_disk_leaves_the_old_checkpoint_and_no_litter(store, monkeypatch):
    save(store, 1)
    before = {p: p.read_bytes() for p in store.root.rglob("*") if p.is_file()}

    def full(state, file):
        file.write(b"x" * 100)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space left"):
        save(store, 2)
    assert before == {p: p.read_bytes() for p in store.root.rglob("*") if p.is_file()}
    monkeypatch.undo()
    save(store, 2)
    assert store.newest().step == 2


def test_an_object_that_does_not_pickle_leaves_the_old_checkpoint(store):
    save(store, 1)
    with pytest.raises(CheckpointError, match=r"state\.bad holds a function"):
        store.save({"bad": lambda: None}, step=2)
    assert store.newest().step == 1


def test_a_mount_that_does_not_rename_gets_its_manifest_last(
    store, monkeypatch, caplog
):
    def rename(self, target):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(Path, "replace", rename)
    with caplog.at_level(logging.WARNING):
        save(store, 1, 2)
    assert "the manifest is written last instead" in caplog.text
    assert store.newest().step == 2
    assert not list(store.root.rglob("*.partial"))


def test_the_digest_is_of_what_lies_on_the_disk(store):
    (checkpoint,) = save(store, 3)
    checkpoint.manifest.check(checkpoint.folder)
    entry = checkpoint.manifest.files[STATE]
    assert entry.size_bytes == (checkpoint.folder / STATE).stat().st_size


def test_a_pinned_checkpoint_stays_until_it_is_let_go(store):
    (first,) = save(store, 1)
    store.pin(first.folder)
    save(store, 2, 3, 4, 5)
    assert steps(store) == [1, 3, 4, 5]
    store.unpin(first.folder)
    save(store, 6)
    assert steps(store) == [4, 5, 6]
