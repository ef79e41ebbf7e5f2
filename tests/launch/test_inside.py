"""The program's side of the launcher runs alone, on every Python from 3.9 on."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from spotchaos.launch.isolation import inside
from spotchaos.launch.supervisor.supervision import supervision_of
from tests.launch.conftest import BOUND_S, mechanisms_named

INSIDE = Path(inside.__file__)


def interpreters():
    """Return the Pythons of this machine from 3.9 on, ours first."""
    found = {sys.version_info[:2]: sys.executable}
    for minor in range(9, 15):
        names = [f"/usr/bin/python3.{minor}", f"/usr/local/bin/python3.{minor}"]
        roots = Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python")
        for path in [*names, *map(str, roots)]:
            if Path(path).exists():
                found.setdefault((3, minor), path)
    return found


@pytest.mark.parametrize("minor", range(9, 15), ids=lambda minor: f"3.{minor}")
@pytest.mark.parametrize("ranks", [None, 2], ids=["alone", "ranks"])
def test_an_attempt_is_carried_out_without_our_package(minor, ranks, tmp_path):
    interpreter = interpreters().get((3, minor))
    if interpreter is None:
        pytest.skip(f"no Python 3.{minor} here")
    status = "3" if ranks is None else "0"  # the first to fail would end the other
    reports, code = carry_out(
        interpreter,
        tmp_path,
        unshare=mechanisms_named("best").namespaces,
        mounts=[{"do": "proc", "at": "/proc"}],
        command=["sh", "-c", 'test "$$" -gt 4000 && echo "up $RANK" && exit $STATUS'],
        environment={"PATH": os.environ["PATH"], "STATUS": status},
        ranks=ranks,
        last_pid=4000,
    )
    assert code == 0
    assert [r["ended"] for r in reports if "ended" in r] == [int(status)], reports
    assert [r["survivors"] for r in reports if "survivors" in r] == [[]]
    said = (tmp_path / "output").read_text().split()
    assert said == ["up"] if ranks is None else sorted(said) == ["0", "1", "up", "up"]


@pytest.mark.parametrize("minor", range(9, 15), ids=lambda minor: f"3.{minor}")
def test_the_supervisor_of_file_ops_runs_there_too(minor, tmp_path):
    interpreter = interpreters().get((3, minor))
    if interpreter is None:
        pytest.skip(f"no Python 3.{minor} here")
    folder = tmp_path / "work"
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        reports, _ = carry_out(
            interpreter,
            tmp_path,
            unshare=["mount", "pid"],
            mounts=[{"do": "proc", "at": "/proc"}],
            command=["sh", "-c", "echo x > a && mv a b"],
            environment={"PATH": os.environ["PATH"]},
            folder=str(folder),
            supervisor=supervision_of(
                roots=[str(folder)],
                oplog=str(tmp_path / "ops"),
                control=str(tmp_path / "s"),
            ),
        )
    assert [r["ended"] for r in reports if "ended" in r] == [0], reports
    lines = [json.loads(line) for line in (tmp_path / "ops").read_text().splitlines()]
    assert "rename" in [line.get("op") for line in lines]


def test_a_mount_that_is_refused_is_reported_not_raised(tmp_path):
    reports, code = carry_out(
        sys.executable,
        tmp_path,
        unshare=["mount"],
        mounts=[{"do": "bind", "source": "/nowhere", "at": "/tmp"}],
        command=["true"],
        environment={},
    )
    errors = [r["error"] for r in reports if "error" in r]
    (error,) = errors
    assert error == (
        "could not set up the attempt: "
        "[Errno 2] mount bind at /tmp: No such file or directory"
    )
    assert code == 0


def carry_out(interpreter, tmp_path, **spec):
    """Run `inside.py` as the harness does; return its reports and its status."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reader, writer = os.pipe()
    described = os.memfd_create("spec")
    spec.update(
        control=theirs.fileno(),
        lifeline=reader,
        output=str(tmp_path / "output"),
        linger_s=BOUND_S,
    )
    os.write(described, json.dumps(spec).encode())
    os.lseek(described, 0, os.SEEK_SET)
    reports = []
    with (
        subprocess.Popen(
            [interpreter, "-I", "-S", str(INSIDE), str(described)],
            pass_fds=(described, theirs.fileno(), reader),
            start_new_session=True,
        ) as process,
        ours,
    ):
        theirs.close()
        ours.settimeout(BOUND_S)
        while content := ours.recv(1 << 16):
            reports.append(json.loads(content))
            if "survivors" in reports[-1]:
                os.write(writer, b"x")
        process.wait(BOUND_S)
    for descriptor in (reader, writer, described):
        os.close(descriptor)
    return reports, process.returncode
