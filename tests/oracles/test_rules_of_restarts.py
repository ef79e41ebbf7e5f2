"""What is said of a program that starts over, after a kill alone or a clean stop too."""

from __future__ import annotations

from dataclasses import replace

import pytest
from laying import BASELINE, PLAIN
from synthetic import Flaw, names

from spotchaos.model import Trial
from spotchaos.oracles import judge


@pytest.mark.parametrize(
    ("flaw", "is_named"),
    [
        pytest.param(Flaw(restarts=True), True, id="starts-over"),
        pytest.param(Flaw(), False, id="resumes"),
    ],
)
def test_a_restart_after_a_clean_stop_too_may_want_another_command(flaw, is_named):
    clean = PLAIN.trial([9], flaw=flaw)
    baseline = replace(
        BASELINE, control=Trial(number=0, plan="step-end:9", attempts=clean.attempts)
    )
    judgement = judge(PLAIN.trial([9], flaw=Flaw(restarts=True)), baseline)
    assert names(judgement) == ["silent-restart"]
    assert ("--resume-cmd" in judgement.findings[0].hint) is is_named
