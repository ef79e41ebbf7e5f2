"""A commit leaves the old file or the new one, whatever goes wrong."""

import errno
import os
import stat
from pathlib import Path

import pytest

from spotchaos.training import commit as commits
from spotchaos.training.commit import RenameRefusedError, commit, sweep, write_durably


def refuse(number):
    def rename(self, target):
        raise OSError(number, os.strerror(number))

    return rename


def test_a_commit_replaces_the_file_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "state.pt"
    path.write_bytes(b"old")
    commit(b"new", path)
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["state.pt"]


def test_an_error_while_writing_leaves_the_old_file_and_no_litter(tmp_path):
    path = tmp_path / "state.pt"
    path.write_bytes(b"old")

    def write(file):
        file.write(b"half of")
        raise ValueError("an object that does not pickle")

    with pytest.raises(ValueError, match="does not pickle"):
        commit(write, path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["state.pt"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_an_fsync_that_fails_leaves_the_old_file(tmp_path, monkeypatch, number):
    path = tmp_path / "state.pt"
    path.write_bytes(b"old")

    def fsync(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match=os.strerror(number)):
        commit(b"new", path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["state.pt"]


def test_mode_of_the_replaced_file_is_kept(tmp_path):
    path = tmp_path / "state.pt"
    path.write_bytes(b"old")
    path.chmod(0o640)
    commit(b"new", path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_new_file_gets_the_mode_that_the_umask_says(tmp_path):
    before = os.umask(0o027)
    try:
        commit(b"new", tmp_path / "state.pt")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "state.pt").stat().st_mode) == 0o640


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_owner_of_the_replaced_file_is_kept(tmp_path):
    path = tmp_path / "state.pt"
    path.write_bytes(b"old")
    os.chown(path, 12345, 12345)
    commit(b"new", path)
    assert (path.stat().st_uid, path.stat().st_gid) == (12345, 12345)


def test_where_mode_cannot_be_set_it_says_so_and_goes_on(tmp_path, monkeypatch):
    path = tmp_path / "state.pt"
    path.write_bytes(b"old")

    def fchmod(descriptor, mode):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "fchmod", fchmod)
    with pytest.warns(UserWarning, match="keeps neither mode nor owner"):
        commit(b"new", path)
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize(
    "number", [errno.EXDEV, errno.EPERM, errno.ENOSYS, errno.ENOTSUP]
)
def test_a_refused_rename_is_named_and_the_old_file_stays(
    tmp_path, monkeypatch, number
):
    path = tmp_path / "state.pt"
    path.write_bytes(b"old")
    monkeypatch.setattr(Path, "replace", refuse(number))
    with pytest.raises(RenameRefusedError, match="does not rename files") as error:
        commit(b"new", path)
    assert error.value.hint is not None
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["state.pt"]


def test_a_durable_write_never_overwrites(tmp_path):
    (tmp_path / "state.pt").write_bytes(b"old")
    with pytest.raises(FileExistsError):
        write_durably(b"new", tmp_path / "state.pt")
    assert (tmp_path / "state.pt").read_bytes() == b"old"


def test_two_commits_at_once_use_two_siblings(tmp_path):
    def write(file):
        file.write(b"outer")
        commit(b"inner", tmp_path / "state.pt")

    commit(write, tmp_path / "state.pt")
    assert (tmp_path / "state.pt").read_bytes() == b"outer"
    assert os.listdir(tmp_path) == ["state.pt"]


def test_a_sweep_removes_leftovers_and_only_those(tmp_path):
    (tmp_path / ".state.pt.77-beef.partial").write_bytes(b"torn")
    (tmp_path / "notes.partial").write_bytes(b"the user's")
    (tmp_path / "state.pt").write_bytes(b"whole")
    assert [path.name for path in sweep(tmp_path)] == [".state.pt.77-beef.partial"]
    assert sorted(os.listdir(tmp_path)) == ["notes.partial", "state.pt"]


def test_a_folder_that_cannot_be_synced_is_no_error(tmp_path, monkeypatch):
    fsync = os.fsync

    def refuse_folders(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse_folders)
    commit(b"new", tmp_path / "state.pt")
    assert (tmp_path / "state.pt").read_bytes() == b"new"


def test_importing_it_imports_no_torch():
    import subprocess
    import sys

    code = "import sys, spotchaos.training.commit; print('torch' in sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout == "False\n"
    assert commits.PARTIAL == ".partial"
