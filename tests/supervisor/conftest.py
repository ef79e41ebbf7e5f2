"""Runs of small programs under the supervisor."""

import importlib.util
import json
import os
import shutil
import signal
import socket
import sys
from pathlib import Path

import pytest

from spotchaos.launch.supervisor.notify_rules import FilePoint
from spotchaos.launch.supervisor.supervisor import Options, run_supervised, start
from spotchaos.persistence import oplog
from spotchaos.persistence.history import History

HERE = Path(__file__).parent


def load(name):
    """Import a module that lies beside this file."""
    spec = importlib.util.spec_from_file_location(
        f"supervised_{name}", HERE / f"{name}.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Bench:
    """A folder to watch, and runs of programs in it."""

    def __init__(self, base):
        self.root = base / "root"
        self.log = base / "ops.jsonl"
        self.root.mkdir()

    def clear(self):
        shutil.rmtree(self.root)
        self.root.mkdir()

    def options(self, **more):
        return Options(**{"roots": (str(self.root),), "real_fsync": False, **more})

    def record(self, program, **more):
        """Run to the end; return the wait status and the history."""
        options = self.options(oplog=str(self.log), **more)
        status = run_supervised(program, options)
        return status, History(oplog.read(self.log))

    def halted(self, program, *points, **more):
        """Start a program that will be held; return it, the first halt, and the wire."""
        ours, theirs = socket.socketpair()
        points = tuple(FilePoint.parse(point) for point in points)
        options = self.options(control=theirs.fileno(), points=points, **more)
        running = start(program, options)
        theirs.close()
        ours.settimeout(60)
        wire = ours.makefile("rwb")
        ours.close()  # it lives on in the wire
        line = wire.readline()
        assert line, f"{points} was not reached"
        return running, json.loads(line), wire

    def killed(self, program, point, **more):
        """Run to a kill point and kill; return the halt."""
        running, halt, wire = self.halted(program, point, **more)
        for pid in dict.fromkeys(
            (running.program, halt["pid"])
        ):  # its parent first, or it starts more
            os.kill(pid, signal.SIGKILL)
        assert os.WTERMSIG(running.wait()) == signal.SIGKILL
        running.finish()
        wire.close()
        return halt


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


@pytest.fixture(scope="session")
def writers():
    return load("writers")


@pytest.fixture(scope="session")
def protocols():
    return load("protocols")
