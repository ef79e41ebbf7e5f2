"""A zygote imports beside the first run; a forecast that was wrong serves nobody."""

import os
import sys
import types

import pytest

from spotchaos.errors import HarnessError
from spotchaos.launch.program import Program
from spotchaos.model import Attempt, AttemptTrace, Ended, RankTrace
from spotchaos.warming import Warming

AS_TORCH = """
import types
cuda = types.SimpleNamespace(is_initialized=lambda: False)
"""
SLEEPS = "import time\ntime.sleep(600)\n"


@pytest.fixture
def stage(place, tmp_path):
    workspace, _ = place
    (workspace.folder / "prog.py").write_text("import foreseen_one\n")
    packages = tmp_path / "site-packages"
    packages.mkdir()
    for name in ("foreseen_one", "seen"):
        (packages / f"{name}.py").write_text("")
    (packages / "torch.py").write_text(AS_TORCH)  # the real one takes seconds
    own = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    own["PYTHONPATH"] = str(packages)
    return types.SimpleNamespace(
        program=Program(
            command=(sys.executable, "prog.py"),
            folder=workspace.folder,
            environment=own,
        ),
        zygote=None,
        settings=types.SimpleNamespace(warm=True),
        workspace=workspace,
        packages=packages,
    )


def first_run(stage, *modules):
    rank = RankTrace(
        rank=0,
        states={},
        finish=None,
        steps=(),
        saves=(),
        loads=(),
        counts={},
        modules=tuple((name, str(stage.packages / f"{name}.py")) for name in modules),
    )
    return Attempt(
        number=1,
        command=stage.program.command,
        ended=Ended.FINISHED,
        exit_code=0,
        trace=AttemptTrace({0: rank}, 1, 1, torch_seen=True),
        wall_s=1.0,
    )


def test_a_forecast_that_was_right_is_completed(stage):
    warming = Warming()
    warming.begin(stage)
    first = first_run(stage, "foreseen_one", "torch", "seen")
    zygote = warming.complete(stage, first)
    try:
        assert zygote.forecast == {"foreseen_one", "torch"}
        assert zygote.failed == ()
    finally:
        zygote.close()


def test_a_forecast_of_what_is_not_imported_is_thrown_away(stage):
    (stage.packages / "foreseen_one.py").write_text(SLEEPS)  # nobody waits for it
    warming = Warming()
    warming.begin(stage)
    zygote = warming.complete(stage, first_run(stage, "torch"))
    try:
        assert zygote.forecast == {"torch"}
    finally:
        zygote.close()


def test_a_forecast_that_ends_its_process_is_said(stage):
    (stage.packages / "foreseen_one.py").write_text("import os\nos._exit(3)\n")
    warming = Warming()
    warming.begin(stage)
    with pytest.raises(HarnessError, match="zygote ended"):
        warming.complete(stage, first_run(stage, "foreseen_one", "torch"))
