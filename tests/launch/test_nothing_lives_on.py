"""An attempt ends with all that it started, and so does the harness; nothing stays."""

import contextlib
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from spotchaos.errors import HarnessError
from spotchaos.launch.attempt import spec, starting
from spotchaos.launch.attempt.attempt import Exited
from spotchaos.launch.isolation.scratch import PREFIX, lock_of, sweep
from spotchaos.launch.isolation.workspace import Workspace
from tests.launch.conftest import BOUND_S, everything_below, mechanisms_named

everywhere = pytest.mark.parametrize(
    "mechanisms", ["best", "user", "copy", "none"], indirect=True
)


@pytest.fixture
def soon(monkeypatch):
    """Count as survivors at once what outlives its leader."""
    monkeypatch.setattr(spec, "LINGER_S", 0.5)


@everywhere
def test_a_daemon_dies_with_its_attempt(start, soon):
    attempt = start(
        """
        import os, sys, time
        if os.fork():
            os._exit(0)
        os.setsid()
        if os.fork():
            os._exit(0)
        while True:
            time.sleep(1)
        """
    )
    assert attempt.wait(BOUND_S) == Exited(0)
    assert len(attempt.survivors) == 1
    assert "while True" in attempt.survivors[0]
    (daemon,) = attempt.members()
    attempt.reclaim()
    assert attempt.members() == []
    assert not Path(f"/proc/{daemon.pid}").exists()


@everywhere
def test_the_port_that_a_survivor_keeps_is_seen(start, soon):
    attempt = start(
        """
        import os, socket, time
        listener = socket.create_server(("127.0.0.1", 0))
        gone = socket.create_server(("127.0.0.1", 0))
        socket.create_connection(gone.getsockname()).close()
        gone.close()
        print(listener.getsockname()[1], flush=True)
        if os.fork():
            os._exit(0)
        os.setsid()
        while True:
            time.sleep(1)
        """
    )
    assert attempt.wait(BOUND_S) == Exited(0)
    (listening,) = attempt.ports
    assert "create_server" in listening[0]
    assert listening[1] == int(attempt.output_tail)
    attempt.reclaim()


@everywhere
def test_workers_in_sessions_of_their_own_die_with_a_reclaim(start):
    attempt = start(
        """
        import subprocess, sys
        code = "import time, sys; print('up', flush=True); time.sleep(1000)"
        command = [sys.executable, "-I", "-c", code]
        workers = [subprocess.Popen(command, start_new_session=True) for _ in range(2)]
        for worker in workers:
            worker.wait()
        """
    )
    while attempt.output_tail.count("up") < 2:
        assert attempt.wait(0.05) is None, attempt.output_tail
    pids = [process.pid for process in attempt.members()]
    assert len(pids) == 3
    attempt.reclaim()
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    assert attempt.exit_code is None
    assert attempt.cpu_s > 0


HARNESS = """
import sys
from pathlib import Path
from spotchaos.launch.attempt.starting import launch
from spotchaos.launch.isolation.program import Program
from spotchaos.launch.isolation.workspace import Workspace
from tests.launch.conftest import mechanisms_named
folder = Path(sys.argv[1])
code = '''
import os, time
os.setsid() if os.fork() == 0 else None
n = 0
while True:
    n += 1
    open(f"file{n % 7}", "w").write(str(n))
    print("writing", flush=True)
    time.sleep(0.001)
'''
workspace = Workspace(folder, mechanisms=mechanisms_named(sys.argv[2]))
program = Program((sys.executable, "-I", "-c", code), folder)
print(workspace.scratch, workspace._shared_memory.path, flush=True)
attempt = launch(program, workspace.view("a"), number=1, orders={})
if sys.argv[3] == "frozen":
    while "writing" not in attempt.output_tail:
        attempt.wait(0.01)
    attempt.freeze()
print(*[p.pid for p in attempt.members()], attempt._init, attempt._outer.pid, flush=True)
attempt.wait()
"""


@pytest.mark.parametrize("state", ["running", "frozen"])
@pytest.mark.parametrize("name", ["best", "user", "copy", "none"])
def test_killing_the_harness_leaves_nothing(folder, name, state):
    (folder / "mine").write_text("x")
    mechanisms_named(name)  # or skip
    before = everything_below(folder)
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", HARNESS, str(folder), name, state],
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
    ) as harness:
        places = [Path(word) for word in harness.stdout.readline().split()]
        pids = [int(word) for word in harness.stdout.readline().split()]
        harness.kill()
    assert len(pids) >= 3
    for pid in pids:
        wait_until_gone(pid)
    for place in places:
        wait_until_unlocked(lock_of(place))
    assert everything_below(folder) == before
    assert [p for place in places for p in (place, lock_of(place)) if p.exists()] == []


def wait_until_gone(pid):
    """Return when a process is gone; one that is not our child has no other notice."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    import select

    with os.fdopen(descriptor, "rb") as file:
        assert select.select([file], [], [], BOUND_S)[0], f"{pid} lives"


def wait_until_unlocked(lock):
    """Return when the cleaner, which holds it, has put everything away and ended."""
    with contextlib.suppress(FileNotFoundError), lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def test_a_closed_workspace_leaves_nothing(folder, mechanisms):
    with Workspace(folder, mechanisms=mechanisms) as workspace:
        workspace.view("a")
        places = [workspace.scratch, workspace._shared_memory.path]
        assert [place.exists() for place in places] == [True, True]
        assert workspace.scratch.name.startswith(PREFIX)
    assert [p for place in places for p in (place, lock_of(place)) if p.exists()] == []


def test_a_scratch_folder_without_an_owner_is_swept(folder, mechanisms, tmp_path):
    old = tmp_path / f"{PREFIX}01234567"
    (old / "view" / "u0").mkdir(parents=True)
    lock_of(old).touch()
    with Workspace(folder, tmp_path, mechanisms) as workspace:
        sweep([tmp_path])
        assert workspace.scratch.exists()
    assert not old.exists()
    assert not lock_of(old).exists()


def test_nothing_begins_once_everything_was_ended(start, view):
    attempt = start("import time\nwhile True: time.sleep(1)")
    view.workspace.end_all()
    assert attempt.members() == []
    with pytest.raises(HarnessError, match="the campaign was ended"):
        start("print('begun')", number=2)
    with pytest.raises(HarnessError, match="the campaign was ended"):
        view.workspace.view("another")
    view.workspace.reopen()
    assert start("print('begun')", number=3).wait(BOUND_S) == Exited(0)


def test_what_is_just_beginning_is_ended_as_well(start, view, monkeypatch):
    # Nothing is waited for that has not been told to end.
    monkeypatch.setattr("spotchaos.launch.attempt.attempt.END_BOUND_S", 1e9)
    make_spec = starting.make_spec
    # Tests beside this one may keep servers of theirs.
    before = psutil.Process().children(recursive=True)

    def interrupted(*args, **given):
        view.workspace.end_all()  # nothing of this attempt can be ended yet
        return make_spec(*args, **given)

    monkeypatch.setattr(starting, "make_spec", interrupted)
    with pytest.raises(HarnessError, match="the campaign was ended"):
        start("import time\nwhile True: time.sleep(1)")
    assert view.workspace.ends == set()
    assert set(psutil.Process().children(recursive=True)) <= set(before)
