"""One small trainer, its groundwork laid once, interrupted in every way there is."""

import dataclasses
import shutil
import sys
from pathlib import Path

import pytest

from spotchaos.campaign.baseline import prepare_baseline
from spotchaos.campaign.campaign import run
from spotchaos.clock import SystemClock
from spotchaos.config.settings import Settings
from spotchaos.injectors.polling import Polls
from spotchaos.launch.isolation.program import Program
from spotchaos.launch.isolation.workspace import Workspace

PROGRAM = Path(__file__).with_name("habits.py")


@pytest.fixture(scope="session")
def interrupted(tmp_path_factory):
    """Return a function that runs one campaign on the trainer with some habits."""
    folder = tmp_path_factory.mktemp("trainer")
    shutil.copy(PROGRAM, folder / "train.py")
    (folder / "habits").write_text("")
    command = (sys.executable, "train.py")
    first = Settings(command=command, folder=folder)
    with Workspace(folder) as workspace:
        program = Program.from_settings(first)
        baseline_context = prepare_baseline(
            first, program, workspace, lambda event: None, clock=SystemClock()
        )

        def interrupted(habits, *, polls=None, **given):
            (folder / "habits").write_text(habits)
            settings = dataclasses.replace(first, **given)
            # With other habits it is another program: what it asked is forgotten.
            trial_context = dataclasses.replace(
                baseline_context.trial_context, polls=polls or Polls()
            )
            mine = dataclasses.replace(baseline_context, trial_context=trial_context)
            return run(settings, lambda event: None, layer=lambda *_: mine)

        yield interrupted
        if baseline_context.trial_context.zygote is not None:
            baseline_context.trial_context.zygote.close()
