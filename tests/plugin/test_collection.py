"""What is a scenario, what it is called, and what is wrong with it, at file and line."""

import subprocess
import sys

import pytest

from tests.plugin.conftest import CLAIM

HEAVY = {
    "torch",
    "numpy",
    "msgspec",
    "click",
    "rich",
    "hypothesis",
    "moto",
    "responses",
}


def test_loading_the_plugin_imports_almost_nothing():
    code = "import sys, spotchaos.pytest_plugin; print(*sys.modules)"
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    found = {name.partition(".")[0] for name in said.stdout.split()}
    assert "spotchaos" in found
    assert not found & HEAVY


def test_a_scenario_is_a_test_whose_name_is_its_claim(repository):
    repository.write()
    result = repository.pytest("--collect-only", "-q")
    result.stdout.fnmatch_lines(
        ["scenarios/reclaim.toml::a reclaim between two saves loses nothing but time"]
    )


def test_other_toml_files_are_no_scenarios(repository):
    repository.write("[tool.x]\na = 1\n", "pyproject.toml")
    repository.write("a = 1\n", "settings/other.toml")
    repository.write("kill-at = ['random']\n", "scenarios/spotchaos.toml")
    assert repository.pytest("--collect-only").ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_a_file_named_on_the_command_line_is_a_scenario_wherever_it_lies(repository):
    repository.write(name="gate.toml")
    result = repository.pytest("--collect-only", "-q", "gate.toml")
    result.stdout.fnmatch_lines(["gate.toml::a reclaim between*"])


BAD = [
    pytest.param("summary = 'a'\n[expect\n", "*bad.toml*line 2*", id="no-toml"),
    pytest.param(
        CLAIM.replace("kill-at", "kil-at"),
        "*bad.toml, line 2: unknown key 'kil-at'*",
        id="unknown-key",
    ),
    pytest.param(CLAIM.replace("kill-at", "kil-at"), "*'kill-at'*", id="near-miss"),
    pytest.param(
        CLAIM.replace("step-end:7", "step-edn:7"),
        "*bad.toml, line 2*unknown site 'step-edn'*",
        id="unknown-site",
    ),
    pytest.param(
        CLAIM + 'findings = ["hang"]\n',
        "*bad.toml, line 6: a run that held has no findings*",
        id="held-with-findings",
    ),
    pytest.param(
        CLAIM.replace('"held"', '"hold"'), "*bad.toml, line 5: *'hold'*", id="verdict"
    ),
    pytest.param(
        CLAIM.split("\n[")[0] + "\n", "*no [[]expect[]] table*", id="no-expectation"
    ),
    pytest.param(
        "specimen = 'forgets_rgn'\n" + CLAIM,
        "*bad.toml, line 1: there is no specimen 'forgets_rgn'*",
        id="unknown-specimen",
    ),
    pytest.param(
        "specimen = 'diverged'\ncommand = 'python x.py'\n" + CLAIM,
        "*bad.toml, line 1: both a command and a specimen*",
        id="two-programs",
    ),
    pytest.param(
        "slow = 'yes'\n" + CLAIM, "*bad.toml, line 1: slow is 'yes'*", id="slow"
    ),
]


@pytest.mark.parametrize(("text", "said"), BAD)
def test_what_is_wrong_is_said_at_its_line(repository, text, said):
    repository.write(text, "scenarios/bad.toml")
    result = repository.pytest()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines([said])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_two_scenarios_of_one_claim_are_an_error(repository):
    repository.write()
    repository.write("\n" + CLAIM, "scenarios/again.toml")
    result = repository.pytest()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*line 1: again.toml makes the same claim*"])


def test_what_pytest_would_read_as_syntax_is_kept_out_of_names(repository):
    repository.write(CLAIM.replace("two saves", "saves::two [of  them]"))
    result = repository.pytest("--collect-only", "-q")
    result.stdout.fnmatch_lines(["*::a reclaim between saves:two (of them) loses*"])
