"""The reference trainer is held under everything that is wired here."""

import dataclasses
import sys

import pytest

from spotchaos.baseline import lay
from spotchaos.campaign import run
from spotchaos.clock import SystemClock
from spotchaos.launch.program import Program
from spotchaos.launch.workspace import Workspace
from spotchaos.model import Verdict
from spotchaos.settings import Settings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Return a function that runs one campaign on the reference trainer, one rank."""
    folder = tmp_path_factory.mktemp("reference")
    options = ("--ranks", "1", "--steps", "30", "--save-every", "5", "--batch", "2")
    command = (sys.executable, "-m", "spotchaos.training", *options)
    first = Settings(command=command, folder=folder, notice="aws")
    with Workspace(folder) as workspace:
        program = Program.from_settings(first)
        ground = lay(first, program, workspace, lambda event: None, clock=SystemClock())

        def reference(**given):
            settings = dataclasses.replace(first, **{"notice": None, **given})
            return run(settings, lambda event: None, layer=lambda *_: ground)

        yield reference
        if ground.stage.zygote is not None:
            ground.stage.zygote.close()


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"signal": "TERM"}, id="term"),
        pytest.param({"signal": "STOP"}, id="stop"),
        pytest.param({"notice": "aws", "time_scale": 6}, id="notice-aws"),
        pytest.param({"lose": "machine", "move": True}, id="machine"),
        pytest.param({"fault": ("enospc:last",)}, id="no-space"),
        pytest.param({"fault": ("eio:9",)}, id="input-output"),
        pytest.param({"fault": ("rename-refused:last",)}, id="rename"),
        pytest.param({"fault": ("bit-flip",)}, id="bit-flip"),
        pytest.param({"fault": ("zero-page",)}, id="zero-page"),
        pytest.param({"fault": ("clock-skew",)}, id="skew"),
    ],
)
def test_the_reference_trainer_is_held(reference, given):
    if "fault" not in given:
        given = {**given, "kill_at": ("step-end:12",)}
    outcome = reference(**given)
    found = [f"{f.name}: {f.message}" for _, j in outcome.trials for f in j.findings]
    assert outcome.trouble is None
    assert found == []
    assert outcome.verdict is Verdict.HELD
