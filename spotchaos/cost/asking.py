"""A question from what was measured and what is asked for, checked value by value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from spotchaos.cost.billing import Billing, Prices
from spotchaos.cost.failures import Exponential, Failures, Weibull
from spotchaos.cost.job import Job
from spotchaos.cost.study import Question
from spotchaos.cost.traces import Trace
from spotchaos.cost.units import nano, us
from spotchaos.errors import UsageError
from spotchaos.trace.timing import Measured, Timing

# Beyond that the simulation would take minutes, and a run of ten years nobody pays.
MOST_HOURS = 24 * 3660
MOST_STEPS = 10**12


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is asked for; seconds, hours and dollars as a person gives them.

    Attributes:
        steps: to be trained; or `hours` of training on all nodes.
        every: steps from save to save now; None: as it was measured.
        given: times that were not measured, by the names of `Timing`, in seconds.
        mtbf_h: mean hours until a machine is taken, exponential; or `weibull`, shape and
            scale in hours; or `traces`.
    """

    steps: int | None = None
    hours: float | None = None
    nodes: int = 1
    is_elastic: bool = False
    every: int | None = None
    deadline_h: float | None = None
    given: Mapping[str, float] | None = None
    traces: tuple[Trace, ...] = ()
    mtbf_h: float | None = None
    weibull: tuple[float, float] | None = None
    notice_s: float = 0.0
    provision_s: float = 0.0
    queue_s: float = 0.0
    spot_price: float | None = None
    on_demand_price: float | None = None
    storage_price: float = 0.0
    checkpoints_kept: int = 1
    billing: Billing = field(default_factory=Billing)
    background_stall_s: float = 0.0
    runs: int = 200
    seed: int = 0


def with_given(timing: Timing, given: Mapping[str, float] | None) -> Timing:
    """Return times with those that were given in place of what was measured."""
    known = {name: Measured(s, s, s, 0) for name, s in (given or {}).items()}
    return replace(timing, **known)


def question_of(timing: Timing, asked: Asked, *, share: str = "median") -> Question:
    """Return the question.

    Args:
        timing: what was measured.
        asked: the rest.
        share: which of the measured values counts: `median`, `p10` or `p90`.

    Raises:
        UsageError: a value makes no sense, or one is missing.
    """
    timing = with_given(timing, asked.given)
    _check(asked)

    def of(name: str) -> float | None:
        found: Measured | None = getattr(timing, name)
        return None if found is None else float(getattr(found, share))

    step_s, stall_s, end_s = of("step_s"), of("save_stall_s"), of("save_end_s")
    if not step_s:
        raise UsageError(
            "no time of a step was measured",
            hint="give a report of `spotchaos run --json` of this release, a command"
            " after --, or --step-seconds",
        )
    if stall_s is None:
        raise UsageError(
            "no save was measured: the program made none",
            hint="give --save-stall, the seconds by which a save delays training",
        )
    every = asked.every
    if every is None and timing.save_every is not None:
        every = max(1, round(timing.save_every.median))
    steps = _steps(asked, step_s)
    cold_s = of("cold_start_s") or 0.0
    need_s = of("notice_s")
    job = Job.from_seconds(
        steps=steps,
        step_s=step_s,
        save_stall_s=stall_s,
        save_end_s=end_s,
        cold_s=cold_s,
        resume_s=of("resumed_start_s"),
        provision_s=asked.provision_s,
        queue_s=asked.queue_s,
        notice_s=asked.notice_s,
        need_s=need_s,
        nodes=asked.nodes,
        is_elastic=asked.is_elastic,
    )
    size = timing.save_bytes.median if timing.save_bytes is not None else 0.0
    return Question(
        job=job,
        every=None if every is None else min(every, steps),
        traces=asked.traces,
        failures=_failures(asked),
        deadline_us=None if asked.deadline_h is None else us(asked.deadline_h * 3600),
        prices=_prices(asked),
        billing=asked.billing,
        stored_bytes=size * asked.checkpoints_kept,
        background_stall_us=us(asked.background_stall_s),
        runs=asked.runs,
        search_runs=min(asked.runs, 100),
        seed=asked.seed,
    )


def _steps(asked: Asked, step_s: float) -> int:
    if (asked.steps is None) == (asked.hours is None):
        raise UsageError(
            "how much is trained is not said"
            if asked.steps is None
            else "both --steps and --hours are given",
            hint="give --steps N, or --hours H of training without any interruption",
        )
    if asked.steps is not None:
        steps = asked.steps
    else:
        steps = max(1, round((asked.hours or 0.0) * 3600 / step_s))
    if steps > MOST_STEPS or steps * step_s > MOST_HOURS * 3600:
        raise UsageError(
            f"{steps} steps of {step_s:g} s are more than ten years of training"
        )
    return steps


def _failures(asked: Asked) -> Failures | None:
    if asked.mtbf_h is not None:
        return Exponential(asked.mtbf_h * 3600)
    if asked.weibull is not None:
        shape, scale_h = asked.weibull
        return Weibull(shape, scale_h * 3600)
    return None


def _prices(asked: Asked) -> Prices | None:
    """Return prices; None if one of the two is missing: no dollars are shown then."""
    if asked.spot_price is None or asked.on_demand_price is None:
        return None
    return Prices(
        spot=nano(asked.spot_price),
        on_demand=nano(asked.on_demand_price),
        storage=nano(asked.storage_price),
    )


def _check(asked: Asked) -> None:
    """Raise UsageError for a value that makes no sense."""
    sources = [bool(asked.traces), asked.mtbf_h is not None, asked.weibull is not None]
    if sum(sources) > 1:
        raise UsageError(
            "more than one of --trace, --mtbf and --weibull is given", hint="give one"
        )
    positive: dict[str, float | None] = {
        "--steps": asked.steps,
        "--hours": asked.hours,
        "--nodes": asked.nodes,
        "--save-every": asked.every,
        "--deadline": asked.deadline_h,
        "--mtbf": asked.mtbf_h,
        "--runs": asked.runs,
        "--checkpoints-kept": asked.checkpoints_kept,
        "--weibull": None if asked.weibull is None else min(asked.weibull),
    }
    for name, value in positive.items():
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"{name} is to be more than 0, and is {value:g}")
    others: dict[str, float | None] = {
        "--notice-seconds": asked.notice_s,
        "--restart-seconds and --image-pull": asked.provision_s,
        "--queue": asked.queue_s,
        "--spot-price": asked.spot_price,
        "--on-demand-price": asked.on_demand_price,
        "--storage-price": asked.storage_price,
        "--background-stall": asked.background_stall_s,
        **{f"the given {name}": value for name, value in (asked.given or {}).items()},
    }
    for name, value in others.items():
        if value is not None and not 0 <= value < math.inf:
            raise UsageError(f"{name} cannot be negative or endless, and is {value:g}")
    if asked.seed < 0:
        raise UsageError(f"--seed cannot be negative, and is {asked.seed}")
    limit_h = 100 * MOST_HOURS
    for name, hours in (("--mtbf", asked.mtbf_h), ("--deadline", asked.deadline_h)):
        if hours is not None and hours > limit_h:
            raise UsageError(f"{name} is more than a thousand years: {hours:g} h")
