"""What is known of common ways to save comes out of an exploration, with line and token."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spotchaos.config.replay_token import decode
from spotchaos.config.settings import Settings
from spotchaos.persistence.tokens import in_recording

SCENARIOS = Path(__file__).parents[2] / "scenarios" / "programs"
PROGRAMS = Path(__file__).parent / "programs"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


def findings(document, severity=None):
    return {
        entry["finding"]
        for entry in document["classes"]
        if severity in (None, entry["severity"])
    }


def line_of(document, finding):
    """Return the source line of the class's op, as the program has it."""
    entry = next(e for e in document["classes"] if e["finding"] == finding)
    place = entry["where"]
    source = (PROGRAMS / place["file"]).read_text().splitlines()
    return source[place["line"] - 1]


def needs(*names):
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {missing}")


def test_a_save_in_place_is_torn_by_a_kill(toy):
    document = toy("in_place")
    assert document["verdict"] == "violated"
    assert "torn-checkpoint" in findings(document, "kill")
    assert "torch.save" in line_of(document, "torn-checkpoint")


def test_in_place_some_power_losses_load_silently(toy, monkeypatch):
    # A block lost amid a tensor: with small ones it would take a header along.
    monkeypatch.setenv("WIDTH", "1024")
    document = toy("in_place", power_loss="posix", saves=1)
    assert "silent-damage" in findings(document, "power loss")
    assert "torch.save" in line_of(document, "silent-damage")


@pytest.mark.parametrize("how", ["replaced", "numbered"])
def test_a_rename_without_fsync_outlives_kills_and_no_power_loss(toy, how):
    document = toy(how, power_loss="all")
    assert findings(document, "kill") == set()
    assert "unsynced-checkpoint" in findings(document, "power loss")


def test_the_full_protocol_holds_under_every_model(toy):
    document = toy("durable", power_loss="all")
    assert document["verdict"] == "held"
    assert document["classes"] == []
    assert document["coverage"]["crash_states"]["held"] > 20


def test_a_pointer_that_is_deleted_first_leaves_a_window_without_one(toy):
    document = toy("pointed")
    assert "deleted-before-saved" in findings(document, "kill")
    assert "unlink" in line_of(document, "deleted-before-saved")


def test_a_pointer_that_is_moved_first_runs_ahead(toy):
    document = toy("pointed_early")
    assert "pointer-ahead" in findings(document, "kill")


def test_a_folder_that_a_killed_save_left_blocks_the_next(toy):
    assert "leftover-blocks-save" in findings(toy("blocked"), "kill")


def test_a_checkpoint_that_is_deleted_before_the_next_is_whole(toy):
    assert "deleted-before-saved" in findings(toy("deleted"), "kill")


@pytest.mark.parametrize("how", ["by_time", "by_child"])
def test_a_choice_by_file_time_and_a_child_that_saves_are_right(toy, how):
    document = toy(how, saves=None)
    assert document["classes"] == []
    assert document["verdict"] == "held"
    assert document["coverage"]["crash_states"]["held"] > 20


def test_a_position_in_a_file_of_its_own_may_be_of_another_save(toy):
    document = toy("apart")
    assert "mixed-steps" in findings(document, "kill")
    assert "os.replace" in line_of(document, "mixed-steps")


def test_a_program_that_never_saves_is_told_so(toy):
    assert "no-checkpoint" in findings(toy("never"))


def replayed(token, folder, how):
    """Replay a token on the command line; return its exit status, screen and report."""
    shutil.copy(PROGRAMS / "toy.py", folder)
    report = folder / "report.json"
    command = ["replay", token, "--json", str(report), "--", "python", "toy.py", how]
    done = subprocess.run(
        [sys.executable, "-m", "spotchaos", *command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout + done.stderr, json.loads(report.read_text())


def token_of(document, severity):
    entry = next(c for c in document["classes"] if c["severity"] == severity)
    trial = next(t for t in document["trials"] if t["number"] == entry["trial"])
    return entry, trial["replay"]


def test_the_token_of_a_kill_really_kills_there(toy, tmp_path):
    entry, token = token_of(toy("pointed"), "kill")
    assert in_recording(decode(token)["plan"]) is None
    status, screen, again = replayed(token, tmp_path, "pointed")
    assert status == 1, screen
    first, second = again["trials"][0]["attempts"]
    assert first["ended"] == "reclaimed"
    assert again["trials"][0]["plan"] == f"file-op:{entry['state'][2:]}@all"
    assert second["started_from"] == 0  # there was no pointer any more


def test_the_token_of_a_power_loss_builds_its_state_again(toy, tmp_path):
    entry, token = token_of(toy("replaced", power_loss="all"), "power loss")
    assert in_recording(decode(token)["plan"]) is not None
    status, screen, again = replayed(token, tmp_path, "replaced")
    assert status == 1, screen
    [seen] = again["classes"]
    assert (seen["state"], seen["finding"]) == (entry["state"], entry["finding"])


def test_a_token_of_another_recording_is_refused(toy, tmp_path):
    _, token = token_of(toy("replaced", power_loss="all"), "power loss")
    status, screen, again = replayed(token, tmp_path, "numbered")
    assert status == 3
    assert again["verdict"] == "unknown"
    assert "not those that the token was made from" in " ".join(screen.split())


def sharded(explored, how, **options):
    return explored(PROGRAMS / "sharded.py", how, saves=2, **options)


def test_dcp_into_one_folder_mixes_two_steps(explored):
    assert "mixed-steps" in findings(sharded(explored, "one_folder"), "kill")


def test_dcp_into_a_folder_per_step_outlives_kills_and_no_power_loss(explored):
    document = sharded(explored, "folders", power_loss="all")
    assert findings(document, "kill") == set()
    assert "unsynced-checkpoint" in findings(document, "power loss")


@needs("safetensors")
def test_safetensors_outlives_kills_and_no_power_loss(explored):
    document = sharded(explored, "safetensors", power_loss="all")
    assert findings(document, "kill") == set()
    assert findings(document, "power loss") & {"unsynced-checkpoint", "silent-damage"}


@needs("accelerate")
def test_accelerate_takes_the_newest_folder_though_it_is_not_whole(explored):
    document = explored(SCENARIOS / "accelerate_seedable.py", saves=2)
    assert "torn-checkpoint" in findings(document, "kill")


@pytest.mark.frameworks
@needs("transformers", "accelerate")
def test_the_hf_trainer_takes_a_folder_that_is_not_whole(explored):
    document = explored(SCENARIOS / "hf_trainer.py", saves=2)
    assert "torn-checkpoint" in findings(document, "kill")


@pytest.mark.frameworks
@needs("lightning")
def test_lightning_is_torn_where_tmpdir_is_another_filesystem(explored):
    program = SCENARIOS / "lightning_fit.py"
    # Its random streams it restores not even after a clean stop.
    assert findings(explored(program, saves=2), "kill") <= {"rng-not-restored"}
    elsewhere = explored(program, saves=2, tmp_elsewhere=True)
    assert "torn-checkpoint" in findings(elsewhere, "kill")


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.ddp)])
def test_the_reference_trainer_holds_under_every_model(tmp_path, ranks):
    from spotchaos.explore.exploration import explore

    command = ("python", "-m", "spotchaos.training", "--out", "{out}")
    command += ("--ranks", str(ranks), "--steps", "12", "--save-every", "3")
    settings = Settings(
        command=command,
        folder=tmp_path,
        saves=2,
        power_loss="all",
        ranks=ranks if ranks > 1 else None,
    )
    outcome = explore(settings, lambda event: None)
    assert outcome.extra["classes"] == []
    assert str(outcome.verdict) == "held"
