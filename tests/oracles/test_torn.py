"""Tensors of one step each, of several, and of none: looked up one by one."""

from dataclasses import replace

import pytest
from flaws import Flaw
from synthetic import Program

from spotchaos.oracles import judge, may_be_torn
from spotchaos.oracles.torn import strays, torn, untied

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


HALF = {
    step: {
        "weights/fc.weight": f"w@{step}",
        "weights/1:centres": f"c@{step}",
        "weights/frozen": "frozen",
        **({"optimizer/1:1:centres.exp_avg": f"e@{step}"} if step else {}),
        **({"optimizer/0:fc.weight.exp_avg": f"f@{step}"} if step else {}),
    }
    for step in range(25)
}


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        pytest.param({"weights/1:centres": "c@0"}, ["weights/1:centres"], id="one"),
        pytest.param({"weights/1:centres": "x"}, ["weights/1:centres"], id="of-none"),
        pytest.param({}, None, id="all-are-right"),
        pytest.param(
            {"weights/1:centres": "c@0", "weights/fc.weight": "w@0"},
            None,
            id="only-what-stands-still-is-right",
        ),
    ],
)
def test_tensors_that_were_lost_while_others_came_back(changed, wrong):
    found = strays({**HALF[12], **changed}, HALF, component="weights", step=12)
    assert found == (None if wrong is None else (wrong, 3))


def test_an_optimizer_without_state_has_lost_it():
    state = {k: v for k, v in HALF[12].items() if "1:1:centres" not in k}
    found = strays(state, HALF, component="optimizer", step=12)
    assert found == (["optimizer/1:1:centres.exp_avg"], 2)


@pytest.mark.parametrize(
    ("component", "changed", "words"),
    [
        (
            "weights",
            {"weights/1:centres": "c@0"},
            (
                "1 of 3 tensors of the weights ('centres' of module 2) came back as at the"
                " start of a run"
            ),
        ),
        (
            "weights",
            {"weights/1:centres": "x", "weights/frozen": "y"},
            (
                "2 of 3 tensors of the weights ('centres' of module 2 and 1 more) came back"
                " equal to those of no step of the uninterrupted run"
            ),
        ),
        (
            "optimizer",
            {"optimizer/1:1:centres.exp_avg": None},
            (
                "1 of 2 tensors of the optimizer's state ('1:centres.exp_avg' of optimizer 2)"
                " came back as at the start of a run"
            ),
        ),
        ("weights", {}, "the weights came back equal to those of no step"),
    ],
)
def test_the_finding_names_the_part_that_was_lost(component, changed, words):
    program = Program(horizon=24, epoch_steps=8, save_every=4)
    flaw = Flaw(foreign=frozenset({component}))
    trial = program.trial([13], flaw=flaw)
    one, two = trial.attempts
    state = {k: v for k, v in {**HALF[12], **changed}.items() if v is not None}
    rank = replace(two.trace.ranks[0], tensors={0: state})
    trial = replace(
        trial,
        attempts=(one, replace(two, trace=replace(two.trace, ranks={0: rank}))),
    )
    baseline = replace(program.baseline(), tensors={0: HALF})
    finding = judge(trial, baseline).findings[0]
    assert finding.name == f"{component}-not-restored"
    assert words in finding.message
    assert ("every" in finding.hint and "each" in finding.hint) is bool(changed)


def test_a_tie_that_was_lost_leaves_weights_besides_all_those_of_a_step():
    state = {**of(12, 12, 12, 12), "weights/head.weight": "weights/0.weight@12"}
    assert untied(state, TABLE[12]) == ["weights/head.weight"]
    assert untied(of(12, 12, 12, 12), TABLE[12]) == []
    assert untied(state, TABLE[8]) == []
    assert untied(state, {}) == []
