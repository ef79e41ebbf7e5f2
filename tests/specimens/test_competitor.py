"""ckpt-chaos is asked only what it can answer, and its answer is told in one line."""

import pytest

from spotchaos.harness import competitor
from spotchaos.harness.specimens import read_table

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
        pytest.param("signal_ignored", False, id="signal"),
        pytest.param("ranks_disagree", False, id="ranks"),
        pytest.param("recipe_no_token", False, id="metadata-address"),
        pytest.param("recipe_resplit", False, id="launcher"),
        pytest.param("not_observed", False, id="without-a-model"),
    ],
)
def test_it_is_asked_what_it_can_be_asked(name, can):
    specimen = TABLE[name]
    assert competitor.can_be_asked(specimen, specimen.mutant) is can
