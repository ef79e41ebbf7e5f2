"""What a forked program finds on its command line is what a fresh one finds there."""

import os
import sys
from pathlib import Path

import pytest

from spotchaos.config.settings import Settings
from spotchaos.launch.isolation.program import Program
from spotchaos.launch.zygote.forkable import start_of
from spotchaos.trial.context import TrialContext


class Zygote:
    """Serves every program; forks none."""

    def serves(self, start):
        return True


def test_the_folder_for_output_is_filled_in(place):
    workspace, _ = place
    command = (sys.executable, "prog.py", "--out", "{out}", "--also={out}/b")
    trial_context = TrialContext(
        Settings(command=command, folder=workspace.folder),
        Program(command=command, folder=workspace.folder),
        workspace,
        zygote=Zygote(),
    )
    view = workspace.view("forked")
    try:
        argv = trial_context.warm(command, view).start.argv
        assert argv == ("prog.py", "--out", f"{view.out}", f"--also={view.out}/b")
    finally:
        view.close()


TORCHRUN = ("-m", "torch.distributed.run")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--nproc-per-node", "2", "t.py", "a"), (2, "t.py", None, ("t.py", "a"))),
        (("--nproc_per_node=3", "t.py"), (3, "t.py", None, ("t.py",))),
        (("--standalone", "--nnodes=1", "t.py"), (1, "t.py", None, ("t.py",))),
        (("--nproc-per-node=2", "-m", "p.t", "-m"), (2, None, "p.t", ("p.t", "-m"))),
        (("--module", "--nproc-per-node=2", "t"), (2, None, "t", ("t",))),
    ],
    ids=["ranks", "underscores", "standalone", "module", "module first"],
)
def test_a_torchrun_that_only_starts_ranks_is_served(words, expected):
    start = start_of((sys.executable, *TORCHRUN, *words), os.environ, Path.cwd())
    assert (start.ranks, start.script, start.module, start.argv) == expected


@pytest.mark.parametrize(
    "words",
    [
        ("--max-restarts=1", "--nproc-per-node=2", "t.py"),
        ("--nnodes=2", "t.py"),
        ("--nproc-per-node=gpu", "t.py"),
        ("--no-python", "t"),
        ("--nproc-per-node=2", "-m"),
        ("--nproc-per-node=2", "./tool"),
        (),
    ],
    ids=["restarts", "nodes", "gpu", "no python", "no module", "a tool", "nothing"],
)
def test_what_torchrun_does_besides_takes_the_cold_path(words):
    command = (sys.executable, *TORCHRUN, *words)
    assert start_of(command, os.environ, Path.cwd()) is None
