"""Scratch is removed once its owner is dead, by whoever looks; never before."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spotchaos.launch.isolation import places
from spotchaos.launch.isolation.leaving import Leaving
from spotchaos.launch.isolation.scratch import Scratch, lock_of, sweep


@pytest.fixture(autouse=True)
def own_list(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "spotchaos" / "places"


@pytest.fixture
def tmp(tmp_path):
    folder = tmp_path / "tmp"
    folder.mkdir()
    return folder


def orphan(tmp, name="spotchaos-01234567"):
    folder = tmp / name
    (folder / "inner").mkdir(parents=True)
    lock_of(folder).touch()
    return folder


OWNER = """
import sys
from pathlib import Path
from spotchaos.launch.isolation.scratch import Scratch
from spotchaos.launch.isolation.leaving import LEAVING
if sys.argv[2] == "alone":
    LEAVING._tried = True  # as where no process can be started
scratch = Scratch(Path(sys.argv[1]))
print(scratch.path, flush=True)
sys.stdin.read()
"""


def owner(tmp, how="cleaner", prefix=()):
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [*prefix, sys.executable, "-c", OWNER, str(tmp), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    return process, Path(process.stdout.readline().strip())


@pytest.mark.parametrize(
    "prefix", [(), ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")]
)
def test_what_a_living_owner_has_is_not_swept(tmp, prefix):
    process, folder = owner(tmp, "alone", prefix)
    with process:
        sweep([tmp])
        assert folder.exists()
        process.kill()
    with lock_of(folder).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # the owner in its namespace is dead as well
    sweep([tmp])
    assert list(tmp.iterdir()) == []


def test_what_is_locked_and_not_made_yet_is_not_swept(tmp):
    lock = lock_of(tmp / "spotchaos-01234567")
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        sweep([tmp])
        assert lock.exists()
    sweep([tmp])
    assert not lock.exists()


def test_a_lock_that_a_sweep_took_before_it_was_locked_is_made_anew(tmp, monkeypatch):
    real, swept = fcntl.flock, []

    def flock(file, how):
        if how == fcntl.LOCK_EX and not swept:
            swept.append(True)
            sweep([tmp])
        return real(file, how)

    monkeypatch.setattr("spotchaos.launch.isolation.scratch.fcntl.flock", flock)
    with Scratch(tmp) as scratch:
        assert lock_of(scratch.path).exists()
        sweep([tmp])
        assert scratch.path.exists()
    assert list(tmp.iterdir()) == []


def test_only_what_is_plainly_ours_is_swept(tmp):
    orphan(tmp)
    mine = [tmp / "spotchaos-demo", tmp / "spotchaos-76543210", tmp / "other"]
    for folder in mine:
        folder.mkdir()
    lock_of(tmp / "spotchaos-demo").touch()
    (tmp / "target").mkdir()
    (tmp / "target" / "file").touch()
    (tmp / "spotchaos-aaaaaaaa").symlink_to(tmp / "target")
    lock_of(tmp / "spotchaos-aaaaaaaa").touch()
    os.mkfifo(lock_of(tmp / "spotchaos-76543210"))
    sweep([tmp])
    assert (tmp / "target" / "file").exists()
    assert [folder.exists() for folder in mine] == [True] * 3
    assert not (tmp / "spotchaos-01234567").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_what_is_somebody_elses_is_not_swept(tmp):
    folder = orphan(tmp)
    os.chown(lock_of(folder), 65534, 65534)
    other = orphan(tmp, "spotchaos-89abcdef")
    os.chown(other, 65534, 65534)
    sweep([tmp])
    assert folder.exists()
    assert other.exists()


def test_every_place_that_was_used_is_looked_at(tmp, tmp_path):
    process, folder = owner(tmp, "alone")
    with process:
        process.kill()
    assert folder.exists()
    sweep([])
    assert list(tmp.iterdir()) == []


@pytest.mark.parametrize(
    "content", [None, b"\x00\xff\n/\n\n/no/such\nrelative\n", b"/" * 10**6]
)
def test_a_list_of_places_that_is_missing_or_damaged_costs_nothing(
    tmp, own_list, content
):
    if content is not None:
        own_list.parent.mkdir(parents=True)
        own_list.write_bytes(content)
    folder = orphan(tmp)
    with Scratch(tmp):
        sweep([tmp])
    assert not folder.exists()
    assert tmp in places.known() or len(content or b"") > 10**5


def test_a_list_that_cannot_be_written_costs_nothing(tmp, own_list, monkeypatch):
    own_list.mkdir(parents=True)  # a folder has its name
    with Scratch(tmp) as scratch:
        assert scratch.path.exists()
    assert places.known() == []
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/proc/none")
    with Scratch(tmp):
        assert places.known() == []


def test_the_list_is_short_and_keeps_the_newest(tmp, own_list):
    for number in range(3 * places.MOST_PLACES):
        places.add(tmp / str(number))
        places.add(tmp / str(number))
    assert len(places.known()) <= places.MOST_PLACES
    assert places.known()[-1] == tmp / str(number)
    assert own_list.read_bytes().count(b"/") < 4 * places.MOST_PLACES * 20


def test_the_cleaner_puts_away_what_was_not_forgotten(tmp):
    leaving = Leaving()
    for name in ("kept", "forgotten"):
        leaving.keep(tmp / name)
        (tmp / name / "inner").mkdir(parents=True)
    leaving.forget(tmp / "forgotten")
    sleeping = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    leaving.kill(sleeping.pid)
    leaving.close()
    leaving.close()
    assert [path.name for path in tmp.iterdir()] == ["forgotten"]
    assert sleeping.wait() == -signal.SIGKILL


def test_the_cleaner_waits_for_who_ends_by_itself(tmp):
    leaving = Leaving()
    leaving.keep(tmp / "kept")
    writing = subprocess.Popen(
        ["sh", "-c", 'read line; mkdir -p "$0"; touch "$0/file"', str(tmp / "kept")],
        stdin=subprocess.PIPE,
    )
    leaving.wait_for(writing.pid)
    leaving._connection.close()  # as by a SIGKILL
    writing.communicate(b"\n")
    leaving._process.wait()
    assert list(tmp.iterdir()) == []


def test_a_child_that_was_forked_leaves_the_cleaner_to_its_parent(tmp):
    with Scratch(tmp) as scratch:
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert scratch.path.exists()
        sweep([tmp])
        assert scratch.path.exists()
