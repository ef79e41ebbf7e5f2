"""What a record means: pure functions from traces to findings."""

from spotchaos.oracles.judging import ORACLES, judge
from spotchaos.oracles.repeatable import BaselineFacts, judge_baselines

__all__ = ["ORACLES", "BaselineFacts", "judge", "judge_baselines"]
