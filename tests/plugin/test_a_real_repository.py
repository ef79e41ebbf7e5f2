"""A repository that has only a `train.py` gets a gate with one TOML file."""

import shutil

import pytest

from spotchaos.pytest_support import SPECIMENS

GATE = """\
summary = "a reclaim half-way changes nothing"
command = "{python} train.py"
kill-at = ["step-end:13"]
jobs = 2

[expect]
verdict = "held"
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "passed"),
    [pytest.param("mended", 1, id="held"), pytest.param("mutants", 0, id="violated")],
)
def test_the_gate_judges_the_repositorys_own_program(pytester, kind, passed):
    program = SPECIMENS / kind / "optimizer_not_restored.py"
    shutil.copy(program, pytester.path / "train.py")
    (pytester.path / "scenarios").mkdir()
    (pytester.path / "scenarios" / "gate.toml").write_text(GATE)
    result = pytester.runpytest_subprocess("scenarios")
    result.assert_outcomes(passed=passed, failed=1 - passed)
    if not passed:
        result.stdout.fnmatch_lines(["*VIOLATED*", "*optimizer-not-restored*"])
    assert not (pytester.path / "checkpoints").exists()
