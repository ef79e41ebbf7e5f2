import pytest

from spotchaos.config.options import OPTIONS, OUTPUT
from spotchaos.config.settings import Settings


def write(tmp_path, text, name="pyproject.toml"):
    (tmp_path / name).write_text(text)


def test_options_come_from_pyproject(spotchaos, campaign, tmp_path):
    write(
        tmp_path,
        '[project]\nname = "x"\n[tool.spotchaos]\nkill-at = ["step-end:3", "edges"]\n'
        'trials = 9\ngrace = 2.5\nsignal = "TERM"\naccept-refusal = true\n'
        'exit-code = [0, 143]\nresume-cmd = ["python", "r.py", "a b"]\n',
    )
    spotchaos("run", "--", "python", "t.py")
    settings = campaign.settings
    assert settings.kill_at == ("step-end:3", "edges")
    assert (settings.trials, settings.grace_s, settings.signal) == (9, 2.5, "TERM")
    assert settings.accept_refusal
    assert settings.exit_code == (0, 143)
    assert settings.resume_cmd == ("python", "r.py", "a b")


def test_the_command_line_wins_over_the_file(spotchaos, campaign, tmp_path):
    write(tmp_path, "trials = 9\nseed = 4\n", "spotchaos.toml")
    spotchaos("run", "--trials", "2", "--", "python", "t.py")
    assert (campaign.settings.trials, campaign.settings.seed) == (2, 4)


def test_the_own_file_wins_over_pyproject(spotchaos, campaign, tmp_path):
    write(tmp_path, "[tool.spotchaos]\ntrials = 9\n")
    write(tmp_path, "trials = 3\n", "spotchaos.toml")
    spotchaos("run", "--", "python", "t.py")
    assert campaign.settings.trials == 3


def test_a_pyproject_of_others_is_left_alone(spotchaos, campaign, tmp_path):
    write(tmp_path, "[tool.ruff]\nline-length = 88\n")
    assert spotchaos("run", "--", "python", "t.py").exit_code == 0


def test_outputs_can_stand_in_the_file(spotchaos, campaign, tmp_path):
    write(tmp_path, 'json = "report.json"\n', "spotchaos.toml")
    spotchaos("run", "--", "python", "t.py")
    assert (tmp_path / "report.json").exists()


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        pytest.param(
            "[tool.spotchaos]\nseed = 1\nkil-at = 'random'\n",
            "unknown option 'kil-at' in pyproject.toml, line 3",
            "did you mean 'kill-at'?",
            id="near-miss",
        ),
        pytest.param(
            "[tool.spotchaos]\ntrials = true\n",
            "'trials' in pyproject.toml, line 2 is True",
            "write N",
            id="boolean-for-number",
        ),
        pytest.param(
            "[tool.spotchaos]\nredact = 'yes'\n",
            "'redact' in pyproject.toml, line 2 is 'yes'",
            "write true or false",
            id="text-for-switch",
        ),
        pytest.param(
            "[tool.spotchaos]\n\ntrials = 'x'\n",
            "'trials' in pyproject.toml, line 3 is 'x'",
            "write N",
            id="text-for-number",
        ),
        pytest.param(
            "[tool.spotchaos]\nsignal = {a = 1}\n",
            "'signal' in pyproject.toml, line 2",
            "write NAME",
            id="table-for-text",
        ),
        pytest.param(
            "[tool.spotchaos.trials]\nx = 1\n",
            "'trials' in pyproject.toml, line 1",
            "write N",
            id="sub-table",
        ),
        pytest.param(
            "[tool]\nspotchaos = 3\n", "is no table", "[tool.spotchaos]", id="no-table"
        ),
    ],
)
def test_a_slip_in_the_file_names_file_and_line(
    spotchaos, campaign, tmp_path, text, message, hint
):
    write(tmp_path, text)
    result = spotchaos("run", "--", "python", "t.py")
    assert result.exit_code == 2
    assert campaign.settings is None
    assert message in result.stderr
    assert hint in result.stderr


def test_a_file_that_is_no_toml_is_named(spotchaos, campaign, tmp_path):
    write(tmp_path, "trials = \n", "spotchaos.toml")
    result = spotchaos("run", "--", "python", "t.py")
    assert result.exit_code == 2
    assert "spotchaos.toml is no TOML" in result.stderr
    assert "line 1" in result.stderr


def test_every_option_but_outputs_is_a_setting():
    fields = set(Settings.__dataclass_fields__)
    for option in OPTIONS:
        if option.heading != OUTPUT and option.name != "grace":
            assert option.target in fields, option.name


def test_every_setting_is_an_option():
    given = {option.target for option in OPTIONS} | {"grace_s", "grace_steps"}
    ours = {"command", "folder", "environment", "warm", "known", "today"}
    ours.add("reference_trainer")
    assert set(Settings.__dataclass_fields__) - ours <= given


def test_no_two_options_share_a_name():
    assert len({option.name for option in OPTIONS}) == len(OPTIONS)
