"""Attempts of small plain programs, under every set of mechanisms that can be had here."""

import dataclasses
import sys
import textwrap

import pytest

from spotchaos.launch.attempt.attempt import Exited, Halted
from spotchaos.launch.attempt.starting import launch
from spotchaos.launch.isolation.mechanisms import Mechanisms, find_mechanisms
from spotchaos.launch.isolation.program import Program
from spotchaos.launch.isolation.workspace import Workspace

# How long an event may take on a loaded machine; no test waits for it to pass.
BOUND_S = 60.0


def mechanisms_named(name):
    """Return "best", "user" (a user namespace is forced), "copy" or "none"."""
    found = find_mechanisms()
    if name == "best":
        if found.overlay is None:
            pytest.skip(f"no overlay here: {found.missing}")
        return found
    if name == "user":
        if found.overlay is None:
            pytest.skip(f"no overlay here: {found.missing}")
        return dataclasses.replace(found, user_namespace=True, overlay="user")
    if name == "copy":
        return dataclasses.replace(found, overlay=None)
    return Mechanisms()


def everything_below(folder):
    """Return name, time and mode of each entry: what a test compares before and after."""
    return sorted(
        (str(p.relative_to(folder)), p.lstat().st_mtime_ns, p.lstat().st_mode)
        for p in folder.rglob("*")
    )


@pytest.fixture
def mechanisms(request):
    return mechanisms_named(getattr(request, "param", "best"))


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def workspace(folder, mechanisms):
    with Workspace(folder, mechanisms=mechanisms) as workspace:
        yield workspace


@pytest.fixture
def view(workspace):
    return workspace.view("trial")


@pytest.fixture
def start(request, mechanisms):
    """Return a function that launches a program of some lines of Python.

    The view is made at the first launch, so that a test can fill the folder before.
    """
    running = []

    def start(source, *, view=None, number=1, orders=(), command=None, **given):
        if view is None:
            view = request.getfixturevalue("view")
        own = {
            name: given.pop(name)
            for name in list(given)
            if name in Program.__dataclass_fields__ and name != "environment"
        }
        if "base_environment" in given:
            own["environment"] = given.pop("base_environment")
        if command is None:
            # Isolated: no probe of ours, which has tests of its own.
            command = (sys.executable, "-I", "-c", textwrap.dedent(source))
        program = Program(command=command, folder=view.workspace.folder, **own)
        running.append(
            launch(program, view, number=number, orders=dict(orders), **given)
        )
        return running[-1]

    yield start
    for attempt in running:
        attempt.close()


@pytest.fixture
def run(start):
    """Return a function that launches a program, waits for its end and reclaims it."""

    def run(source, *, status=0, **given):
        attempt = start(source, **given)
        event = attempt.wait(BOUND_S)
        assert event == Exited(status), (event, attempt.output_tail)
        attempt.reclaim()
        return attempt

    return run


def wait_for_halt(attempt):
    event = attempt.wait(BOUND_S)
    assert isinstance(event, Halted), (event, attempt.output_tail)
    return event


# What the probe says and does, in a few lines, for programs that run without it.
FAKE_PROBE = """
import json, os, socket, sys, time
orders = json.load(open(os.environ["SPOTCHAOS_ORDERS"]))
harness = socket.socket(socket.AF_UNIX)
harness.connect(orders["socket"])
rank = int(os.environ.get("RANK", 0))
size = int(os.environ.get("WORLD_SIZE", 1))
def say(message):
    harness.sendall(json.dumps(message).encode() + b"\\n")
def halt(point, step):
    say({"halt": point, "pid": os.getpid(), "rank": rank, "step": step, "id": step})
    return json.loads(harness.makefile().readline())
say({"hello": {"pid": os.getpid(), "rank": rank, "world_size": size, "role": "main"}})
"""
