"""What a record means: pure functions from traces to findings."""

from spotchaos.oracles.judging import ORACLES, acquitted, judge
from spotchaos.oracles.repeatable import BaselineFacts, judge_baselines
from spotchaos.oracles.torn import may_be_torn

__all__ = [
    "ORACLES",
    "BaselineFacts",
    "acquitted",
    "judge",
    "judge_baselines",
    "may_be_torn",
]
