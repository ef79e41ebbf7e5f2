"""A program that saves to an object store and to no file is interrupted and judged like others."""

import dataclasses
import shutil
import sys
from pathlib import Path

import pytest

from spotchaos.campaign.baseline import prepare_baseline
from spotchaos.campaign.campaign import run
from spotchaos.clock import SystemClock
from spotchaos.config.settings import Settings
from spotchaos.launch.isolation.program import Program
from spotchaos.launch.isolation.workspace import Workspace
from spotchaos.model import Verdict
from spotchaos.report.document import make_document
from spotchaos.report.screen import plain, screen

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PROGRAM = Path(__file__).with_name("storing.py")


@pytest.fixture(scope="module")
def storing(tmp_path_factory):
    """Return a function that runs one campaign on the trainer with some habits."""
    folder = tmp_path_factory.mktemp("storing")
    shutil.copy(PROGRAM, folder / "train.py")
    (folder / "habits").write_text("")
    first = Settings(
        command=(sys.executable, "train.py"),
        folder=folder,
        durable="s3://my-ckpts/runs",
        lose="machine",
    )
    with Workspace(folder) as workspace:
        program = Program.from_settings(first)
        baseline_context = prepare_baseline(
            first, program, workspace, lambda event: None, clock=SystemClock()
        )

        def storing(habits, *plans, **given):
            (folder / "habits").write_text(habits)
            settings = dataclasses.replace(first, kill_at=plans, **given)
            return run(settings, lambda event: None, layer=lambda *_: baseline_context)

        yield storing
        if baseline_context.trial_context.zygote is not None:
            baseline_context.trial_context.zygote.close()


def names(outcome):
    assert outcome.trouble is None, outcome.trouble
    return sorted({f.name for _, judged in outcome.trials for f in judged.findings})


@pytest.mark.parametrize("habit", ["", "background"])
def test_it_is_struck_at_saves_and_before_uploads(storing, habit):
    plans = (
        "save-begin:2",
        "upload-part:2",
        "save-end:1",
        "step-end:25",
        "step-end:20",
    )
    outcome = storing(habit, *plans)
    assert names(outcome) == []
    assert outcome.verdict is Verdict.HELD
    landed = [trial.attempts[0].kill_point for trial, _ in outcome.trials]
    assert landed == list(plans)
    assert [t.attempts[0].trace.completed for t, _ in outcome.trials[:1]] == [20]


def test_a_start_from_the_beginning_is_named(storing):
    assert names(storing("restarts", "step-end:25")) == ["silent-restart"]


def test_a_refusal_to_resume_is_accepted_if_that_is_asked_for(storing):
    assert names(storing("refuses", "step-end:25")) == ["resume-failed"]
    outcome = storing("refuses", "step-end:25", accept_refusal=True)
    assert outcome.verdict is Verdict.HELD
    shown = " ".join(plain(screen(make_document(outcome))).split())
    assert "The attempt after an interruption refused to go on, with an error" in shown


def test_an_upload_that_is_refused_ends_the_run_and_no_more(storing):
    outcome = storing("", "step-end:25", fault=("s3-403:2",))
    assert names(outcome) == []
    ((trial, _),) = outcome.trials
    assert [s.times for a in trial.attempts for s in a.injected] == [1]
