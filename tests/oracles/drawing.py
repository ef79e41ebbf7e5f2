"""Synthetic programs and kills, drawn by Hypothesis."""

from __future__ import annotations

from hypothesis import HealthCheck, assume, settings, strategies as st
from synthetic import Program

from spotchaos.model import Verdict

QUICK = settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@st.composite
def programs(draw, **fixed):
    horizon = draw(st.integers(6, 20))
    warmup = draw(st.integers(0, 2))
    start = draw(st.integers(warmup, horizon))
    made = {
        "horizon": horizon,
        "epoch_steps": draw(st.integers(2, 8)),
        "save_every": draw(st.integers(1, 5)),
        "ranks": draw(st.sampled_from([1, 1, 2, 3])),
        "order": draw(
            st.sampled_from(["rng.torch", "epoch", "fixed", "rng.generators"])
        ),
        "dropout_words": draw(st.sampled_from([0, 1, 40, 700])),
        "augment_from": draw(st.sampled_from([None, None, "rng.numpy", "rng.python"])),
        "momentum": draw(st.booleans()),
        "has_buffers": draw(st.booleans()),
        "has_scaler": draw(st.booleans()),
        "has_averages": draw(st.booleans()),
        "has_scheduler": draw(st.booleans()),
        "constant_rate": draw(st.booleans()),
        "warmup": warmup,
        "plateau": tuple(range(start, start + draw(st.integers(0, 4)))),
        "ids": draw(st.sampled_from(["index", "rows", None])),
        "iterator_words": draw(st.sampled_from([0, 2])),
    }
    made |= fixed
    program = Program(**made)
    # Else the weights never change, which is a verdict of its own.
    assume(any(program.rate(step) for step in range(program.horizon)))
    return program


@st.composite
def kills(draw, program):
    return draw(st.lists(st.integers(1, program.horizon), min_size=1, max_size=3))


def plan_of(data, program):
    """Draw a kill with at least one whole save before it and steps left after it."""
    least = program.save_every + 1
    assume(least < program.horizon)
    stop = data.draw(st.integers(least, program.horizon - 1))
    joined = (stop - 1) // program.save_every * program.save_every
    if stop % program.save_every == 0:
        # Killed right after a save: the program resumes from it.
        joined = stop
    assume(joined < program.horizon)
    return stop, joined


def only_finding(judgement, name, component, joined):
    """Check that one finding is all that was found, and where."""
    (finding,) = judgement.findings
    assert (finding.name, finding.component) == (name, component)
    assert finding.attempt == 2
    assert finding.step == joined + 1
    assert judgement.resumes[0].joined == joined
    assert judgement.verdict is Verdict.VIOLATED
