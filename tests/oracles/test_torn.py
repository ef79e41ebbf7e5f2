"""Tensors of one step each, of several, and of none: looked up one by one."""

from dataclasses import replace

import pytest
from flaws import Flaw
from synthetic import Program

from spotchaos.oracles import judge, may_be_torn
from spotchaos.oracles.torn import torn

NAMES = [f"weights/{layer}.weight" for layer in range(4)]
TABLE = {step: {name: f"{name}@{step}" for name in NAMES} for step in range(25)}
SAVED = {0, 4, 8, 12}


def of(*steps):
    """Return tensors that are each of another step; None: of none."""
    return {
        name: f"{name}@{step}" if step is not None else "nowhere"
        for name, step in zip(NAMES, steps, strict=True)
    }


@pytest.mark.parametrize(
    "steps",
    [(12, 13, 14, 15), (13, 12, 12, 12), (12, 13, None, 14)],
)
def test_tensors_of_several_steps_are_torn(steps):
    found = torn(of(*steps), TABLE, saved=SAVED)
    wanted = zip(NAMES, steps, strict=True)
    assert found == {name: step for name, step in wanted if step is not None}


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param((12, 12, 12, 12), id="of-one"),
        pytest.param((12, 12, None, 12), id="one-is-of-none"),
        pytest.param((None, None, None, 13), id="nearly-all-are-of-none"),
        pytest.param((8, 8, 12, 12), id="of-two-whole-checkpoints"),
        pytest.param((0, 0, 12, 12), id="some-were-never-loaded"),
    ],
)
def test_these_are_not_torn(steps):
    assert torn(of(*steps), TABLE, saved=SAVED) is None


def test_tensors_that_stand_still_fit_every_step():
    still = {step: {**row, NAMES[0]: "frozen"} for step, row in TABLE.items()}
    state = {**of(12, 12, 12, 12), NAMES[0]: "frozen"}
    assert torn(state, still, saved=SAVED) is None


def test_what_a_torn_checkpoint_looks_like_is_left_out():
    program = Program(horizon=24, epoch_steps=8, save_every=4)
    baseline = program.baseline()
    trial = program.trial([13], flaw=Flaw(foreign=frozenset({"weights"})))
    plain = judge(trial, baseline)
    assert may_be_torn(plain)
    assert "weights-not-restored" in [f.name for f in plain.findings]
    one, two = trial.attempts
    rank = replace(two.trace.ranks[0], tensors={0: of(12, 13, 14, 15)})
    trace = replace(two.trace, ranks={0: rank})
    torn_trial = replace(trial, attempts=(one, replace(two, trace=trace)))
    (finding,) = judge(torn_trial, replace(baseline, tensors={0: TABLE})).findings
    assert finding.name == "torn-snapshot"
    assert "'0.weight' of the weights is of step 12" in finding.message
    assert "'3.weight' of the weights of step 15" in finding.message
    assert not may_be_torn(judge(program.trial([13]), baseline))
