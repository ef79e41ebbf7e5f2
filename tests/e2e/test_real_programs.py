"""The verdict on each program of EXPECTED.toml: one campaign, in the middle of an epoch."""

import os
import shutil
import sys
import tomllib
from pathlib import Path

import pytest

from spotchaos.campaign.campaign import run
from spotchaos.config.settings import Settings

FOLDER = Path(__file__).parents[2] / "scenarios" / "programs"
PROGRAMS = tomllib.loads((FOLDER / "EXPECTED.toml").read_text())["programs"]

FRAMEWORKS = ("transformers", "accelerate", "lightning")
# Correct twins of a flawed program that is tried, and programs whose case the tests of
# the probe or the oracles cover as well.
SLOW = (
    "toy",
    "ema_dict",
    "averaged_model",
    "bn_buffers",
    "amp_cpu_scaler",
    "resume_scheduler_rebuilt",
    "iterable_dataset",
    "gan_two_optimizers",
    "lbfgs",
    "detector_epochs",
    "detector_epochs_updates_not_loaded",
    "critic_penalty",
    "critic_penalty_networks_only",
    "replay_memory",
    "replay_memory_not_saved",
    "seed_each_update",
    "accumulation_place_not_saved",
    "taught_student",
    "class_centres",
    "class_centres_not_saved",
    "tensor_optimizers",
)


def marked(name):
    entry = PROGRAMS[name]
    marks = [pytest.mark.timeout(900)]
    if entry["framework"] in FRAMEWORKS:
        marks.append(pytest.mark.frameworks)
    if entry["ranks"] > 1:
        marks.append(pytest.mark.ddp)
    if name in SLOW:
        marks.append(pytest.mark.slow)
    return pytest.param(name, id=name, marks=marks)


def campaign_of(entry, folder):
    """Run a campaign with one plan on a copy of the program, and return its outcome."""
    shutil.copy(FOLDER / entry["command"][-1], folder)
    beside_us = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    settings = Settings(
        command=tuple(entry["command"]),
        folder=folder,
        kill_at=(entry["kill-at"],),
        environment={"PATH": beside_us},
    )
    return run(settings, lambda event: None)


@pytest.mark.parametrize("name", [marked(n) for n in PROGRAMS])
def test_the_verdict_is_the_one_found_by_hand(name, tmp_path):
    entry = PROGRAMS[name]
    if entry["framework"] in FRAMEWORKS:
        pytest.importorskip(entry["framework"])
    outcome = campaign_of(entry, tmp_path)

    ((trial, judgement),) = outcome.trials or [(None, None)]
    assert judgement is not None, f"{outcome.trouble} {outcome.hint}"
    assert outcome.verdict == entry["verdict"], judgement.findings
    assert outcome.baseline.horizon == entry["steps"]
    assert outcome.baseline.world_size == entry["ranks"]

    found = {finding.name for finding in judgement.findings}
    needed, either = set(entry.get("findings", [])), set(entry.get("any-of", []))
    assert needed <= found
    assert not either or either & found
    assert found <= needed | either | set(entry.get("also", []))
    assert all(f.message and f.hint for f in judgement.findings)
    assert set(entry.get("notes", [])) <= {note.name for note in judgement.notes}

    assert [a.number for a in trial.attempts] == [1, 2]
    (resume,) = judgement.resumes
    assert resume.joined == entry["joins"]
    assert sorted(resume.restored) == list(range(entry["ranks"]))
    for restored in resume.restored.values():
        assert restored.items() >= entry["restored"].items()

    assert [p.name for p in tmp_path.iterdir()] == [entry["command"][-1]]
