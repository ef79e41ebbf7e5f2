import os
import subprocess
import sys
from pathlib import Path

import pytest

from spotchaos.cli import COMMANDS
from spotchaos.config.settings import NOT_YET
from spotchaos.errors import HarnessError, UsageError


def test_help_lists_every_command(spotchaos):
    result = spotchaos("--help")
    assert result.exit_code == 0
    for name in COMMANDS:
        assert f"\n  {name} " in result.stdout


def test_help_imports_neither_torch_nor_the_campaign():
    code = (
        "import sys\n"
        "from spotchaos.cli import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit as left:\n    assert left.code == 0, left.code\n"
        "heavy = {'torch', 'rich', 'jinja2', 'numpy', 'spotchaos.campaign.campaign',"
        " 'spotchaos.config.settings', 'moto', 'boto3', 'hypothesis', 'psutil'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_the_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "spotchaos", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("spotchaos ")


@pytest.mark.parametrize(
    ("args", "message", "hint"),
    [
        pytest.param(["rn"], "unknown command 'rn'", "did you mean 'run'?", id="run"),
        pytest.param(
            ["wibble"], "unknown command", "`spotchaos --help` lists", id="far-off"
        ),
        pytest.param(
            ["run", "--kil-at", "random"],
            "unknown option '--kil-at'",
            "did you mean '--kill-at'?",
            id="option",
        ),
        pytest.param(
            ["run", "--trials"], "option '--trials' requires", "--help", id="no-value"
        ),
        pytest.param(["report"], "missing argument", "--help", id="no-argument"),
        pytest.param(
            ["run", "--kill-at", "step-en:3", "--", "x"],
            "unknown site 'step-en'",
            "did you mean 'step-end'?",
            id="site",
        ),
        pytest.param(
            ["explain", "rng-not-restord"],
            "unknown finding 'rng-not-restord'",
            "did you mean 'rng-not-restored'?",
            id="finding",
        ),
        pytest.param(
            ["explain", "rng"],
            "unknown finding 'rng'",
            "rng-not-restored, rng-disturbed",
            id="part-of-a-finding",
        ),
        pytest.param(
            ["run", "--kill-at", "5", "--", "x"],
            "kill point '5' names no site",
            "write step-end:5",
            id="a-bare-number",
        ),
    ],
)
def test_a_slip_is_one_sentence_with_a_hint_and_status_2(
    spotchaos, args, message, hint
):
    result = spotchaos(*args)
    assert result.exit_code == 2
    assert result.stdout == ""
    first, second = result.stderr.splitlines()
    assert first.startswith(f"spotchaos: {message}")
    assert second.startswith("Hint: ")
    assert hint in second


@pytest.mark.parametrize("entry", [e for e in NOT_YET if "=" not in e])
def test_what_is_not_here_yet_is_refused_by_name(spotchaos, campaign, entry):
    from spotchaos.config.options import BY_NAME

    if entry not in BY_NAME:
        result = spotchaos(entry, "--", "python", "t.py")
        assert f"does not have the command {entry!r}" in result.stderr
    else:
        values = {"shard": "1/2", "time-scale": "2", "fault": "enospc"}
        value = [] if BY_NAME[entry].metavar is None else [values.get(entry, "aws")]
        result = spotchaos("run", f"--{entry}", *value, "--", "python", "t.py")
        assert f"this release does not have --{entry}" in result.stderr
    assert result.exit_code == 2
    assert campaign.settings is None


def test_help_marks_what_is_not_here_yet(spotchaos):
    from spotchaos.config.options import options_of

    text = " ".join(spotchaos("run", "--help").stdout.split())
    missing = [o for o in options_of("run") if o.name in NOT_YET]
    assert text.count("[not in this release]") == len(missing)
    for option in options_of("run"):
        assert f"--{option.name}" in text


def test_a_command_that_is_not_installed_says_so(spotchaos, monkeypatch):
    from spotchaos.cli import main

    places = main._commands_at
    monkeypatch.setitem(places, "imds", ("spotchaos.cli.not_there", "x"))
    result = spotchaos("imds")
    assert result.exit_code == 2
    assert "this release does not have the command 'imds'" in result.stderr


@pytest.mark.parametrize(
    ("raised", "status", "said"),
    [
        pytest.param(UsageError("no", hint="yes"), 2, "spotchaos: no", id="usage"),
        pytest.param(HarnessError("gone"), 3, "spotchaos: gone", id="harness"),
        pytest.param(ZeroDivisionError("x"), 3, "an internal error", id="internal"),
        pytest.param(
            OSError(28, "No space left on device", "/x/y"),
            3,
            "the system refused '/x/y': No space left on device",
            id="disk-full",
        ),
    ],
)
def test_whatever_is_raised_becomes_a_sentence_and_a_status(
    spotchaos, campaign, monkeypatch, tmp_path, raised, status, said
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    campaign.raises = raised
    result = spotchaos("run", "--", "python", "train.py")
    assert result.exit_code == status
    assert said in result.stderr
    assert "Traceback" not in result.stderr + result.stdout


def test_the_traceback_of_an_internal_error_lies_in_a_file(
    spotchaos, campaign, monkeypatch, tmp_path
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    campaign.raises = ZeroDivisionError("x")
    result = spotchaos("run", "--", "python", "train.py")
    [file] = tmp_path.glob("spotchaos-*.traceback")
    assert str(file) in result.stderr
    assert "ZeroDivisionError" in file.read_text()


def test_a_message_cannot_move_the_cursor(spotchaos):
    result = spotchaos("explain", "\x1b[2Jowned")
    assert "\x1b" not in result.stderr


def test_modules_of_the_program_s_folder_are_not_taken_for_ours(tmp_path):
    for name in ("click", "rich", "msgspec", "psutil"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the program began')")
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "spotchaos", "run", "--help"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Usage: spotchaos run" in done.stdout
