"""What a zygote imports touches nothing of the user's, and never the user's own modules."""

import os
import socket
import sys
from dataclasses import replace

import pytest

from spotchaos.errors import HarnessError
from spotchaos.launch.attempt.attempt import Exited
from spotchaos.launch.attempt.starting import launch
from spotchaos.launch.isolation.program import Program
from spotchaos.launch.zygote.forkable import start_of
from spotchaos.launch.zygote.zygote import Warm, raised_for

BOUND_S = 60.0
# A program that says which of these it finds imported.
SAYS = "import sys; print(*(name in sys.modules for name in {names!r}))\n"


@pytest.fixture
def packages(place):
    folder = place[0].folder / "site-packages"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def raise_zygote(place):
    workspace, _ = place
    raised = []

    def raise_zygote(*modules, path, allow_network=False):
        command = (sys.executable, "prog.py")
        own = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        own["PYTHONPATH"] = os.pathsep.join(map(str, path))
        program = Program(
            command, workspace.folder, environment=own, allow_network=allow_network
        )
        start = start_of(command, own, workspace.folder)
        zygote = raised_for(program, start, workspace, modules)
        raised.append(zygote)
        return program, Warm(zygote, start)

    yield raise_zygote
    for zygote in raised:
        zygote.close()


@pytest.fixture
def run(place):
    views = []

    def run(program, warm):
        view = place[0].view(f"isolated-{len(views)}")
        views.append(view)
        attempt = launch(program, view, number=1, orders={}, warm=warm)
        try:
            assert attempt.wait(BOUND_S) == Exited(0), attempt.output_tail
            return attempt.output_tail
        finally:
            attempt.close()

    yield run
    for view in views:
        view.close()


def test_files_that_an_import_writes_are_not_the_users(
    place, packages, tmp_path, raise_zygote, run
):
    folder = place[0].folder
    places = [
        str(folder / "by-import"),
        str(tmp_path / "elsewhere"),
        "by-import-at-cwd",
    ]
    (packages / "writes.py").write_text(
        f"for place in {places!r}:\n    open(place, 'w').close()\n"
    )
    program, warm = raise_zygote("writes", path=[packages])
    assert warm.zygote.failed == ()
    assert not any(os.path.lexists(os.path.join(folder, place)) for place in places)
    # ... nor does the next attempt find them.
    (folder / "prog.py").write_text(
        f"import os, sys; print('writes' in sys.modules, *map(os.path.exists, {places!r}))"
    )
    assert run(program, warm) == "True False False False"


def test_nobody_hears_what_an_import_asks_for(place, packages, raise_zygote):
    if "network" not in place[0].mechanisms.namespaces:
        pytest.skip("no network namespace here")
    with socket.create_server(("127.0.0.1", 0)) as server:
        (packages / "asks.py").write_text(
            "import socket\n"
            f"socket.create_connection({server.getsockname()!r}, 5).close()\n"
        )
        _, warm = raise_zygote("asks", "json", path=[packages])
        assert warm.zygote.failed == ("asks",)
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_a_network_that_is_allowed_is_there_for_imports(packages, raise_zygote):
    with socket.create_server(("127.0.0.1", 0)) as server:
        (packages / "allowed.py").write_text(
            "import socket\n"
            f"socket.create_connection({server.getsockname()!r}, 5).close()\n"
        )
        _, warm = raise_zygote("allowed", path=[packages], allow_network=True)
        assert warm.zygote.failed == ()


def test_modules_that_are_not_installed_are_left_to_each_attempt(
    place, packages, tmp_path, raise_zygote, run
):
    (packages / "installed.py").write_text("")
    (tmp_path / "names_its_run.py").write_text("import uuid\nRUN = uuid.uuid4()\n")
    (tmp_path / "spread").mkdir()
    (tmp_path / "spread" / "over.py").write_text("")
    names = ["installed", "names_its_run", "spread.over", "json"]
    program, warm = raise_zygote(*names, path=[packages, tmp_path])
    (place[0].folder / "prog.py").write_text(SAYS.format(names=names))
    assert run(program, warm) == "True False False True"


def test_what_runs_when_the_interpreter_starts_cannot_run_again(
    place, packages, tmp_path, raise_zygote
):
    (packages / "sitecustomize.py").write_text("")  # as some systems install one
    raise_zygote("json", path=[packages])
    (packages / "sitecustomize.py").unlink()
    (tmp_path / "sitecustomize.py").write_text(
        "import os, uuid\nos.environ['RUN'] = uuid.uuid4().hex\n"
    )
    with pytest.raises(HarnessError, match="sitecustomize of your own runs when"):
        raise_zygote("json", path=[tmp_path])


def test_imports_find_what_they_find_in_a_fresh_process(
    place, packages, raise_zygote, run
):
    (packages / "looks.py").write_text(
        "import os, sys\n"
        "FOUND = os.getcwd(), os.listdir(), sys.argv, sys.orig_argv\n"
        "STREAMS = sys.stdin, sys.stdout, sys.stderr\n"
        "print('imported')\n"
    )
    source = (
        "import sys; warm = 'looks' in sys.modules; import looks, os\n"
        "print(looks.FOUND, looks.STREAMS == (sys.stdin, sys.stdout, sys.stderr))\n"
        "print('kept', file=looks.STREAMS[1], flush=True); looks.STREAMS[2].write('too\\n')\n"
        "sys.exit(0 if warm == (sys.argv[1:] == []) else 3)"
    )
    (place[0].folder / "prog.py").write_text(source)
    program, warm = raise_zygote("looks", path=[packages])
    forked = run(program, warm)
    fresh = run(replace(program, command=(*program.command, "fresh")), None)
    # What imports print is not printed again.
    assert f"imported\n{forked}".split() == fresh.replace(", 'fresh']", "]").split()


def test_handlers_that_an_import_sets_are_there_in_forked_programs(
    place, packages, raise_zygote, run
):
    (packages / "handles.py").write_text(
        "import signal\n"
        "def saves(number, frame): print('saves', number, flush=True)\n"
        "for name in ('SIGTERM', 'SIGUSR1', 'SIGCHLD'):\n"
        "    signal.signal(getattr(signal, name), saves)\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    )
    (place[0].folder / "prog.py").write_text(
        "import handles, os, signal\n"
        "for name in ('SIGTERM', 'SIGINT', 'SIGUSR1', 'SIGCHLD'):\n"
        "    os.kill(os.getpid(), getattr(signal, name))\n"
        "print([str(signal.getsignal(n)) for n in (1, 2, 3, 13, 25)])\n"
    )
    program, warm = raise_zygote("handles", path=[packages])
    forked = run(program, warm)
    assert forked.count("saves") == 3
    assert forked == run(program, None)


def test_a_module_beside_the_program_is_not_hidden_by_an_installed_one(
    place, packages, raise_zygote
):
    (packages / "named_alike.py").write_text("OWN = False\n")
    raise_zygote("named_alike", path=[packages])
    own = place[0].folder / "named_alike"
    own.mkdir()
    (own / "nothing").touch()  # no package: the installed one is found
    raise_zygote("named_alike", path=[packages])
    (own / "__init__.py").touch()
    with pytest.raises(HarnessError, match="own named_alike hides another"):
        raise_zygote("named_alike", path=[packages])
