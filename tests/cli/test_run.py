import json
import sys
from pathlib import Path

import pytest

from spotchaos.config.settings import Settings
from spotchaos.model import Verdict


@pytest.mark.parametrize(
    ("name", "status"),
    [
        pytest.param("held", 0, id="held"),
        pytest.param("violated", 1, id="violated"),
        pytest.param("unknown", 3, id="unknown"),
    ],
)
def test_the_status_is_the_verdicts(spotchaos, campaign, outcomes, name, status):
    campaign.outcome = getattr(outcomes, name)()
    result = spotchaos("run", "--", "python", "train.py")
    assert result.exit_code == status
    assert f"\n{name.upper()}" in result.stdout


def test_everything_after_the_dashes_is_the_program(spotchaos, campaign):
    spotchaos("run", "--seed", "3", "--", "python", "t.py", "--seed", "9", "--", "x")
    assert campaign.settings.command == ("python", "t.py", "--seed", "9", "--", "x")
    assert campaign.settings.seed == 3


def test_without_a_program_it_is_the_reference_trainer(spotchaos, campaign):
    spotchaos("run")
    expected = (sys.executable, "-m", "spotchaos.training", "--out", "{out}")
    assert campaign.settings.command == expected


@pytest.mark.parametrize(
    ("story", "watched"),
    [("azure", "azure"), ("aws-rebalance", "aws"), ("slurm", None)],
)
def test_the_reference_trainer_watches_for_the_notice_that_is_played(
    spotchaos, campaign, story, watched
):
    spotchaos("run", "--notice", story)
    more = () if watched is None else ("--watch", watched)
    assert campaign.settings.command[5:] == more


def test_options_become_settings(spotchaos, campaign, tmp_path):
    spotchaos(
        "run",
        *("--kill-at", "step-end:3", "--kill-at", "save-begin:2,step-end:1"),
        *("--signal", "sigterm", "--grace", "3steps", "--to", "rank:1"),
        *("--timeout", "2min", "--budget", "90s", "--exit-code", "143,-15"),
        *("--fail-on", "hang, diverged", "--resume-cmd", "python r.py 'a b'"),
        *("--promise", "state", "--ranks", "2", "--keep", "kept"),
        *("--accept-refusal", "--deterministic", "--", "python", "t.py"),
    )
    assert campaign.settings == Settings(
        command=("python", "t.py"),
        folder=tmp_path,
        kill_at=("step-end:3", "save-begin:2,step-end:1"),
        signal="TERM",
        grace_steps=3,
        to="rank:1",
        timeout_s=120.0,
        budget_s=90.0,
        exit_code=(143, -15),
        fail_on=("hang", "diverged"),
        resume_cmd=("python", "r.py", "a b"),
        promise="state",
        ranks=2,
        keep=Path("kept"),
        accept_refusal=True,
        deterministic=True,
    )


@pytest.mark.parametrize(
    "args",
    [
        pytest.param(["--trials", "0"], id="no-trials"),
        pytest.param(["--trials", "many"], id="no-number"),
        pytest.param(["--grace", "soon"], id="grace"),
        pytest.param(["--grace", "-1"], id="negative-grace"),
        pytest.param(["--timeout", "0"], id="no-time"),
        pytest.param(["--signal", "TREM"], id="signal"),
        pytest.param(["--to", "rank:x"], id="whom"),
        pytest.param(["--to", "rank:0,"], id="no-second-rank"),
        pytest.param(["--promise", "all"], id="promise"),
        pytest.param(["--exit-code", "0;1"], id="exit-codes"),
        pytest.param(["--resume-cmd", "'open"], id="quotes"),
        pytest.param(["--fail-on", "rng"], id="finding"),
        pytest.param(["--kill-at", "120%"], id="share"),
        pytest.param(["--kill-at", "step-end"], id="no-count"),
        pytest.param(["--json", "no/such/folder/x.json"], id="unwritable"),
    ],
)
def test_a_bad_value_is_refused_before_anything_runs(spotchaos, campaign, args):
    result = spotchaos("run", *args, "--", "python", "t.py")
    assert result.exit_code == 2
    assert campaign.settings is None
    assert result.stderr.startswith("spotchaos: ")
    assert "\nHint: " in result.stderr


def test_reports_are_written_in_each_form(spotchaos, campaign, outcomes, tmp_path):
    campaign.outcome = outcomes.violated()
    formats = ("json", "jsonl", "junit", "sarif", "html")
    args = [word for name in formats for word in (f"--{name}", f"out.{name}")]
    result = spotchaos("run", *args, "--github", "--issue", "1", "--", "python", "t.py")
    assert result.exit_code == 1
    for name in formats:
        assert (tmp_path / f"out.{name}").stat().st_size > 0
    assert json.loads((tmp_path / "out.json").read_text())["verdict"] == "violated"
    assert "\n::error " in result.stdout
    assert "\n# After an interruption" in result.stdout


def test_redaction_reaches_the_files(
    spotchaos, campaign, outcomes, monkeypatch, tmp_path
):
    monkeypatch.setenv("MY_API_KEY", "correcthorse")
    campaign.outcome = outcomes.make_outcome(
        Verdict.UNKNOWN, trouble=f"correcthorse in {tmp_path}/x", baseline=None
    )
    files = ("--json", "r.json", "--jsonl", "r.jsonl")
    spotchaos("run", "--redact", *files, "--", "python", "t.py")
    for name in ("r.json", "r.jsonl"):
        text = (tmp_path / name).read_text()
        assert "[redacted] in ./x" in text
        assert "correcthorse" not in text
        assert str(tmp_path) not in text


def test_interrupted_at_once_says_what_was_done(spotchaos, campaign):
    campaign.raises = KeyboardInterrupt()
    result = spotchaos("run", "--", "python", "t.py")
    assert result.exit_code == 3
    assert "interrupted; 0 trials done" in result.stdout


def test_an_interrupted_campaign_never_holds(spotchaos, campaign, outcomes):
    campaign.outcome = outcomes.make_outcome(
        Verdict.HELD, [outcomes.held_pair(1)], interrupted=True
    )
    result = spotchaos("run", "--", "python", "t.py")
    assert result.exit_code == 3
    assert "interrupted before the end" in result.stdout
