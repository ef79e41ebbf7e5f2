"""What is asked for is what is done: no option eats the program, no gate tests nothing."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from spotchaos.config.options import OPTIONS
from spotchaos.config.replay_token import encode
from spotchaos.launch.isolation import mechanisms
from spotchaos.report.document import make_document
from spotchaos.report.formats import render
from spotchaos.report.screen import REFERENCE_TESTED

ROOT = Path(__file__).parents[2]
TOKEN = encode({"plan": "step-end:1"})
OF_FILES = [o for o in OPTIONS if o.metavar in ("FILE", "DIR", "DIR|URL")]
_BEFORE = {"run": [], "explore": [], "replay": [TOKEN], "report": ["r.json"]}


@pytest.mark.parametrize("word", ["--", "-", "-x.json", "--json", ""])
@pytest.mark.parametrize(
    ("command", "option"),
    [
        pytest.param(command, option.name, id=f"{command}-{option.name}")
        for option in OF_FILES
        for command in option.commands
    ],
)
def test_no_option_takes_the_next_option_for_its_file(
    spotchaos,
    campaign,
    tmp_path,
    command,
    option,
    word,
):
    args = [*_BEFORE[command], f"--{option}", word]
    result = spotchaos(command, *args, "python", "t.py")
    assert result.exit_code == 2
    assert f"--{option} is {word!r}, which is no name of a file" in result.stderr
    assert campaign.settings is None
    assert list(tmp_path.iterdir()) == []


def test_each_option_that_names_a_file_is_known_here():
    names = {option.name for option in OF_FILES}
    assert names == {"json", "jsonl", "junit", "sarif", "html", "keep", "durable"}


@pytest.mark.parametrize("more", [[], [""], ["  "], ["", "train.py"]])
@pytest.mark.parametrize("command", ["run", "explore", "replay"])
def test_an_empty_variable_after_the_dashes_tests_nothing(
    spotchaos,
    campaign,
    command,
    more,
):
    result = spotchaos(command, *_BEFORE[command], "--", *more)
    assert result.exit_code == 2
    assert "no program is named" in result.stderr
    assert campaign.settings is None


@pytest.mark.parametrize("command", ["run", "replay"])
def test_the_reference_trainer_is_said_first_and_in_the_report(
    spotchaos,
    campaign,
    outcomes,
    tmp_path,
    command,
):
    def as_asked(settings, listener):
        import dataclasses

        outcome = dataclasses.replace(outcomes.held(), settings=settings)
        for event in outcomes.events(outcome):
            listener(event)
        return outcome

    campaign.run = as_asked
    result = spotchaos(command, *_BEFORE[command], "--json", "r.json")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == REFERENCE_TESTED
    assert json.loads((tmp_path / "r.json").read_text())["reference_trainer"]
    again = spotchaos("report", "r.json")
    assert again.stdout.splitlines()[0] == REFERENCE_TESTED
    own = spotchaos(
        command, *_BEFORE[command], "--json", "r.json", "--", "python", "t.py"
    )
    assert REFERENCE_TESTED not in own.stdout
    assert not json.loads((tmp_path / "r.json").read_text())["reference_trainer"]


@pytest.mark.parametrize("key", ["json", "html", "keep", "jsonl"])
@pytest.mark.parametrize("place", ["/tmp/x", "../x", "a/../../x"])
def test_a_folder_s_own_options_write_nothing_outside_of_it(
    spotchaos,
    campaign,
    tmp_path,
    key,
    place,
):
    (tmp_path / "spotchaos.toml").write_text(f"{key} = {place!r}\n")
    result = spotchaos("run", "--", "python", "t.py")
    assert result.exit_code == 2
    assert (
        f"{key!r} in spotchaos.toml, line 1 is {place!r}, which lies" in result.stderr
    )
    assert campaign.settings is None


def test_two_reports_are_not_one_file(spotchaos, campaign, tmp_path):
    result = spotchaos("run", "--json", "r", "--html", "./r", "--", "python", "t.py")
    assert result.exit_code == 2
    assert "name the same file" in result.stderr
    assert not (tmp_path / "r").exists()


@pytest.fixture
def report(outcomes, tmp_path):
    settings = outcomes.make_settings(
        command=("python", "\x1b[2Jt.py", "a b"),
        resume_cmd=("sh", "-c", "x"),
        durable="/d",
    )
    outcome = outcomes.make_outcome(
        outcomes.Verdict.HELD, [outcomes.held_pair(1)], settings=settings
    )
    (tmp_path / "r.json").write_text(render(make_document(outcome)))


@pytest.fixture
def machine(monkeypatch):
    """Return a function that says what this machine cannot protect from."""

    def set_to(*sentences):
        class Found:
            def unprotected(self):
                return list(sentences)

        monkeypatch.setattr(mechanisms, "find_mechanisms", Found)

    return set_to


def test_a_report_s_command_is_printed_before_it_is_run(
    spotchaos,
    campaign,
    report,
    machine,
):
    machine()
    result = spotchaos("replay", "r.json")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[:3] == [
        "command of r.json: python '\\x1b[2Jt.py' 'a b'",
        "resume command of r.json: sh -c x",
        "durable folder of the replay: /d",
    ]


@pytest.mark.parametrize(
    ("args", "runs"),
    [
        ([], False),
        (["--trust"], True),
        (["--", "python", "mine.py"], False),
        (["--resume-cmd", "sh r.sh", "--", "python", "mine.py"], True),
    ],
)
def test_a_report_s_command_is_not_run_unprotected_unless_it_is_trusted(
    spotchaos,
    campaign,
    report,
    machine,
    args,
    runs,
):
    machine("files outside the working folder are not protected: no overlay")
    result = spotchaos("replay", "r.json", *args)
    assert result.exit_code == (0 if runs else 2)
    assert (campaign.settings is not None) == runs
    if not runs:
        assert "would run unprotected: files outside" in result.stderr
        assert "--trust" in result.stderr
        assert "command of r.json: " in result.stdout


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--spotchaos-command", ""),
        ("--spotchaos-command", "  "),
        ("--spotchaos-command", "'open"),
        ("--spotchaos-command", "''"),
        ("--spotchaos-resume-command", ""),
        ("--spotchaos-report", "-x"),
        ("--spotchaos-report", ""),
    ],
)
def test_pytest_takes_no_empty_program_and_no_option_for_a_folder(
    pytester, option, value
):
    pytester.makefile(".toml", one="summary = 'x'\n[expect]\nverdict = 'held'\n")
    ended = pytester.runpytest_subprocess(f"{option}={value}", "one.toml")
    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    ended.stderr.fnmatch_lines([f"*{option} is {value!r}*"])


@pytest.mark.parametrize(
    "command", ['""', '[""]', "[]", '"\'open"', "3", '["a\\u0000"]']
)
def test_a_scenario_names_no_empty_program(tmp_path, command):
    from spotchaos.errors import ScenarioError
    from spotchaos.pytest_support.scenario_file import read_scenario

    path = tmp_path / "one.toml"
    path.write_text(f"summary = 'x'\ncommand = {command}\n[expect]\nverdict = 'held'\n")
    with pytest.raises(ScenarioError, match=r"one\.toml, line 2: command is"):
        read_scenario(path)


@pytest.mark.parametrize(
    ("command", "scenarios"), [("", ""), ("  ", ""), ("\n", " "), ("", "\t")]
)
def test_the_action_fails_where_it_would_test_nothing_of_its_user_s(
    tmp_path, command, scenarios
):
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    [step] = [s for s in action["runs"]["steps"] if s.get("id") == "gate"]
    names = ("PROMISE", "FAIL_ON", "BUDGET", "SHARD", "OPTIONS")
    ended = subprocess.run(
        ["bash", "-c", step["run"]],
        cwd=tmp_path,
        env={
            "PATH": "/usr/bin:/bin",
            **dict.fromkeys(names, ""),
            "REPORT": "report",
            "GITHUB_OUTPUT": "output",
            "COMMAND": command,
            "SCENARIOS": scenarios,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stdout.startswith(
        "::error title=spotchaos::neither 'command' nor 'scenarios' is given"
    )
    assert list(tmp_path.iterdir()) == []
