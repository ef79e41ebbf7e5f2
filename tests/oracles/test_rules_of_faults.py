"""What is said of a resume after a fault that came without a kill."""

from __future__ import annotations

from dataclasses import replace

import pytest
from laying import BASELINE, PLAIN, changed, first, lost, never_trained, trial_of
from synthetic import Flaw, names

from spotchaos.model import Struck
from spotchaos.oracles import judge


def struck(trial, kind, *, at_s=1e9, times=1):
    """Return the trial with a fault in its first attempt, late in it by default."""
    fault = Struck(f"{kind}:2", kind, times, at_s if times else None, "ckpt-12.pt")
    attempt = changed(trial.attempts[0], struck=(fault,))
    return replace(trial, attempts=(attempt, *trial.attempts[1:]))


@pytest.mark.parametrize(
    "trial",
    [
        pytest.param(PLAIN.trial([13], flaw=Flaw(restarts=True)), id="restart"),
        pytest.param(trial_of(first(), never_trained()), id="failure"),
    ],
)
def test_an_error_that_took_the_old_checkpoint_as_well_is_named(trial):
    (finding,) = judge(struck(trial, "error"), BASELINE).findings
    assert finding.name == "error-destroyed-checkpoint"
    assert "'error:2' struck 'ckpt-12.pt' while attempt 1 saved" in finding.message


def test_an_error_that_leaves_the_checkpoint_before_it_is_no_finding():
    assert names(judge(struck(PLAIN.trial([13]), "error"), BASELINE)) == []


def test_damage_that_is_trained_on_is_silent():
    trial = PLAIN.trial([13], flaw=lost("optimizer"))
    (finding,) = judge(struck(trial, "damage"), BASELINE).findings
    assert finding.name == "silent-damage"
    assert "'damage:2' damaged 'ckpt-12.pt'" in finding.message


def test_what_a_fault_that_never_struck_would_explain_keeps_its_name():
    trial = PLAIN.trial([13], flaw=lost("optimizer"))
    found = names(judge(struck(trial, "damage", times=0), BASELINE))
    assert found == ["not-reached", "optimizer-not-restored"]
