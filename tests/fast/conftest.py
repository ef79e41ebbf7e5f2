"""Programs run twice: by a fresh interpreter, and forked from a zygote."""

import os
import sys
import textwrap
from dataclasses import dataclass

import pytest

from spotchaos.launch.attempt.attempt import Exited
from spotchaos.launch.attempt.starting import launch
from spotchaos.launch.isolation.mechanisms import find_mechanisms
from spotchaos.launch.isolation.program import Program
from spotchaos.launch.isolation.workspace import Workspace
from spotchaos.launch.zygote.forkable import start_of
from spotchaos.launch.zygote.zygote import Warm, raised_for

BOUND_S = 60.0
# What a training program has imported by its end, torch left out: it is slow to import.
PRELOADED = [
    "argparse",
    "asyncio",
    "atexit",
    "concurrent.futures",
    "dataclasses",
    "inspect",
    "json",
    "logging",
    "multiprocessing",
    "multiprocessing.pool",
    "multiprocessing.popen_fork",
    "multiprocessing.popen_spawn_posix",
    "multiprocessing.spawn",
    "multiprocessing.util",
    "pickle",
    "random",
    "resource",
    "signal",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
    "traceback",
    "unittest",
    "warnings",
]


@dataclass(frozen=True)
class Ending:
    """How a program ended, and what it printed."""

    status: int
    output: str


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """Return a workspace whose folder tests fill, and the zygotes started in it."""
    folder = tmp_path_factory.mktemp("fast") / "work"
    folder.mkdir()
    if find_mechanisms().overlay is None:
        pytest.skip("no overlay here: paths in a copy differ for every attempt")
    zygotes = {}
    with Workspace(folder) as workspace:
        yield workspace, zygotes
        for zygote in zygotes.values():
            zygote.close()


@pytest.fixture
def run_both(place):
    """Return a function that runs files with a command both ways, and returns both ends."""
    workspace, zygotes = place
    count = iter(range(1000))

    def run_one(program, *, warm):
        view = workspace.view(f"twin-{next(count)}")
        start = start_of(program.command, program.environment, program.folder)
        way = None
        if warm:
            assert start is not None, f"no zygote serves {program.command}"
            key = (start.interpreter, start.flags, *sorted(program.environment.items()))
            if key not in zygotes:
                zygotes[key] = raised_for(program, start, workspace, PRELOADED)
            way = Warm(zygotes[key], start)
        attempt = launch(program, view, number=1, orders={}, warm=way)
        try:
            event = attempt.wait(BOUND_S)
            assert isinstance(event, Exited), (event, attempt.output_tail)
            return Ending(event.status, attempt.output_tail)
        finally:
            attempt.close()
            view.close()

    def run_both(files, arguments, *, pty=False, **environment):
        if isinstance(files, str):
            files = {"prog.py": files}
        for name, source in files.items():
            path = workspace.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(source))
            if source.startswith("#!"):
                path.chmod(0o755)
        own = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        program = Program(
            command=tuple(arguments),
            folder=workspace.folder,
            environment={**own, **environment},
            pty=pty,
        )
        return run_one(program, warm=False), run_one(program, warm=True)

    return run_both


@pytest.fixture
def python():
    return sys.executable
