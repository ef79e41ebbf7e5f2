"""Whatever a trace lacks, a judgement comes of it, and a sound one if states are few."""

from __future__ import annotations

from dataclasses import replace

from drawing import QUICK, only_finding, plan_of, programs
from hypothesis import given, strategies as st
from synthetic import PERFECT, Flaw, names

from spotchaos.model import Ended, Verdict
from spotchaos.oracles import judge, judge_baselines


def _sparse(attempt, every=10):
    """Return what `--fingerprint saves` keeps: every tenth state, saves, no gradients."""
    ranks = {}
    for number, rank in attempt.trace.ranks.items():
        steps = [
            replace(
                mark,
                components={
                    c: f for c, f in mark.components.items() if c != "gradients"
                },
            )
            for mark in rank.steps
        ]
        states = {s: state for s, state in rank.states.items() if s % every == 0}
        ranks[number] = replace(rank, states=states, steps=tuple(steps))
    return replace(attempt, trace=replace(attempt.trace, ranks=ranks))


def _judge_sparse(program, stop, flaw):
    full, baseline = program.trial([stop], flaw=flaw), program.baseline()
    runs = tuple(_sparse(run) for run in baseline.runs)
    trial = replace(full, attempts=tuple(_sparse(a) for a in full.attempts))
    return judge(trial, replace(baseline, runs=runs))


@QUICK
@given(st.data())
def test_a_perfect_resume_is_held_with_states_at_saves_alone(data):
    program = data.draw(programs())
    stop, joined = plan_of(data, program)
    judgement = _judge_sparse(program, stop, PERFECT)
    assert names(judgement) == []
    assert judgement.resumes[0].joined == joined


@QUICK
@given(st.data())
def test_a_lost_optimizer_is_named_with_states_at_saves_alone(data):
    program = data.draw(programs(momentum=True))
    stop, joined = plan_of(data, program)
    judgement = _judge_sparse(program, stop, Flaw(lost=frozenset({"optimizer"})))
    only_finding(judgement, "optimizer-not-restored", "optimizer", joined)


@st.composite
def mutilated(draw, attempt):
    """Return an attempt of which marks are missing or make no sense."""
    ranks = {}
    for number, rank in attempt.trace.ranks.items():
        if draw(st.integers(0, 9)) == 0:
            continue
        gone = draw(st.sets(st.integers(0, 20), max_size=4))
        steps = [mark for mark in rank.steps if mark.step not in gone]
        states = {s: mark for s, mark in rank.states.items() if s not in gone}
        if draw(st.booleans()):
            steps = [replace(mark, samples=None, epoch=None) for mark in steps]
        if draw(st.integers(0, 3)) == 0:
            steps = [replace(mark, components={}) for mark in steps]
        if draw(st.integers(0, 3)) == 0:
            states = {}
        if draw(st.integers(0, 3)) == 0:
            states = {s: replace(mark, rng={}) for s, mark in states.items()}
        saves = [
            replace(save, state=None, ended_at_s=draw(st.sampled_from([None, 1.0])))
            for save in rank.saves
        ]
        ranks[number] = replace(
            rank,
            steps=tuple(steps),
            states=states,
            saves=tuple(draw(st.sampled_from([rank.saves, saves, ()]))),
            finish=draw(st.sampled_from([None, rank.finish])),
        )
    return replace(
        attempt,
        trace=replace(attempt.trace, ranks=ranks),
        ended=draw(st.sampled_from([*Ended])),
        exit_code=draw(st.sampled_from([None, 0, 1, -15])),
        signal=draw(st.sampled_from([None, None, "TERM", "KILL"])),
        signalled_step=draw(st.sampled_from([None, 0, 3])),
        reached=draw(st.booleans()),
    )


@QUICK
@given(st.data())
def test_whatever_is_missing_from_a_trace_a_judgement_comes_of_it(data):
    program = data.draw(programs())
    stop = data.draw(st.integers(1, program.horizon))
    flaw = data.draw(
        st.sampled_from(
            [PERFECT, Flaw(lost=frozenset({"optimizer", "rng.torch", "position"}))]
        )
    )
    trial = program.trial([stop, 2], flaw=flaw, after_finish=data.draw(st.booleans()))
    attempts = tuple(data.draw(mutilated(attempt)) for attempt in trial.attempts)
    baseline = program.baseline()
    if data.draw(st.booleans()):
        runs = tuple(data.draw(mutilated(run)) for run in baseline.runs)
        baseline = replace(baseline, runs=runs)
        judge_baselines(runs, data.draw(mutilated(runs[0])))
    judgement = judge(replace(trial, attempts=attempts), baseline, exit_codes=(143,))
    assert judgement.verdict in Verdict
    assert len(judgement.resumes) <= len(attempts)
