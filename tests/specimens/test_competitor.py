"""ckpt-chaos is asked only what it can answer, and its answer is told in one line."""

import pytest

from spotchaos.pytest_support import competitor
from spotchaos.pytest_support.specimen_runs import read_table

PRINTED = """\
crash point                    newest ok  resume result   weights diff  verdict
#1 os.mkdir:out [before]               -  resumed from step 0  0.00e+00  PASS
#2 torch.save:last.pt [torn]           -  RAISED ExitCode1            -  HARD_FAIL

HARD_FAIL: 6  PASS: 10
"""
TABLE = read_table()


def test_its_verdicts_are_told_worst_first():
    assert competitor.summary(PRINTED, "") == "6 HARD_FAIL, 10 PASS"


def test_what_it_complains_of_is_told_as_it_says_it():
    said = competitor.summary("1/3 fault-free\n", "your command failed on its own\n")
    assert said == "no verdict: your command failed on its own"


@pytest.mark.parametrize(
    ("name", "can"),
    [
        pytest.param("torn_checkpoint", True, id="kills"),
        pytest.param("signal_ignored", True, id="signal"),
        pytest.param("notice_ignored", False, id="notice"),
        pytest.param("ranks_disagree", False, id="ranks"),
        pytest.param("recipe_no_token", False, id="metadata-address"),
        pytest.param("recipe_resplit", False, id="launcher"),
        pytest.param("not_observed", False, id="without-a-model"),
    ],
)
def test_it_is_asked_what_it_can_be_asked(name, can):
    specimen = TABLE[name]
    assert competitor.can_be_asked(specimen, specimen.mutant) is can


@pytest.mark.parametrize(
    ("name", "given"),
    [
        pytest.param("torn_checkpoint", [], id="kill"),
        pytest.param(
            "signal_ignored", ["--modes", "term", "--grace", "5"], id="signal"
        ),
    ],
)
def test_it_is_given_the_options_that_show_the_flaw(name, given):
    specimen = TABLE[name]
    assert competitor.options_of(specimen, specimen.mutant)[6:] == given


def test_it_is_told_how_a_program_resumes():
    specimen = TABLE["foreign_resume"]
    *_, option, command = competitor.options_of(specimen, specimen.mutant)
    assert option == "--resume-cmd"
    assert command.endswith(f"{specimen.mutant} --resume")


COMPLAINS_OF_NAMES = """\
#!/bin/sh
case "$*" in
*--checkpoint-glob*) echo "--checkpoint-glob matched no checkpoint" >&2; exit 1;;
esac
echo "LOST_WORK: 0  PASS: 3"
"""


def test_where_names_tell_no_step_it_is_asked_once_more_without(tmp_path):
    executable = tmp_path / "ckpt-chaos"
    executable.write_text(COMPLAINS_OF_NAMES)
    executable.chmod(0o755)
    specimen = TABLE["torn_checkpoint"]
    said = competitor.ask(specimen, specimen.mutant, executable=str(executable))
    assert said == "0 LOST_WORK, 3 PASS"
