"""What training on spot machines costs: hours, dollars and the best save interval.

It joins what was measured on a program (`Timing`) with when machines were taken (`Trace`,
`Failures`) and what they cost (`Prices`); `study` gives one row for each policy, and each
row comes from `simulate`, a pure function of its inputs and a seed. It may import `errors`,
`timing`, the standard library and NumPy: no torch, nothing of the harness.
"""

from __future__ import annotations

from spotchaos.cost.billing import Bill, Billing, Prices, bill
from spotchaos.cost.capacity import Endless, FailureCapacity, TraceCapacity
from spotchaos.cost.closed_forms import (
    daly_interval_s,
    exact_interval_s,
    expected_s,
    young_interval_s,
)
from spotchaos.cost.failures import Exponential, Failures, Weibull
from spotchaos.cost.job import Job
from spotchaos.cost.policies import Policy
from spotchaos.cost.runs import Lease, Run
from spotchaos.cost.search import Searched, best_interval
from spotchaos.cost.simulate import simulate
from spotchaos.cost.study import Question, study
from spotchaos.cost.traces import Trace, read_traces
from spotchaos.trace.timing import Measured, Timing

__all__ = [
    "Bill",
    "Billing",
    "Endless",
    "Exponential",
    "FailureCapacity",
    "Failures",
    "Job",
    "Lease",
    "Measured",
    "Policy",
    "Prices",
    "Question",
    "Run",
    "Searched",
    "Timing",
    "Trace",
    "TraceCapacity",
    "Weibull",
    "best_interval",
    "bill",
    "daly_interval_s",
    "exact_interval_s",
    "expected_s",
    "read_traces",
    "simulate",
    "study",
    "young_interval_s",
]
