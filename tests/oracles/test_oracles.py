"""Each oracle, the words of its findings, and the promises that they break."""

from __future__ import annotations

import pytest
from laying import BASELINE, PLAIN, lost
from synthetic import Flaw

from spotchaos.findings import FINDINGS, PROMISES
from spotchaos.model import Verdict
from spotchaos.oracles import ORACLES, judge
from spotchaos.oracles.lineage import lay_out

# -- all oracles ----------------------------------------------------------------------


def test_every_oracle_is_silent_on_a_perfect_resume():
    case = lay_out(PLAIN.trial([13]), BASELINE)
    assert {name: [*oracle(case)] for name, oracle in ORACLES.items()} == {
        name: [] for name in ORACLES
    }


@pytest.mark.parametrize(
    ("oracle", "flaw"),
    [
        pytest.param("progress", Flaw(restarts=True), id="progress"),
        pytest.param("restored", lost("optimizer"), id="restored"),
        pytest.param("samples", lost("position"), id="samples"),
        pytest.param("divergence", Flaw(hidden=True), id="divergence"),
    ],
)
def test_every_oracle_convicts_its_own_mutant(oracle, flaw):
    case = lay_out(PLAIN.trial([13], flaw=flaw), BASELINE)
    assert [*ORACLES[oracle](case)]


def test_every_finding_says_what_to_do():
    flaws = [
        Flaw(restarts=True),
        Flaw(older=1),
        Flaw(hidden=True),
        Flaw(skip_batches=1),
        Flaw(disturbed={"rng.torch": 1}),
        Flaw(stale={"optimizer": 1}),
        lost("rng.torch", "position", "order"),
        lost("optimizer", "scheduler"),
    ]
    found = [
        f
        for flaw in flaws
        for f in judge(PLAIN.trial([13], flaw=flaw), BASELINE).findings
    ]
    assert len(found) >= len(flaws)
    assert all(f.hint and f.message and f.name in FINDINGS for f in found)


# -- the words of a finding --------------------------------------------------------------


def test_an_order_that_starts_again_at_the_seed_is_said_so():
    flaw = lost("rng.torch", "position", "order")
    rng, order = judge(PLAIN.trial([13], flaw=flaw), BASELINE).findings
    assert (rng.name, order.name) == ("rng-not-restored", "order-changed")
    assert order.message == (
        "after the resume at step 12 the program got the batch of step 1: the order"
        " starts again at the seed"
    )


def test_a_lost_component_is_said_with_what_it_had_instead():
    (finding,) = judge(PLAIN.trial([13], flaw=lost("optimizer")), BASELINE).findings
    assert finding.message == (
        "the program resumed at step 12, but the optimizer's state came back as at the"
        " start of a run"
    )
    assert finding.hint.startswith("save optimizer.state_dict()")


# -- promises ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flaw", "holds"),
    [
        pytest.param(Flaw(), "bitwise", id="perfect"),
        pytest.param(Flaw(hidden=True), "samples", id="diverged"),
        pytest.param(lost("position"), "state", id="samples"),
        pytest.param(lost("optimizer"), "resumes", id="state"),
        pytest.param(Flaw(restarts=True), None, id="restart"),
    ],
)
def test_the_strongest_promise_that_holds_is_named_and_decides(flaw, holds):
    trial = PLAIN.trial([13], flaw=flaw)
    kept = PROMISES[: PROMISES.index(holds) + 1] if holds else ()
    for promise in PROMISES:
        judgement = judge(trial, BASELINE, promise=promise)
        assert judgement.holds_up_to == holds
        held = promise in kept
        assert judgement.verdict is (Verdict.HELD if held else Verdict.VIOLATED)
