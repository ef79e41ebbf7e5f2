"""A zygote that dies, hangs or may not fork costs no trial, and it is said."""

import os
import signal
import socket
import sys
import threading

import psutil
import pytest

from spotchaos.errors import HarnessError
from spotchaos.launch.attempt.attempt import Exited
from spotchaos.launch.attempt.starting import launch
from spotchaos.launch.isolation.program import Program
from spotchaos.launch.zygote.forkable import start_of
from spotchaos.launch.zygote.zygote import Warm, ZygoteGoneError, raised_for

BOUND_S = 60.0
STARTS_A_THREAD = """
import threading
threading.Thread(target=threading.Event().wait, daemon=True, name="poller").start()
"""


@pytest.fixture
def packages(place):
    folder = place[0].folder / "site-packages"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def raise_zygote(place, packages):
    workspace, _ = place
    raised = []

    def raise_zygote(*modules):
        command = (sys.executable, "prog.py")
        (workspace.folder / "prog.py").write_text("print('ran')\n")
        own = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        own["PYTHONPATH"] = str(packages)
        program = Program(command=command, folder=workspace.folder, environment=own)
        start = start_of(command, own, workspace.folder)
        view = workspace.view(f"lost-{len(raised)}-{threading.get_ident()}")
        raised.append(view)
        zygote = raised_for(program, start, workspace, modules)
        raised.append(zygote)
        return program, view, Warm(zygote, start)

    yield raise_zygote
    for each in reversed(raised):
        each.close()


def test_killed_zygote_is_gone_for_every_later_attempt(raise_zygote):
    program, view, warm = raise_zygote("json")
    os.kill(warm.zygote.pid, signal.SIGKILL)
    for number in (1, 2):
        with pytest.raises(ZygoteGoneError, match="the zygote is gone"):
            launch(program, view, number=number, orders={}, warm=warm)
    attempt = launch(program, view, number=3, orders={})
    try:
        assert attempt.wait(BOUND_S) == Exited(0)
    finally:
        attempt.close()


def test_stopped_zygote_is_not_waited_for_twice(raise_zygote):
    program, view, warm = raise_zygote("json")
    warm.zygote.answer_bound_s = 0.2
    os.kill(warm.zygote.pid, signal.SIGSTOP)
    with pytest.raises(ZygoteGoneError, match="did not answer"):
        launch(program, view, number=1, orders={}, warm=warm)
    warm.zygote.answer_bound_s = 1e9
    with pytest.raises(ZygoteGoneError):
        launch(program, view, number=2, orders={}, warm=warm)


@pytest.mark.parametrize(
    ("hook", "said"),
    [
        ("os._exit(7)", "its first process ended"),
        ("time.sleep(600)", "an attempt did not start within 1 s"),
    ],
    ids=["dies", "hangs"],
)
def test_what_is_forked_and_does_not_begin_is_begun_fresh(
    packages, raise_zygote, monkeypatch, hook, said
):
    # A lock that another thread of the parent held, or no memory left, do the same.
    monkeypatch.setattr("spotchaos.launch.attempt.attempt.START_BOUND_S", 1.0)
    monkeypatch.setattr("spotchaos.launch.attempt.attempt.END_BOUND_S", 0.5)
    name = f"stops_forks_{len(hook)}"
    (packages / f"{name}.py").write_text(
        f"import os, time\nos.register_at_fork(after_in_child=lambda: {hook})\n"
    )
    program, view, warm = raise_zygote(name)
    for number in (1, 2):
        with pytest.raises(ZygoteGoneError, match=f"did not begin: .*{said}"):
            launch(program, view, number=number, orders={}, warm=warm)
    monkeypatch.undo()
    children = psutil.Process(warm.zygote.pid).children()
    assert psutil.wait_procs(children, timeout=BOUND_S)[1] == []
    attempt = launch(program, view, number=3, orders={})
    try:
        assert attempt.wait(BOUND_S) == Exited(0)
    finally:
        attempt.close()


def test_imports_that_hang_are_not_waited_for(packages, raise_zygote, monkeypatch):
    monkeypatch.setattr("spotchaos.launch.zygote.zygote.READY_BOUND_S", 0.5)
    (packages / "hangs.py").write_text("import time\ntime.sleep(600)\n")
    with pytest.raises(HarnessError, match="did not answer within"):
        raise_zygote("hangs")


def test_attempt_outlives_the_zygote_that_forked_it(raise_zygote):
    program, view, warm = raise_zygote("json")
    attempt = launch(program, view, number=1, orders={}, warm=warm)
    try:
        os.kill(warm.zygote.pid, signal.SIGKILL)
        assert attempt.wait(BOUND_S) == Exited(0)
        assert attempt.output_tail == "ran"
    finally:
        attempt.close()


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            STARTS_A_THREAD,
            "imports started threads: poller",
        ),
        (
            "import subprocess\nsubprocess.Popen(['sleep', '60'])\n",
            "imports started processes",
        ),
        ("import os\nos._exit(3)\n", "the zygote ended"),
        ("log = open('made-by-an-import', 'w')\n", "imports left open: /"),
        (
            "import tempfile\ncache = tempfile.mkdtemp()\n",
            "imports made temporary files",
        ),
    ],
    ids=[
        "starts a thread",
        "starts a process",
        "ends the process",
        "keeps a file open",
        "makes a temporary folder",
    ],
)
def test_import_that_a_fork_does_not_survive_is_refused(
    packages, raise_zygote, source, reason
):
    torch = packages / "torch.py"  # without which nothing is gained
    torch.write_text(source)
    try:
        with pytest.raises(HarnessError, match=reason):
            raise_zygote("torch")
    finally:
        torch.unlink()


@pytest.mark.parametrize(
    "source",
    ["raise RuntimeError('no')", "raise SystemExit(1)", "import nothing_at_all", "1 +"],
    ids=["raises", "exits", "misses a module", "is no Python"],
)
def test_import_that_fails_is_left_to_the_program(packages, raise_zygote, source):
    name = f"fails_{abs(hash(source))}"
    (packages / f"{name}.py").write_text(source)
    _, _, warm = raise_zygote(name, "json")
    assert warm.zygote.failed == (name,)


def test_variables_that_an_import_changes_are_so_in_forked_programs(
    place, packages, raise_zygote
):
    (packages / "changes.py").write_text(
        "import os\n"
        "os.environ.update(SET='1', PYTHONPATH=os.environ['PYTHONPATH'] + ':/more')\n"
        "os.environ.pop('TEMP')\n"
        "os.environ['TMPDIR'] = os.environ['TMPDIR'] + '/deeper'\n"
    )
    source = (
        "import changes, os; own = os.environ;"
        "print([own.get(n) for n in ('SET', 'PYTHONPATH', 'TEMP', 'TMP', 'TMPDIR')])\n"
    )
    said = []
    for is_warm in (True, False):
        program, view, warm = raise_zygote("changes")
        (place[0].folder / "prog.py").write_text(source)
        way = warm if is_warm else None
        attempt = launch(program, view, number=1, orders={}, warm=way)
        try:
            assert attempt.wait(BOUND_S) == Exited(0), attempt.output_tail
            said.append(attempt.output_tail)
        finally:
            attempt.close()
    assert said[0] == said[1]
    assert "/more" in said[0]


def test_what_a_zygote_said_before_it_ended_is_heard(raise_zygote):
    _, _, warm = raise_zygote("json")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.send(b"nobody reads this, which resets the connection")
        theirs.send(b'{"reason": "no way back"}')
        theirs.close()
        own, warm.zygote._connection = warm.zygote._connection, ours
        assert warm.zygote._answer(1.0) == {"reason": "no way back"}
        warm.zygote._connection = own
