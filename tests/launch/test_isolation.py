"""Nothing of the user's is written, and nothing is reached outside."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from spotchaos.launch.attempt.attempt import Exited
from spotchaos.launch.isolation.addresses import free_port
from spotchaos.launch.isolation.program import wants_terminal
from spotchaos.launch.isolation.workspace import Workspace
from tests.launch.conftest import BOUND_S, everything_below

overlays = pytest.mark.parametrize("mechanisms", ["best", "user"], indirect=True)
everywhere = pytest.mark.parametrize(
    "mechanisms", ["best", "user", "copy", "none"], indirect=True
)


@everywhere
def test_nothing_in_the_folder_is_written(folder, run):
    (folder / "data.txt").write_text("mine")
    (folder / "runs").mkdir()
    before = everything_below(folder)
    run(
        """
        import os, shutil
        open("data.txt", "a").write("theirs")
        open("runs/new.pt", "w").write("x")
        os.mkdir("other")
        os.chmod("data.txt", 0o600)
        """
    )
    assert everything_below(folder) == before
    assert (folder / "data.txt").read_text() == "mine"


@overlays
def test_nothing_outside_the_folder_is_written(folder, run):
    places = [Path.home(), Path("/var/tmp"), Path("/tmp"), folder.parent]
    if os.geteuid() == 0:
        places.append(Path("/etc"))
    name = f"spotchaos-test-{os.getpid()}"
    attempt = run(
        f"""
        for place in {[str(p) for p in places]!r}:
            open(place + "/{name}", "w").write("x")
            assert open(place + "/{name}").read() == "x"
        """
    )
    assert [p for p in places if (p / name).exists()] == []
    assert attempt.readonly == ()


@overlays
def test_a_deleted_file_of_the_user_is_still_there(folder, run):
    (folder / "data").mkdir()
    (folder / "data" / "a").write_text("mine")
    run("import shutil; shutil.rmtree('data'); import os; assert os.listdir() == []")
    assert (folder / "data" / "a").read_text() == "mine"


@overlays
def test_the_program_runs_at_its_own_path(folder, run):
    attempt = run("import os; print(os.getcwd())")
    assert attempt.output_tail == str(folder.resolve())


@overlays
def test_shared_memory_is_private_and_outlives_an_attempt(run):
    name = f"spotchaos-test-{os.getpid()}"
    run(f"open('/dev/shm/{name}', 'w').write('x')")
    assert not Path("/dev/shm", name).exists()
    run(f"assert open('/dev/shm/{name}').read() == 'x'", number=2)


@overlays
def test_our_own_scratch_folder_is_hidden(run, view):
    scratch = str(view.workspace.scratch)
    attempt = run(f"import os; print(os.listdir({scratch!r}))")
    assert attempt.output_tail == f"['{view.place.name}']"


@overlays
def test_only_the_attempt_own_processes_are_seen(run):
    attempt = run(
        "import os; print(sorted(int(p) for p in os.listdir('/proc') if p.isdigit())"
        " == [1, os.getpid()])"
    )
    assert attempt.output_tail == "True"


@overlays
def test_pids_of_two_attempts_differ(run):
    first = run("import os; print(os.getpid())")
    second = run("import os; print(os.getpid())", number=2)
    assert abs(int(first.output_tail) - int(second.output_tail)) > 500


@overlays
def test_kernel_settings_cannot_be_written(run):
    run(
        """
        try:
            open("/proc/sys/vm/swappiness", "w").write("60")
        except OSError:
            pass
        else:
            raise SystemExit("written")
        """
    )


@overlays
def test_the_network_is_out_of_reach_and_loopback_is_not(run):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        run(
            f"""
            import socket
            def reach(place):
                try:
                    socket.create_connection(place, 5).close()
                except OSError as error:
                    return error.strerror
            assert reach(("192.0.2.1", 80)) == "Network is unreachable"
            assert reach(("127.0.0.1", {port})) == "Connection refused"  # ours, outside
            own = socket.create_server(("127.0.0.1", 0))
            assert reach(own.getsockname()) is None
            """
        )


@overlays
def test_an_allowed_network_is_the_machine_own(run):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        run(
            f"import socket; socket.create_connection(('127.0.0.1', {port}), 5)",
            allow_network=True,
        )


@overlays
def test_names_of_the_cloud_lead_to_addresses_inside(start):
    attempt = start(
        """
        import socket
        for name in ("metadata.example.internal", "metadata"):
            assert socket.gethostbyname(name) == "192.0.2.7", name
        """,
        addresses=["192.0.2.7"],
        hosts={"metadata.example.internal": "192.0.2.7", "metadata": "192.0.2.7"},
    )
    assert attempt.wait(BOUND_S) == Exited(0), attempt.output_tail


@overlays
def test_the_harness_can_listen_inside(start):
    attempt = start(
        """
        import socket
        with socket.create_connection(("192.0.2.7", 80), 30) as s:
            assert s.recv(10) == b"hello"
        """,
        addresses=["192.0.2.7"],
        listen=[("192.0.2.7", 80)],
    )
    (listener,) = attempt.listeners
    listener.settimeout(BOUND_S)
    connection, _ = listener.accept()
    with connection:
        connection.sendall(b"hello")
    assert attempt.wait(BOUND_S) == Exited(0), attempt.output_tail


def test_the_harness_listens_outside_where_the_network_is_allowed(start):
    port = free_port()
    attempt = start(
        f"""
        import socket
        with socket.create_connection(("127.0.0.1", {port}), 30) as s:
            assert s.recv(10) == b"hello"
        """,
        allow_network=True,
        listen=[("127.0.0.1", port)],
    )
    (listener,) = attempt.listeners
    listener.settimeout(BOUND_S)
    connection, _ = listener.accept()
    with connection:
        connection.sendall(b"hello")
    assert attempt.wait(BOUND_S) == Exited(0), attempt.output_tail


@pytest.mark.parametrize("mechanisms", ["best", "user", "none"], indirect=True)
def test_secrets_in_the_environment_are_hidden(run):
    environment = {
        **os.environ,
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_REGION": "eu-west-1",
        "WANDB_API_KEY": "s",
        "HF_TOKEN": "s",
        "TOKENIZERS_PARALLELISM": "false",
    }
    attempt = run(
        """
        import os
        names = "AWS_SECRET_ACCESS_KEY AWS_REGION WANDB_API_KEY HF_TOKEN"
        print([n for n in (names + " TOKENIZERS_PARALLELISM").split() if n in os.environ])
        """,
        base_environment=environment,
    )
    assert attempt.output_tail == "['AWS_REGION', 'TOKENIZERS_PARALLELISM']"


@overlays
def test_files_with_credentials_are_hidden(folder, mechanisms, monkeypatch, start):
    home = folder.parent / "home"
    (home / ".aws").mkdir(parents=True)
    (home / ".aws" / "credentials").write_text("secret")
    (home / ".netrc").write_text("secret")
    (home / ".bashrc").write_text("mine")
    monkeypatch.setenv("HOME", str(home))
    with Workspace(folder, mechanisms=mechanisms) as workspace:
        attempt = start(
            "import os; print(sorted(os.listdir(os.environ['HOME'])))",
            view=workspace.view("trial"),
            base_environment={**os.environ, "HOME": str(home)},
        )
        assert attempt.wait(BOUND_S) == Exited(0)
        assert attempt.output_tail == "['.bashrc']"
        attempt.close()
    assert (home / ".aws" / "credentials").read_text() == "secret"


@overlays
def test_threads_and_hash_seed_are_pinned(run):
    attempt = run(
        "import os; print(os.environ['OMP_NUM_THREADS'], os.environ['PYTHONHASHSEED'])",
        threads=3,
    )
    assert attempt.output_tail == "3 0"


def test_a_program_that_wants_a_terminal_gets_one(run):
    source = "import os; print(os.get_terminal_size(0)); print(os.ttyname(1))"
    failed = run(source, status=1)
    assert wants_terminal(failed.output_tail)
    done = run(source, number=2, pty=True)
    size, name = done.output_tail.splitlines()
    assert size == "os.terminal_size(columns=80, lines=24)"
    assert name.startswith("/dev/pts/")


def test_stty_finds_the_terminal(start):
    if shutil.which("stty") is None:
        pytest.skip("no stty here")
    attempt = start("", command=("stty", "size"), pty=True)
    assert attempt.wait(BOUND_S) == Exited(0)
    assert attempt.output_tail == "24 80"


def test_an_attempt_as_another_user_touches_nothing(tmp_path):
    root = Path(__file__).parents[2]
    interpreter = interpreter_of_nobody(root)
    import tempfile

    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        folder = Path(place, "work")
        folder.mkdir()
        for path in (Path(place), folder):
            path.chmod(0o777)
        done = as_nobody(interpreter, "-c", NOBODY, str(folder), cwd=root)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-2:] == ["user", "ok 2"]
        assert list(folder.iterdir()) == []


NOBODY = """
import os, sys
from pathlib import Path
from spotchaos.launch.attempt.starting import launch
from spotchaos.launch.isolation.mechanisms import find_mechanisms
from spotchaos.launch.isolation.program import Program
from spotchaos.launch.isolation.workspace import Workspace
found = find_mechanisms()
folder = Path(sys.argv[1])
code = '''
import os
assert os.getuid() == 65534 and os.getcwd() == %r
first = not os.path.exists("a")
if first:
    os.makedirs("a/b")
    open("a/b/c", "w").write("x")
    open("/var/tmp/spotchaos-of-nobody", "w").write("x")
    os.rename(os.environ["TMPDIR"], "a/tmp")
os.rename("a", "moved") if not first else None
print("ok", 1 if first else 2)
''' % str(folder)
with Workspace(folder) as workspace:
    view = workspace.view("a")
    for number in (1, 2):
        program = Program((sys.executable, "-I", "-c", code), folder)
        attempt = launch(program, view, number=number, orders={})
        event = attempt.wait(60)
        attempt.reclaim()
        print(attempt.output_tail if event.status else "")
        last = attempt.output_tail
        attempt.close()
    assert not os.path.exists("/var/tmp/spotchaos-of-nobody")
print(found.overlay)
print(last)
"""


def test_a_zygote_of_another_user_touches_nothing(tmp_path):
    root = Path(__file__).parents[2]
    interpreter = interpreter_of_nobody(root)
    import tempfile

    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        folder = Path(place, "work")
        packages = Path(place, "site-packages")
        for path in (Path(place), folder, packages):
            path.mkdir(exist_ok=True)
            path.chmod(0o777)
        packages.joinpath("writes.py").write_text("open('by-import', 'w').close()\n")
        code = "import os, sys; print('json' in sys.modules, os.getuid(), os.getcwd())"
        (folder / "prog.py").write_text(code)
        done = as_nobody(
            interpreter, "-c", ZYGOTE, str(folder), str(packages), cwd=root
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [f"True 65534 {folder}"] * 2
        assert [entry.name for entry in folder.iterdir()] == ["prog.py"]


ZYGOTE = """
import os, sys
from pathlib import Path
from spotchaos.launch.isolation.program import Program
from spotchaos.launch.attempt.starting import launch
from spotchaos.launch.isolation.workspace import Workspace
from spotchaos.launch.zygote.forkable import start_of
from spotchaos.launch.zygote.zygote import Warm, raised_for
folder = Path(sys.argv[1])
own = {**os.environ, "PYTHONPATH": sys.argv[2]}
program = Program((sys.executable, "prog.py"), folder, environment=own)
start = start_of(program.command, own, folder)
with Workspace(folder) as workspace:
    zygote = raised_for(program, start, workspace, ["writes", "json"])
    assert zygote.failed == (), zygote.failed
    for number in (1, 2):
        view = workspace.view(f"a{number}")
        warm = Warm(zygote, start)
        attempt = launch(program, view, number=1, orders={}, warm=warm)
        attempt.wait(60)
        print(attempt.output_tail)
        attempt.close()
    zygote.close()
    scratch = workspace.scratch
assert not os.path.exists(scratch), "the view of the zygote is still there"
assert not os.path.exists("/by-import")
"""


def as_nobody(*command, cwd):
    return subprocess.run(
        ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", *command],
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(cwd),
            "HOME": "/nonexistent",
        },
        timeout=100,
    )


def interpreter_of_nobody(root):
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root, with setpriv, can become somebody else")
    check = (
        "import subprocess, sys, spotchaos.launch; assert sys.version_info >= (3, 11);"
        "subprocess.run([sys.executable, '-c', '0'], check=True)"
    )
    for interpreter in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        try:
            if as_nobody(interpreter, "-c", check, cwd=root).returncode == 0:
                return interpreter
        except OSError:
            continue
    pytest.skip("no Python 3.11 and no package of ours that user 65534 may read")
