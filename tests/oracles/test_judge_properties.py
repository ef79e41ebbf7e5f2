"""Whatever the program and the plan: a perfect resume is acquitted, one flaw is named."""

from __future__ import annotations

import pytest
from drawing import QUICK, kills, only_finding, plan_of, programs
from hypothesis import assume, given, strategies as st
from synthetic import PERFECT, STREAMS, Flaw, names

from spotchaos.model import Verdict
from spotchaos.oracles import judge


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


def _judge(program, stop, flaw, **changes):
    return judge(program.trial([stop], flaw=flaw), program.baseline(**changes))


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
    stop, joined = plan_of(data, program)
    fresh, saved = program.fresh(), program.attempt(stop=joined)[1][-1]
    assume(
        program.components(fresh, 0)[component]
        != program.components(saved, 0)[component]
    )
    judgement = _judge(program, stop, Flaw(lost=frozenset({component})))
    only_finding(judgement, name, component, joined)
    assert judgement.resumes[0].restored[0][component] == "fresh"


@QUICK
@given(st.data())
def test_a_lost_scheduler_is_one_finding_if_a_rate_ever_differs(data):
    program = data.draw(programs(momentum=True))
    stop, joined = plan_of(data, program)
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
    stop, joined = plan_of(data, program)
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
    stop, joined = plan_of(data, program)
    words = data.draw(st.integers(1, 8))
    judgement = _judge(program, stop, Flaw(disturbed={"rng.torch": words}))
    only_finding(judgement, "rng-disturbed", "rng.torch", joined)
    assert judgement.resumes[0].disturbed[0] == {"rng.torch": words}
    assert f"{words} draw" in judgement.findings[0].message


@QUICK
@given(st.data())
def test_a_stream_that_nothing_reads_is_a_note(data):
    program = data.draw(programs(dropout_words=0, order="epoch", iterator_words=2))
    stop, joined = plan_of(data, program)
    assume(joined >= program.epoch_steps)
    judgement = _judge(program, stop, Flaw(lost=frozenset({"rng.torch"})))
    assert names(judgement) == []
    assert judgement.holds_up_to == "bitwise"
    assert {n.name for n in judgement.notes} == {"rng-moved-without-effect"}


@QUICK
@given(st.data())
def test_a_lost_position_repeats_samples(data):
    program = data.draw(programs(augment_from=None))
    stop, joined = plan_of(data, program)
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
    stop, joined = plan_of(data, program)
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
    stop, joined = plan_of(data, program)
    assume(joined > program.save_every)
    judgement = _judge(program, stop, Flaw(stale={"optimizer": 1}))
    only_finding(judgement, "mixed-steps", "optimizer", joined)
    restored = judgement.resumes[0].restored[0]
    assert restored["optimizer"] == joined - program.save_every


@QUICK
@given(st.data())
def test_an_older_checkpoint_than_the_newest_whole_one_is_stale(data):
    program = data.draw(programs(momentum=True))
    stop, joined = plan_of(data, program)
    assume(joined > program.save_every and stop > joined)
    judgement = _judge(program, stop, Flaw(older=1))
    assert names(judgement) == ["stale-resume"]
    assert judgement.resumes[0].joined == joined - program.save_every
    assert judgement.resumes[0].newest_resume_point == joined


@QUICK
@given(st.data())
def test_a_start_from_nothing_beside_a_checkpoint_is_a_silent_restart(data):
    program = data.draw(programs(momentum=True))
    stop, joined = plan_of(data, program)
    assume(stop > joined)
    judgement = _judge(program, stop, Flaw(restarts=True))
    assert names(judgement) == ["silent-restart"]
    assert judgement.resumes[0].lost_steps == stop
    assert judgement.holds_up_to is None


@QUICK
@given(st.data())
def test_gradients_alone_differ_on_three_ranks_by_their_order_of_addition(data):
    program = data.draw(programs(ranks=3))
    stop, joined = plan_of(data, program)
    judgement = _judge(program, stop, Flaw(reorders_sum=True))
    only_finding(judgement, "reduction-order-changed", "gradients", joined)
    assert judgement.holds_up_to == "samples"


@QUICK
@given(st.data())
def test_gradients_alone_on_two_ranks_diverge(data):
    program = data.draw(programs(ranks=2))
    stop, joined = plan_of(data, program)
    only_finding(
        _judge(program, stop, Flaw(reorders_sum=True)), "diverged", "gradients", joined
    )


@QUICK
@given(st.data())
def test_what_no_component_explains_has_diverged(data):
    program = data.draw(programs())
    stop, joined = plan_of(data, program)
    assume(program.rate(joined) and joined + 1 < program.horizon)
    judgement = _judge(program, stop, Flaw(hidden=True))
    (finding,) = judgement.findings
    assert (finding.name, finding.step) == ("diverged", joined + 2)


@QUICK
@given(st.data())
def test_a_run_that_goes_on_too_long_has_a_wrong_count(data):
    program = data.draw(programs())
    stop, joined = plan_of(data, program)
    judgement = _judge(program, stop, Flaw(extra_steps=data.draw(st.integers(1, 5))))
    assert names(judgement) == ["step-count-wrong"]
    assert judgement.holds_up_to == "state"
    del joined


@QUICK
@given(st.data())
def test_a_checkpoint_of_another_run_is_foreign(data):
    program = data.draw(programs(momentum=True))
    stop, _ = plan_of(data, program)
    flaw = Flaw(
        foreign=frozenset({"weights", "optimizer", "averages", "scaler", *STREAMS}),
        lost=frozenset({"buffers"}),
    )
    assert names(_judge(program, stop, flaw)) == ["foreign-resume"]


@QUICK
@given(st.data())
def test_a_cast_on_the_way_back_is_a_changed_dtype(data):
    program = data.draw(programs(momentum=True))
    stop, joined = plan_of(data, program)
    flaw = Flaw(foreign=frozenset({"optimizer"}), dtypes={"optimizer": "bfloat16"})
    judgement = _judge(program, stop, flaw)
    only_finding(judgement, "dtype-changed", "optimizer", joined)
    assert "bfloat16 instead of float32" in judgement.findings[0].message


@QUICK
@given(st.data())
def test_a_stream_lost_on_one_rank_is_named_on_that_rank(data):
    program = data.draw(programs(ranks=3, dropout_words=40, order="epoch"))
    stop, joined = plan_of(data, program)
    rank = data.draw(st.integers(0, 2))
    judgement = _judge(
        program, stop, Flaw(lost=frozenset({"rng.torch"}), ranks=(rank,))
    )
    only_finding(judgement, "rng-not-restored", "rng.torch", joined)
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


@st.composite
def flaws(draw):
    lost = draw(st.sets(st.sampled_from(["position", "order", "epoch", "rng.torch"])))
    return Flaw(
        lost=frozenset(lost),
        ahead=draw(st.sampled_from([0, 0, 1, 2])),
        older=draw(st.sampled_from([0, 0, 0, 1])),
        restarts=draw(st.sampled_from([False, False, False, True])),
        skip_batches=draw(st.sampled_from([0, 0, 1, 2])),
        next_epoch=draw(st.sampled_from([False, False, True])),
        extra_steps=draw(st.sampled_from([0, 0, -1, -3, 2])),
    )


@QUICK
@given(st.data())
def test_samples_are_never_missing_or_too_many_without_a_finding(data):
    program = data.draw(programs())
    stop, joined = plan_of(data, program)
    assume(joined > program.save_every)  # an older checkpoint is there
    flaw = data.draw(flaws())
    judgement = judge(program.trial([stop], flaw=flaw), program.baseline())
    if judgement.ledger["repeated"] or judgement.ledger["skipped"]:
        assert names(judgement) != []


@QUICK
@given(st.data())
def test_who_begins_ahead_of_all_that_was_trained_skips_what_lies_between(data):
    program = data.draw(programs(plateau=(), warmup=0))
    stop, joined = plan_of(data, program)
    judgement = judge(program.trial([stop], flaw=Flaw(ahead=1)), program.baseline())
    later = joined + program.save_every
    assume(stop < later < program.horizon)
    found = [f for f in judgement.findings if f.name == "samples-skipped"]
    assert names(judgement) == ["samples-skipped"]
    assert found[0].step == stop + 1
    assert judgement.ledger["skipped"] > 0
