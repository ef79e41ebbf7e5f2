"""A zygote imports beside the first run; a forecast that was wrong serves nobody."""

import dataclasses
import os
import sys
import types

import pytest

from spotchaos.campaign.baseline import _Builder
from spotchaos.campaign.zygote_setup import ZygoteSetup, fresh_by_need
from spotchaos.errors import HarnessError
from spotchaos.launch.isolation.program import Program
from spotchaos.model import Attempt, AttemptTrace, Ended, RankTrace, Trial
from spotchaos.trial.context import TrialContext

AS_TORCH = """
import types
cuda = types.SimpleNamespace(is_initialized=lambda: False)
"""
SLEEPS = "import time\ntime.sleep(600)\n"


@pytest.fixture
def trial_context(place, tmp_path):
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


def first_run(trial_context, *modules):
    rank = RankTrace(
        rank=0,
        states={},
        finish=None,
        steps=(),
        saves=(),
        loads=(),
        counts={},
        modules=tuple(
            (name, str(trial_context.packages / f"{name}.py")) for name in modules
        ),
    )
    return Attempt(
        number=1,
        command=trial_context.program.command,
        ended=Ended.FINISHED,
        exit_code=0,
        trace=AttemptTrace({0: rank}, 1, 1, torch_seen=True),
        wall_s=1.0,
    )


def test_a_forecast_that_was_right_is_completed(trial_context):
    zygote_setup = ZygoteSetup()
    zygote_setup.begin(trial_context)
    first = first_run(trial_context, "foreseen_one", "torch", "seen")
    zygote = zygote_setup.complete(trial_context, first)
    try:
        assert zygote.forecast == {"foreseen_one", "torch"}
        assert zygote.failed == ()
    finally:
        zygote.close()


def test_a_forecast_of_what_is_not_imported_is_thrown_away(trial_context):
    (trial_context.packages / "foreseen_one.py").write_text(
        SLEEPS
    )  # nobody waits for it
    zygote_setup = ZygoteSetup()
    zygote_setup.begin(trial_context)
    zygote = zygote_setup.complete(trial_context, first_run(trial_context, "torch"))
    try:
        assert zygote.forecast == {"torch"}
    finally:
        zygote.close()


def test_a_forecast_that_ends_its_process_is_said(trial_context):
    (trial_context.packages / "foreseen_one.py").write_text("import os\nos._exit(3)\n")
    zygote_setup = ZygoteSetup()
    zygote_setup.begin(trial_context)
    with pytest.raises(HarnessError, match="zygote ended"):
        zygote_setup.complete(
            trial_context, first_run(trial_context, "foreseen_one", "torch")
        )


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"command": ("sh", "-c", "exec python prog.py")}, "only a script"),
        ({"command": (sys.executable, "-c", "import prog")}, "only a script"),
        ({"pty": True}, "the program wants a terminal"),
    ],
    ids=["a shell", "code on the command line", "a terminal"],
)
def test_why_nothing_can_be_forked_is_said(trial_context, changed, reason):
    trial_context.program = dataclasses.replace(trial_context.program, **changed)
    with pytest.raises(HarnessError, match=f"no warm path: {reason}"):
        ZygoteSetup().complete(trial_context, first_run(trial_context, "torch"))


def test_nothing_is_said_where_every_run_is_to_be_fresh(trial_context):
    trial_context.settings = types.SimpleNamespace(warm=False)
    assert (
        ZygoteSetup().complete(trial_context, first_run(trial_context, "torch")) is None
    )


@pytest.mark.parametrize(
    ("fresh", "said"),
    [
        ("torch", "a forked run was not the fresh one: it failed"),
        ("other", "its fresh runs are not alike, so that no forked one is trusted"),
    ],
)
def test_a_forked_run_that_is_another_is_said(trial_context, monkeypatch, fresh, said):
    first = first_run(trial_context, "torch")
    ended = dataclasses.replace(first, ended=Ended.FAILED)
    runs = iter([ended, first if fresh == "torch" else ended])
    builder = _Builder(
        TrialContext(
            trial_context.settings, trial_context.program, trial_context.workspace
        ),
        lambda event: None,
    )
    zygote = types.SimpleNamespace(close=lambda: None)
    monkeypatch.setattr(
        builder._zygote_setup, "complete", lambda trial_context, first: zygote
    )
    monkeypatch.setattr(builder, "_run", lambda name: next(runs))
    builder._second_run(first)
    (note,) = builder._notes
    assert note.name == "cold-path"
    assert note.message.startswith(said)
    assert builder._trial_context.zygote is None


TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "prog.py")


@pytest.mark.parametrize(
    ("command", "settings", "said"),
    [
        ((*TORCHRUN,), {"signal": "TERM"}, "every attempt was fresh: what a launcher"),
        ((*TORCHRUN,), {"to": "launcher"}, "every attempt was fresh: what a launcher"),
        ((*TORCHRUN,), {"notice": "aws"}, "every attempt was fresh: what a launcher"),
        ((*TORCHRUN,), {}, None),
        (("prog.py",), {"signal": "TERM"}, None),
        (("prog.py",), {"move": True}, "attempt 2 was fresh: what can be forked knows"),
        (("-c", "import prog"), {}, "attempt 2 was fresh: only a script"),
    ],
    ids=["signal", "launcher", "notice", "ranks", "one process", "moved", "resume-cmd"],
)
def test_a_trial_whose_attempts_cannot_be_forked_says_why(
    trial_context, command, settings, said
):
    given = {"signal": "KILL", "to": "all", "notice": None, "move": False, **settings}
    there = TrialContext(
        types.SimpleNamespace(**given),
        trial_context.program,
        trial_context.workspace,
        zygote=types.SimpleNamespace(serves=lambda start: True),
    )
    first = first_run(trial_context, "torch")
    second = dataclasses.replace(first, number=2, command=(sys.executable, *command))
    if said is None or said.startswith("attempt 2"):
        first = dataclasses.replace(first, path="warm")
    else:
        first = dataclasses.replace(first, command=second.command)
    trial = Trial(number=1, plan="start:1", attempts=(first, second), wall_s=1.0)
    note = fresh_by_need(there, trial)
    assert note is None if said is None else note.message.startswith(said)
