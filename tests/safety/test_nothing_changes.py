"""A watcher on all places that a run could change: nothing changes but what is ours."""

import os
import select
import signal
import stat
import threading

import pytest

from spotchaos.launch.isolation.scratch import PREFIX
from tests.safety.conftest import PROGRAM, wait_for_events

pytestmark = pytest.mark.timeout(600)  # whole runs, on a machine that may be busy

FORGETS = PROGRAM.replace('optimizer.load_state_dict(state["optimizer"])', "pass")
TRAIN = ("--", "python", "train.py", "{out}")
KILL = ("--kill-at", "step-end:3", "--no-cache")
RUNS = {
    "held": (("run", *KILL, *TRAIN), 0),
}
SLOW_RUNS = {
    "violated": (("run", *KILL, "--", "python", "forgets.py", "{out}"), 1),
    "machine lost": (("run", *KILL, "--lose", "machine", *TRAIN), 0),
    "explore": (("explore", "--saves", "1", *TRAIN), None),
    "ranks": (("run", *KILL, "--ranks", "2"), None),
    "notice": (("run", "--notice", "aws", "--no-cache"), None),
    "fault": (("run", *KILL, "--fault", "clock-skew", *TRAIN), None),
    "doctor": (("doctor",), 0),
    "store": (("run", *KILL, "--durable", "s3://bucket/prefix", *TRAIN), None),
}


class Watcher(threading.Thread):
    """Looks at modes and owners of folders all the time, and keeps each that it saw."""

    def __init__(self, folders):
        super().__init__()
        self._folders = folders
        self._over = threading.Event()
        self.seen = {folder: set() for folder in folders}

    def run(self):
        while not self._over.wait(0.01):
            for folder, seen in self.seen.items():
                status = folder.stat()
                seen.add((stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid))

    def stop(self):
        self._over.set()
        self.join()


def everything(folder):
    """Return mode, owner, times and content of all below a folder, and its own mode."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_relative_to(folder / "cache"):
            continue  # ours
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else None
        found[str(path.relative_to(folder))] = (
            *(status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns),
            *(status.st_size if content is not None else 0, content),
        )
    return found


@pytest.fixture
def places(machine):
    """Return all places, with things of the user's in them that look like ours."""
    (machine.work / "forgets.py").write_text(FORGETS)
    places = [machine.tmp, machine.shm, machine.home, machine.work]
    for place in places:
        for name in ("mine", f"{PREFIX}mine", f"{PREFIX}01234567"):
            (place / name).mkdir()
            (place / name / "lock").write_text("mine")
        (place / "mine").chmod(0o3775)
        (place / "mine" / "read-only").write_text("mine")
        (place / "mine" / "read-only").chmod(0o444)
        (place / "link").symlink_to(place / "mine")
    return places


def watched(machine, places, act):
    """Do something under the watcher; return what changed."""
    before = [everything(place) for place in places]
    watcher = Watcher(places)
    watcher.start()
    try:
        act()
    finally:
        left = machine.wait_until_processes_are_gone(10.0)
        watcher.stop()
    assert left == []
    changed = [
        (str(place), sorted(now.items() ^ then.items()))
        for place, then in zip(places, before, strict=True)
        if (now := everything(place)) != then
    ]
    modes = {str(place): seen for place, seen in watcher.seen.items() if len(seen) > 1}
    return changed, modes


def carry_out(machine, places, words, status):
    def act():
        got, said = machine.run(*words)
        assert got == status or (status is None and got in (0, 1, 3)), said
        assert "Traceback" not in said

    assert watched(machine, places, act) == ([], {})


@pytest.mark.parametrize("name", RUNS)
def test_runs_change_nothing(machine, places, name):
    carry_out(machine, places, *RUNS[name])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SLOW_RUNS)
def test_other_runs_change_nothing(machine, places, name):
    carry_out(machine, places, *SLOW_RUNS[name])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_runs_that_are_ended_change_nothing(machine, places, number):
    def act():
        stream = machine.root / "events.jsonl"
        words = ("run", "--jsonl", str(stream), *KILL, *TRAIN)
        run = machine.start(*words)
        wait_for_events(run, stream, 3)
        select.select([], [], [], 0.3)
        os.kill(run.pid, number)
        run.communicate()
        assert run.returncode == (-9 if number == signal.SIGKILL else 3)

    assert watched(machine, places, act) == ([], {})
