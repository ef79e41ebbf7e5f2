"""Whatever the program and the plan: a perfect resume is acquitted, one flaw is named."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st
from synthetic import PERFECT, STREAMS, Flaw, Program, names

from spotchaos.model import Ended, Verdict
from spotchaos.oracles import judge, judge_baselines

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


@QUICK
@given(st.data())
def test_a_perfect_resume_is_held_at_any_step_of_any_program(data):
    program = data.draw(programs())
    plan = data.draw(kills(program))
    judgement = judge(program.trial(plan), program.baseline())
    assert names(judgement) == []
    assert judgement.verdict is Verdict.HELD
    assert judgement.holds_up_to == "bitwise"
    assert (judgement.ledger["repeated"], judgement.ledger["skipped"]) == (0, 0)


@QUICK
@given(st.data())
def test_a_perfect_resume_joins_at_the_newest_save_and_nothing_is_fresh(data):
    program = data.draw(programs())
    plan = data.draw(kills(program))
    judgement = judge(program.trial(plan), program.baseline())
    done = newest = 0
    for stop, resume in zip(plan, judgement.resumes, strict=True):
        start = newest
        done = min(start + stop, program.horizon)
        newest = max(newest, done // program.save_every * program.save_every)
        if newest == program.horizon:
            continue  # nothing is left to train
        assert resume.joined == newest
        assert resume.lost_steps == done - newest
        for columns in resume.restored.values():
            assert set(columns.values()) == {newest}


@QUICK
@given(st.data())
def test_a_save_cut_by_the_kill_may_be_skipped(data):
    program = data.draw(programs())
    stop = program.save_every * data.draw(st.integers(1, 3))
    assume(stop < program.horizon)
    trial = program.trial([stop], in_save=(1,))
    judgement = judge(trial, program.baseline())
    assert names(judgement) == []
    assert judgement.resumes[0].joined == stop - program.save_every


@QUICK
@given(st.data())
def test_a_perfect_program_started_after_its_finish_is_held(data):
    program = data.draw(programs())
    trial = program.trial([], after_finish=True)
    judgement = judge(trial, program.baseline(), resume_after_finish=True)
    assert names(judgement) == []


def _plan(data, program):
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


def _judge(program, stop, flaw, **changes):
    return judge(program.trial([stop], flaw=flaw), program.baseline(**changes))


def _only(judgement, name, component, joined):
    (finding,) = judgement.findings
    assert (finding.name, finding.component) == (name, component)
    assert finding.attempt == 2
    assert finding.step == joined + 1
    assert judgement.resumes[0].joined == joined
    assert judgement.verdict is Verdict.VIOLATED


STATE = {
    "weights": ("weights-not-restored", {}),
    "buffers": ("buffers-not-restored", {"has_buffers": True}),
    "optimizer": ("optimizer-not-restored", {}),
    "scaler": ("scaler-not-restored", {"has_scaler": True}),
    "averages": ("average-not-restored", {"has_averages": True}),
}


@pytest.mark.parametrize("component", STATE)
@QUICK
@given(st.data())
def test_a_lost_component_is_named_and_its_consequences_are_not(component, data):
    name, needs = STATE[component]
    program = data.draw(programs(momentum=True, warmup=0, **needs))
    stop, joined = _plan(data, program)
    fresh, saved = program.fresh(), program.attempt(stop=joined)[1][-1]
    assume(
        program.components(fresh, 0)[component]
        != program.components(saved, 0)[component]
    )
    judgement = _judge(program, stop, Flaw(lost=frozenset({component})))
    _only(judgement, name, component, joined)
    assert judgement.resumes[0].restored[0][component] == "fresh"


@QUICK
@given(st.data())
def test_a_lost_scheduler_is_one_finding_if_a_rate_ever_differs(data):
    program = data.draw(programs(momentum=True))
    stop, joined = _plan(data, program)
    judgement = _judge(program, stop, Flaw(lost=frozenset({"scheduler"})))
    left = range(joined, program.horizon)
    if program.rate(joined) != program.rate(0):
        (finding,) = judgement.findings
        assert finding.name == "scheduler-not-restored"
        assert finding.step == joined + 1
    elif any(program.rate(step) != program.rate(step - joined) for step in left):
        assert names(judgement) == ["scheduler-not-restored"]
    else:
        assert names(judgement) == []
        if program.has_scheduler:
            assert [n.name for n in judgement.notes] == [
                "scheduler-moved-without-effect"
            ]


def _begins_an_epoch(program, joined):
    """Whether an epoch begins after the first batch of a resume at `joined`."""
    return any(s % program.epoch_steps == 0 for s in range(joined + 1, program.horizon))


@QUICK
@given(st.data())
def test_a_lost_stream_with_dropout_is_named_with_the_order_it_draws(data):
    program = data.draw(programs(dropout_words=40))
    stop, joined = _plan(data, program)
    judgement = _judge(program, stop, Flaw(lost=frozenset({"rng.torch"})))
    assert names(judgement)[0] == "rng-not-restored"
    assert judgement.findings[0].component == "rng.torch"
    drawn = program.order == "rng.torch" and (
        _begins_an_epoch(program, joined) or joined % program.epoch_steps == 0
    )
    assert names(judgement)[1:] == (["order-changed"] if drawn else [])


@QUICK
@given(st.data())
def test_a_stream_moved_by_few_draws_is_disturbed(data):
    program = data.draw(programs(dropout_words=700, order="epoch"))
    stop, joined = _plan(data, program)
    words = data.draw(st.integers(1, 8))
    judgement = _judge(program, stop, Flaw(disturbed={"rng.torch": words}))
    _only(judgement, "rng-disturbed", "rng.torch", joined)
    assert judgement.resumes[0].disturbed[0] == {"rng.torch": words}
    assert f"{words} draw" in judgement.findings[0].message


@QUICK
@given(st.data())
def test_a_stream_that_nothing_reads_is_a_note(data):
    program = data.draw(programs(dropout_words=0, order="epoch", iterator_words=2))
    stop, joined = _plan(data, program)
    assume(joined >= program.epoch_steps)
    judgement = _judge(program, stop, Flaw(lost=frozenset({"rng.torch"})))
    assert names(judgement) == []
    assert judgement.holds_up_to == "bitwise"
    assert {n.name for n in judgement.notes} == {"rng-moved-without-effect"}


@QUICK
@given(st.data())
def test_a_lost_position_repeats_samples(data):
    program = data.draw(programs(augment_from=None))
    stop, joined = _plan(data, program)
    assume(joined % program.epoch_steps)
    judgement = _judge(program, stop, Flaw(lost=frozenset({"position"})))
    assert names(judgement)
    assert set(names(judgement)) <= {
        "samples-repeated",
        "samples-skipped",
        "order-changed",
    }
    if program.ids == "index":
        assert "samples-repeated" in names(judgement)
    assert all(f.step == joined + 1 for f in judgement.findings)


@QUICK
@given(st.data())
def test_a_batch_fetched_ahead_is_skipped(data):
    program = data.draw(programs(augment_from=None, warmup=0, plateau=()))
    stop, joined = _plan(data, program)
    assume(program.ids and joined + 2 <= program.horizon)
    assume(0 < joined % program.epoch_steps < program.epoch_steps - 1)
    judgement = _judge(program, stop, Flaw(skip_batches=1))
    assert names(judgement) == ["samples-skipped"]
    assert f"the batch of step {joined + 2} instead of {joined + 1}" in (
        judgement.findings[0].message
    )


@QUICK
@given(st.data())
def test_parts_of_two_checkpoints_are_mixed_steps(data):
    program = data.draw(programs(momentum=True, warmup=0, plateau=()))
    stop, joined = _plan(data, program)
    assume(joined > program.save_every)
    judgement = _judge(program, stop, Flaw(stale={"optimizer": 1}))
    _only(judgement, "mixed-steps", "optimizer", joined)
    restored = judgement.resumes[0].restored[0]
    assert restored["optimizer"] == joined - program.save_every


@QUICK
@given(st.data())
def test_an_older_checkpoint_than_the_newest_whole_one_is_stale(data):
    program = data.draw(programs(momentum=True))
    stop, joined = _plan(data, program)
    assume(joined > program.save_every and stop > joined)
    judgement = _judge(program, stop, Flaw(older=1))
    assert names(judgement) == ["stale-resume"]
    assert judgement.resumes[0].joined == joined - program.save_every
    assert judgement.resumes[0].newest_resume_point == joined


@QUICK
@given(st.data())
def test_a_start_from_nothing_beside_a_checkpoint_is_a_silent_restart(data):
    program = data.draw(programs(momentum=True))
    stop, joined = _plan(data, program)
    assume(stop > joined)
    judgement = _judge(program, stop, Flaw(restarts=True))
    assert names(judgement) == ["silent-restart"]
    assert judgement.resumes[0].lost_steps == stop
    assert judgement.holds_up_to is None


@QUICK
@given(st.data())
def test_gradients_alone_differ_on_three_ranks_by_their_order_of_addition(data):
    program = data.draw(programs(ranks=3))
    stop, joined = _plan(data, program)
    judgement = _judge(program, stop, Flaw(reorders_sum=True))
    _only(judgement, "reduction-order-changed", "gradients", joined)
    assert judgement.holds_up_to == "samples"


@QUICK
@given(st.data())
def test_gradients_alone_on_two_ranks_diverge(data):
    program = data.draw(programs(ranks=2))
    stop, joined = _plan(data, program)
    _only(
        _judge(program, stop, Flaw(reorders_sum=True)), "diverged", "gradients", joined
    )


@QUICK
@given(st.data())
def test_what_no_component_explains_has_diverged(data):
    program = data.draw(programs())
    stop, joined = _plan(data, program)
    assume(program.rate(joined) and joined + 1 < program.horizon)
    judgement = _judge(program, stop, Flaw(hidden=True))
    (finding,) = judgement.findings
    assert (finding.name, finding.step) == ("diverged", joined + 2)


@QUICK
@given(st.data())
def test_a_run_that_goes_on_too_long_has_a_wrong_count(data):
    program = data.draw(programs())
    stop, joined = _plan(data, program)
    judgement = _judge(program, stop, Flaw(extra_steps=data.draw(st.integers(1, 5))))
    assert names(judgement) == ["step-count-wrong"]
    assert judgement.holds_up_to == "state"
    del joined


@QUICK
@given(st.data())
def test_a_checkpoint_of_another_run_is_foreign(data):
    program = data.draw(programs(momentum=True))
    stop, _ = _plan(data, program)
    flaw = Flaw(
        foreign=frozenset({"weights", "optimizer", "averages", "scaler", *STREAMS}),
        lost=frozenset({"buffers"}),
    )
    assert names(_judge(program, stop, flaw)) == ["foreign-resume"]


@QUICK
@given(st.data())
def test_a_cast_on_the_way_back_is_a_changed_dtype(data):
    program = data.draw(programs(momentum=True))
    stop, joined = _plan(data, program)
    flaw = Flaw(foreign=frozenset({"optimizer"}), dtypes={"optimizer": "bfloat16"})
    judgement = _judge(program, stop, flaw)
    _only(judgement, "dtype-changed", "optimizer", joined)
    assert "bfloat16 instead of float32" in judgement.findings[0].message


@QUICK
@given(st.data())
def test_a_stream_lost_on_one_rank_is_named_on_that_rank(data):
    program = data.draw(programs(ranks=3, dropout_words=40, order="epoch"))
    stop, joined = _plan(data, program)
    rank = data.draw(st.integers(0, 2))
    judgement = _judge(
        program, stop, Flaw(lost=frozenset({"rng.torch"}), ranks=(rank,))
    )
    _only(judgement, "rng-not-restored", "rng.torch", joined)
    assert judgement.findings[0].rank == rank
    assert f"on rank {rank}" in judgement.findings[0].message
    assert judgement.resumes[0].divergence.rank == rank


@QUICK
@given(st.data())
def test_a_flaw_of_the_second_resume_alone_is_named_with_it(data):
    program = data.draw(programs(momentum=True, warmup=0, save_every=2))
    assume(program.horizon > 10)
    trial = program.trial(
        [5, 3], flaws={2: PERFECT, 3: Flaw(lost=frozenset({"optimizer"}))}
    )
    (finding,) = judge(trial, program.baseline()).findings
    assert (finding.name, finding.attempt, finding.step) == (
        "optimizer-not-restored",
        3,
        7,
    )


@QUICK
@given(st.data())
def test_a_flaw_of_every_resume_is_named_once(data):
    program = data.draw(programs(momentum=True, warmup=0, save_every=2))
    assume(program.horizon > 10)
    trial = program.trial([5, 3], flaw=Flaw(lost=frozenset({"optimizer"})))
    (finding,) = judge(trial, program.baseline()).findings
    assert (finding.name, finding.attempt, finding.step) == (
        "optimizer-not-restored",
        2,
        5,
    )


@QUICK
@given(st.data())
def test_a_perfect_resume_after_a_flawed_one_adds_nothing(data):
    program = data.draw(programs(momentum=True, warmup=0, save_every=2))
    assume(program.horizon > 10)
    trial = program.trial([5, 3], flaws={2: Flaw(lost=frozenset({"optimizer"}))})
    judgement = judge(trial, program.baseline())
    assert names(judgement) == ["optimizer-not-restored"]
    # It resumed from what the second attempt had saved, at step 6.
    assert judgement.resumes[1].joined == 6
    assert set(judgement.resumes[1].restored[0].values()) == {6}


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
    # Where weights stand still and not every step has a state, nothing tells the step.
    program = data.draw(programs(momentum=True, warmup=0, plateau=()))
    stop, joined = _plan(data, program)
    judgement = _judge_sparse(program, stop, PERFECT)
    assert names(judgement) == []
    assert judgement.resumes[0].joined == joined


@QUICK
@given(st.data())
def test_a_lost_optimizer_is_named_with_states_at_saves_alone(data):
    # Where weights stand still and not every step has a state, nothing tells the step.
    program = data.draw(programs(momentum=True, warmup=0, plateau=()))
    stop, joined = _plan(data, program)
    judgement = _judge_sparse(program, stop, Flaw(lost=frozenset({"optimizer"})))
    _only(judgement, "optimizer-not-restored", "optimizer", joined)


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
