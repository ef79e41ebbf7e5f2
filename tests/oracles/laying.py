"""The plain program of these tests, and small changes to what an attempt of it left."""

from __future__ import annotations

from dataclasses import replace

from synthetic import Flaw, Program

from spotchaos.model import Attempt, AttemptTrace, Ended, Trial

PLAIN = Program()
BASELINE = PLAIN.baseline()


def lost(*components, **more):
    return Flaw(lost=frozenset(components), **more)


def changed(attempt, *, ranks=None, **changes):
    """Return the attempt with fields changed; `ranks` maps a rank's trace to a new one."""
    if ranks is not None:
        trace = attempt.trace
        found = {rank: ranks(each) for rank, each in trace.ranks.items()}
        changes["trace"] = replace(trace, ranks=found)
    return replace(attempt, **changes)


def with_last(trial, **changes):
    *others, last = trial.attempts
    return replace(trial, attempts=(*others, changed(last, **changes)))


def empty_trace():
    return AttemptTrace(ranks={}, world_size=1, processes=1, torch_seen=True)


def never_trained(number=2, **changes):
    defaults = {
        "number": number,
        "command": ("python", "train.py"),
        "ended": Ended.FAILED,
        "exit_code": 1,
        "trace": empty_trace(),
        "wall_s": 1.0,
    }
    return Attempt(**{**defaults, **changes})


def trial_of(*attempts, plan="step-end:13"):
    return Trial(number=1, plan=plan, attempts=attempts)


def first(stop=13, **changes):
    return changed(PLAIN.attempt(stop=stop)[0], **changes)
