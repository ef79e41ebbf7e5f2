"""A run that was interrupted and resumed is, bit for bit, the run that was not.

Real processes: few examples, and always the same ones. A failure shrinks to the simplest
plan, and its screen ends with the line that replays it.
"""

import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

import spotchaos.specimens
from spotchaos.strategies import plans

MENDED = Path(spotchaos.specimens.__file__).parent / "mended"
# The fixture keeps what all examples share, which is what it is for.
FEW = settings(
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@settings(FEW, max_examples=4)
@given(plan=plans(max_step=30))
def test_a_plain_loop_that_saves_everything_survives_any_plan(spotchaos, plan):
    program = [sys.executable, str(MENDED / "rng_not_restored.py")]
    report = spotchaos.run(program, kill_at=plan)
    assert report.outcome.baseline.horizon == 30
    assert report.held()


@pytest.mark.slow
@pytest.mark.timeout(600)
@settings(FEW, max_examples=5)
@given(plan=plans(max_step=24))
def test_the_reference_trainer_survives_any_plan(spotchaos, plan):
    report = spotchaos.run(kill_at=plan)
    assert report.held()
    for _, judgement in report.outcome.trials:
        for resume in judgement.resumes:
            assert resume.divergence is None
            for rank, components in resume.restored.items():
                wrong = {c: s for c, s in components.items() if s != resume.joined}
                assert not wrong, (rank, wrong)


@pytest.mark.slow
@pytest.mark.timeout(600)
@settings(FEW, max_examples=3)
@given(plan=plans(max_step=24, max_interruptions=2))
def test_two_ranks_of_the_reference_trainer_survive_any_plan(spotchaos, plan):
    assert spotchaos.run(kill_at=plan, ranks=2).held()
