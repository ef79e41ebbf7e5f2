"""Groundwork is laid once for equal runs, and again when anything that matters differs."""

from pathlib import Path

import pytest

from spotchaos.campaign.baseline import BaselineFailed
from spotchaos.config.settings import Settings
from spotchaos.launch.isolation.program import Program
from spotchaos.model import Finding
from spotchaos.pytest_support import shared_baselines as shared_baselines


@pytest.fixture
def prepared(monkeypatch):
    """Count what is laid, in the place of real runs."""
    found = []

    class TrialContext:
        zygote = None

    class Ground:
        trial_context = TrialContext()

    def prepare_baseline(settings, program, workspace, emit, *, clock, zygote):
        found.append(settings)
        if program.command[0] == "fails":
            raise BaselineFailed(Finding("baseline-failed", "it fails"))
        return Ground()

    monkeypatch.setattr(shared_baselines, "prepare_baseline", prepare_baseline)
    return found


@pytest.fixture
def layer():
    shared = shared_baselines.SharedBaselines()

    def ask(settings):
        return shared.layer(settings, Program.from_settings(settings), print)

    yield ask
    shared.close()


def make(folder: Path, **more):
    return Settings(**{"command": ("true",), "folder": folder, **more})


def test_other_plans_share_groundwork(prepared, layer, tmp_path):
    first = layer(make(tmp_path))
    again = layer(make(tmp_path, kill_at=("step-end:3",), signal="TERM", trials=9))
    assert again is first
    assert len(prepared) == 1


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"command": ("false",)}, id="command"),
        pytest.param({"threads": 2}, id="threads"),
        pytest.param({"seed_program": 1}, id="seed"),
        pytest.param({"environment": {"A": "1"}}, id="environment"),
        pytest.param({"resume_cmd": ("true", "--resume")}, id="resume-command"),
    ],
)
def test_another_run_has_its_own(prepared, layer, tmp_path, more):
    layer(make(tmp_path))
    layer(make(tmp_path, **more))
    assert len(prepared) == 2


def test_a_changed_file_in_the_folder_has_its_own(prepared, layer, tmp_path):
    layer(make(tmp_path))
    (tmp_path / "data.txt").write_text("more")
    layer(make(tmp_path))
    assert len(prepared) == 2


def test_a_changed_variable_of_the_process_has_its_own(
    prepared, layer, tmp_path, monkeypatch
):
    layer(make(tmp_path))
    monkeypatch.setenv("LEARNING_RATE", "0.1")
    layer(make(tmp_path))
    assert len(prepared) == 2


def test_a_failure_is_remembered(prepared, layer, tmp_path):
    for _ in range(2):
        with pytest.raises(BaselineFailed):
            layer(make(tmp_path, command=("fails",)))
    assert len(prepared) == 1


def test_only_so_many_are_kept(prepared, layer, tmp_path):
    for threads in range(1, shared_baselines.MOST_KEPT + 2):
        layer(make(tmp_path, threads=threads))
    layer(make(tmp_path, threads=1))
    assert len(prepared) == shared_baselines.MOST_KEPT + 2


def test_what_is_used_most_is_kept_however_many_come_between(prepared, layer, tmp_path):
    layer(make(tmp_path))
    layer(make(tmp_path))
    for threads in range(2, shared_baselines.MOST_KEPT + 5):
        layer(make(tmp_path, threads=threads))
    before = len(prepared)
    layer(make(tmp_path))
    assert len(prepared) == before
