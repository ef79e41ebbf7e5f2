"""The quick specimens get the same verdicts on a machine that has six other things to do."""

import subprocess
import sys

import pytest

from spotchaos.pytest_support import SPECIMENS
from spotchaos.pytest_support.shared_baselines import SharedBaselines
from spotchaos.pytest_support.specimen_runs import (
    read_table,
    try_program,
    unmet_by_mutant,
    unmet_by_twin,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

LOOPS = 6
QUICK = [one for one in read_table().values() if not one.slow]


@pytest.fixture(scope="module", autouse=True)
def busy():
    """Have six loops run beside the tests; they are ended by their own pids."""
    loops = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(LOOPS)
    ]
    yield
    alive = [loop.poll() is None for loop in loops]
    for loop in loops:
        loop.kill()
        loop.wait()
    assert all(alive)  # else the tests had an easier time than they say


@pytest.fixture(scope="module")
def shared_baselines():
    shared = SharedBaselines(ready=[SPECIMENS])
    yield shared
    shared.close()


@pytest.mark.parametrize(
    "specimen", [pytest.param(one, id=one.name) for one in QUICK if one.finding]
)
def test_a_flawed_program_is_convicted_by_its_name(
    specimen, shared_baselines, tmp_path
):
    outcome = try_program(
        specimen, specimen.mutant, folder=tmp_path, layer=shared_baselines.layer
    )
    assert not unmet_by_mutant(specimen, outcome)


@pytest.mark.parametrize("specimen", [pytest.param(one, id=one.name) for one in QUICK])
def test_a_correct_program_is_acquitted(specimen, shared_baselines, tmp_path):
    outcome = try_program(
        specimen, specimen.mended, folder=tmp_path, layer=shared_baselines.layer
    )
    assert not unmet_by_twin(specimen, outcome)
