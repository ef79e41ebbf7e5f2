"""The types of a stored report: what every renderer relies on, and nothing more.

A report may hold further keys, which a later release adds; they are left alone.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

Whole = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Number = Annotated[float, Meta(ge=-1e300, le=1e300)]
Seconds = Annotated[float, Meta(ge=0, le=1e12)]
Positive = Annotated[float, Meta(gt=0, le=1e12)]
Verdict = Literal["held", "violated", "unknown"]
Scalar = Whole | Number | str | bool | None
Words = Annotated[list[str], Meta(min_length=1, max_length=100_000)]


class Named(Struct):
    """A note, with what it says."""

    name: str
    message: str


class Entry(Struct):
    """A finding or note of the campaign, and the trials that have it."""

    name: str
    trials: list[Count]
    counts: bool = True
    message: str | None = None


class Known(Struct):
    """A known finding that a team has listed."""

    finding: str
    reason: str
    until: str
    expired: bool
    trials: list[Count]


class Where(Struct):
    """A place in the program."""

    file: str | None = None
    line: Whole | None = None


class Finding(Struct):
    """A finding of one trial."""

    name: str
    message: str
    hint: str | None
    attempt: Count | None = None
    step: Whole | None = None
    rank: Whole | None = None
    component: str | None = None
    where: Where | None = None


class Point(Struct):
    """How far a tensor was from the baseline's at a step."""

    step: Whole
    elements: Whole | None = None
    max_ulp: int | None = None


class Divergence(Struct):
    """The first difference from the baseline."""

    step: Whole
    rank: Whole
    components: list[str]
    tensor: str | None
    elements: Whole | None
    max_ulp: int | None
    curve: list[Point] | None = None


class Notice(Struct):
    """A notice as it was played."""

    story: str
    grace_s: Number | None
    time_scale: Positive


class Fault(Struct):
    """A fault that struck, and how often."""

    fault: str
    injected: Count
    path: str | None = None


class Attempt(Struct):
    """One attempt of a trial."""

    number: Count
    started_from: Whole | None
    ended: str
    steps: Whole
    lost_steps: Whole
    exit_code: Whole | None = None
    kill_point: str | None = None
    newest_resume_point: Whole | None = None
    output_tail: str | None = None
    restored: dict[str, dict[str, Whole | str | None]] | None = None
    divergence: Divergence | None = None
    notice: Notice | None = None
    faults: list[Fault] = []


class Moment(Struct):
    """What happened when."""

    t_s: Number
    what: str
    step: Whole | None = None
    rank: Whole | None = None
    attempt: Count = 1


class Trial(Struct):
    """One plan as it was carried out."""

    number: Count
    plan: str
    verdict: Verdict
    attempts: list[Attempt]
    findings: list[Finding]
    replay: str
    notes: list[Named] = []
    timeline: list[Moment] = []
    dropped: list[str] = []
    wall_s: Seconds | None = None


class Outputs(Struct):
    """What an uninterrupted run left behind, where that is judged."""

    said: str
    alone: bool
    files: Count = 0
    records: Count | None = None
    written: Count | None = None


class Measured(Struct):
    """One time, size or number of `timing`."""

    median: Seconds
    p10: Seconds
    p90: Seconds
    n: Count


class Baseline(Struct):
    """What the uninterrupted runs showed."""

    steps: Count
    repeatable: bool
    world_size: Count = 1
    saves: Count = 0
    wall_s: Seconds | None = None
    differs_at: str | None = None
    not_compared: list[str] | None = None
    notes: list[Named] = []
    outputs: Outputs | None = None


class CrashClass(Struct):
    """Crash states that break the promise in the same way."""

    finding: str
    state: str
    severity: str
    states: Count
    operation: str | None = None
    model: str | None = None
    during_resume: bool = False
    on_disk: list[str] | None = None
    trial: Whole | None = None
    message: str | None = None
    hint: str | None = None
    where: Where | None = None
    tokens: list[str] | None = None


class CrashStates(Struct):
    """How many crash states were drawn, and what became of them."""

    by_model: dict[str, Count]
    distinct: Count
    drawn: Count
    run: Count = 0
    skipped_by_readset: Count | None = None
    spot_checked: Count | None = None
    held: Count | None = None
    violated: Count | None = None
    unknown: Count | None = None
    why_not_visited: list[str] | None = None


class Coverage(Struct):
    """What was tried, out of what."""

    kill_points: Count | None = None
    plans: Count | None = None
    plans_run: Count | None = None
    skipped_as_equal: Count | None = None
    not_reached: Count | None = None
    not_run: list[str] | None = None
    crash_states: CrashStates | Count | None = None


class Ledger(Struct):
    """Samples that were trained on too often, or never."""

    repeated: Count = 0
    skipped: Count = 0
    epochs: list[dict[str, Scalar | list[Scalar]]] = []


class Series(Struct):
    """Curves of the losses: pairs of step and loss."""

    loss: dict[str, list[list[Number | None]]] = {}


class Grace(Struct):
    """What a search for the smallest grace window came to."""

    given_s: Seconds
    smallest_s: Seconds | None
    fails_s: Seconds | None


class Report(Struct):
    """A report of schema 1."""

    spotchaos: str
    seed: Whole
    promise: str
    verdict: Verdict
    command: Words
    trials: list[Trial]
    findings: list[Entry]
    notes: list[Entry]
    coverage: Coverage
    environment: dict[str, Scalar | dict[str, Scalar] | list[Scalar]]
    holds_up_to: Literal["resumes", "state", "samples", "bitwise"] | None = None
    resume_command: Words | None = None
    durable: str | None = None
    baseline: Baseline | None = None
    classes: list[CrashClass] | None = None
    grace: Grace | None = None
    series: Series | None = None
    ledger: Ledger | None = None
    known: list[Known] | None = None
    shard: (
        Annotated[str, Meta(pattern=r"^[0-9]{1,6}(,[0-9]{1,6})*/[0-9]{1,6}$")] | None
    ) = None
    trouble: str | None = None
    hint: str | None = None
    unprotected: list[str] | None = None
    reference_trainer: bool = False
    wall_s: Seconds | None = None
    cpu_s: Seconds | None = None
    interrupted: bool = False
    timing: dict[str, Measured | None] | None = None
