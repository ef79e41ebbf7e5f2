"""A baseline that a trial shows not to repeat is not called repeatable."""

from spotchaos.campaign.campaign import _doubted
from spotchaos.model import Baseline, Finding, Judgement, Trial, Verdict

BASELINE = Baseline(
    runs=(),
    light=None,
    control=None,
    repeatable=True,
    differs_at=None,
    not_compared=(),
    patterns=(),
)
TRIAL = Trial(number=1, plan="step-end:3", attempts=())


def said(*findings):
    return [(TRIAL, Judgement(Verdict.UNKNOWN, findings, (), (), None))]


def test_a_trial_that_left_the_baseline_by_itself_says_where():
    luck = Finding("not-repeatable", "attempt 1 left it at step 2", attempt=1, step=2)
    found = _doubted(BASELINE, said(luck))
    assert (found.repeatable, found.differs_at) == (False, luck.message)


def test_other_findings_and_doubts_of_ours_leave_it_as_it_was():
    for finding in (
        Finding("stale-resume", "resumed at step 2", attempt=2, step=2),
        Finding("not-repeatable", "fresh processes showed something else"),
    ):
        assert _doubted(BASELINE, said(finding)) is BASELINE
