"""What is said of a state that came back, and of the runs that it is compared with."""

from __future__ import annotations

from dataclasses import replace

from laying import BASELINE, PLAIN, changed, lost, with_last
from synthetic import Flaw, Program, digest, names

from spotchaos.model import Divergence, Ended, Verdict
from spotchaos.oracles import judge
from spotchaos.oracles.divergence import with_measured

# -- rule 1: the state of a step -------------------------------------------------------


def test_several_lost_components_are_each_named():
    program = Program(order="epoch")
    flaw = lost("optimizer", "scheduler", "rng.torch")
    judgement = judge(program.trial([17], flaw=flaw), program.baseline())
    assert names(judgement) == [
        "optimizer-not-restored",
        "scheduler-not-restored",
        "rng-not-restored",
    ]


def test_rates_that_live_in_a_lost_optimizer_are_its_consequence():
    program = Program(has_scheduler=False)
    flaw = lost("optimizer", "scheduler")
    judgement = judge(program.trial([13], flaw=flaw), program.baseline())
    assert names(judgement) == ["optimizer-not-restored"]


def test_a_scheduler_one_step_ahead_is_not_another_checkpoint():
    (finding,) = judge(
        PLAIN.trial([13], flaw=Flaw(scheduler_ahead=1)), BASELINE
    ).findings
    assert finding.name == "scheduler-not-restored"
    assert "of step 13" in finding.message


def test_a_scheduler_counted_otherwise_with_equal_rates_is_no_finding():
    program = Program(constant_rate=True)
    judgement = judge(program.trial([13], flaw=lost("scheduler")), program.baseline())
    assert judgement.verdict is Verdict.HELD
    assert [note.name for note in judgement.notes] == ["scheduler-moved-without-effect"]


def test_a_stream_that_reaches_an_augmentation_breaks_a_promise():
    program = Program(dropout_words=0, order="epoch", augment_from="rng.numpy")
    judgement = judge(program.trial([13], flaw=lost("rng.numpy")), program.baseline())
    assert names(judgement) == ["rng-not-restored"]
    assert judgement.findings[0].component == "rng.numpy"


def test_a_stream_that_nobody_reads_until_the_end_breaks_none():
    program = Program(dropout_words=0, order="epoch")
    judgement = judge(program.trial([13], flaw=lost("rng.torch")), program.baseline())
    assert (names(judgement), judgement.holds_up_to) == ([], "bitwise")
    assert [note.name for note in judgement.notes] == ["rng-moved-without-effect"]


def test_a_stream_with_one_value_all_run_is_restored_wherever_it_was_left():
    judgement = judge(PLAIN.trial([13], flaw=lost("rng.python")), BASELINE)
    assert names(judgement) == []
    assert judgement.resumes[0].restored[0]["rng.python"] == 12


def test_a_stream_without_effect_is_acquitted_beside_one_that_has_one():
    program = Program(dropout_words=40, order="epoch", augment_from="rng.numpy")
    flaw = lost("rng.torch", "rng.generators")
    judgement = judge(program.trial([13], flaw=flaw), program.baseline())
    assert [f.component for f in judgement.findings] == ["rng.torch"]


def test_a_stream_on_which_baselines_disagree_is_not_compared():
    baseline = PLAIN.baseline(not_compared=("rng.torch",))
    flaw = Flaw(disturbed={"rng.torch": 0}, foreign=frozenset())
    trial = PLAIN.trial([13], flaw=flaw)
    judgement = judge(trial, baseline)
    assert "rng.torch" not in judgement.resumes[0].restored[0]
    assert names(judgement) == []


# -- rule 4: baselines; a trial is a third one until it is interrupted ---------------------


def test_a_trial_that_parts_before_its_interruption_is_not_repeatable():
    other = Program(seed=0, dropout_words=41)
    trial = PLAIN.trial([13])
    told = replace(trial, attempts=(other.attempt(stop=13)[0], trial.attempts[1]))
    judgement = judge(told, BASELINE)
    assert names(judgement) == ["not-repeatable"]
    assert judgement.verdict is Verdict.UNKNOWN


def test_what_a_program_does_after_a_signal_is_not_held_against_its_baseline():
    def moved(rank):
        state = rank.states[12]
        other = replace(
            state, components={**state.components, "weights": digest("ema")}
        )
        return replace(rank, states={**rank.states, 12: other})

    trial = PLAIN.trial([13])
    warned = changed(
        trial.attempts[0],
        ranks=moved,
        signal="TERM",
        signalled_step=12,
        ended=Ended.EXITED,
        exit_code=143,
    )
    told = replace(trial, attempts=(warned, trial.attempts[1]))
    assert "not-repeatable" not in names(judge(told, BASELINE))


# -- divergence ------------------------------------------------------------------------


def test_a_divergence_names_the_earliest_step_and_all_that_differs_there():
    judgement = judge(PLAIN.trial([13], flaw=lost("rng.torch")), BASELINE)
    assert judgement.resumes[0].divergence == Divergence(
        step=13, rank=0, components=("rng.torch", "loss", "gradients")
    )


def test_gradients_that_a_replay_finds_far_apart_are_no_other_order_of_addition():
    program = Program(ranks=3)
    judgement = judge(
        program.trial([13], flaw=Flaw(reorders_sum=True)), program.baseline()
    )
    assert names(judgement) == ["reduction-order-changed"]
    found = judgement.resumes[0].divergence
    near = replace(found, tensor="0.weight", elements=12, max_ulp=3)
    far = replace(near, max_ulp=1 << 40)
    assert names(with_measured(judgement, near, attempt=2)) == [
        "reduction-order-changed"
    ]
    assert names(with_measured(judgement, far, attempt=2)) == ["diverged"]
    assert with_measured(judgement, near, attempt=2).resumes[0].divergence == near


def test_a_lost_rate_on_three_ranks_is_no_other_order_of_addition():
    program = Program(ranks=3)
    judgement = judge(program.trial([13], flaw=lost("scheduler")), program.baseline())
    assert names(judgement) == ["scheduler-not-restored"]


def test_a_run_that_differs_only_in_how_it_was_left_has_diverged():
    def left(rank):
        finish = replace(
            rank.finish,
            components={**rank.finish.components, "weights": digest("best")},
        )
        return replace(rank, finish=finish)

    judgement = judge(with_last(PLAIN.trial([13]), ranks=left), BASELINE)
    (finding,) = judgement.findings
    assert (finding.name, finding.component) == ("diverged", "weights")
    assert "at the end" in finding.message


def test_ranks_that_resume_from_different_steps_are_only_that():
    program = Program(ranks=3)
    judgement = judge(
        program.trial([13], flaw=Flaw(rank_older={1: 1})), program.baseline()
    )
    (finding,) = judgement.findings
    assert finding.name == "ranks-disagree"
    assert (
        "rank 0 at step 12, rank 1 at step 8 and rank 2 at step 12" in finding.message
    )


def without_optimizer_at_first(flaw):
    """Resume with no optimizer before its first step, as where a library makes it then."""
    trial = PLAIN.trial([13], flaw=flaw)
    one, two = trial.attempts
    rank = two.trace.ranks[0]
    first = rank.states[0]
    kept = {k: v for k, v in first.components.items() if k != "optimizer"}
    states = {**rank.states, 0: replace(first, components=kept)}
    trace = replace(two.trace, ranks={0: replace(rank, states=states)})
    return replace(trial, attempts=(one, replace(two, trace=trace)))


def test_an_optimizer_that_is_made_in_its_first_step_is_known_by_what_it_does():
    assert not judge(without_optimizer_at_first(Flaw()), BASELINE).findings
    (finding,) = judge(without_optimizer_at_first(lost("optimizer")), BASELINE).findings
    assert (finding.name, finding.step) == ("optimizer-not-restored", 13)
    assert "made its optimizer only at step 13" in finding.message


def test_a_step_that_goes_otherwise_with_the_optimizer_in_place_is_not_its_fault():
    (finding,) = judge(PLAIN.trial([13], flaw=Flaw(hidden=True)), BASELINE).findings
    assert finding.name == "diverged"


def using(attempt, *values, loss=None):
    """Have each step call a module with these weights that nothing trains.

    Where `loss` is given, it is what the first step makes of them.
    """

    def with_module(rank):
        used = {"teacher": frozenset(values)}
        first, *others = (replace(mark, frozen=used) for mark in rank.steps)
        if loss is not None:
            first = replace(first, components={**first.components, "loss": loss})
        return replace(rank, steps=(first, *others))

    return changed(attempt, ranks=with_module)


def resumed_with(flaw, *values, loss="another"):
    """Judge a program with a teacher "T" that is resumed with other modules."""
    baseline = replace(BASELINE, runs=tuple(using(run, "T") for run in BASELINE.runs))
    one, two = PLAIN.trial([13], flaw=flaw).attempts
    two = using(two, *values, loss=loss)
    trial = replace(PLAIN.trial([13]), attempts=(using(one, "T"), two))
    return judge(trial, baseline)


def test_weights_that_nothing_trains_are_named_where_they_are_other_ones():
    judgement = resumed_with(Flaw(hidden=True), "F")
    (finding,) = judgement.findings
    assert (finding.name, finding.component) == ("weights-not-restored", "frozen")
    assert finding.step == 13
    assert judgement.resumes[0].restored[0]["frozen"] == "foreign"


def test_weights_that_nothing_trains_and_that_came_back_explain_nothing():
    for values in (("T",), ("T", "of another"), ()):
        (finding,) = resumed_with(Flaw(hidden=True), *values).findings
        assert finding.name == "diverged"


def test_weights_that_nothing_trains_and_that_change_nothing_are_no_finding():
    assert not resumed_with(Flaw(), "F", loss=None).findings


def with_schedulers(attempt, value_at):
    """Give each state the scheduler that `value_at` says it has; None: it has none."""
    rank = attempt.trace.ranks[0]
    states = {}
    for step, state in rank.states.items():
        others = {k: v for k, v in state.components.items() if k != "scheduler"}
        value = value_at(step)
        own = {} if value is None else {"scheduler": f"after {value}"}
        states[step] = replace(state, components={**others, **own})
    trace = replace(attempt.trace, ranks={0: replace(rank, states=states)})
    return replace(attempt, trace=trace)


def test_what_is_made_later_in_a_run_is_fresh_as_it_is_there():
    # A scheduler made after a first stage, at a step that is saved, is as of that step.
    def in_line(step):
        return step if step >= 4 else None

    runs = tuple(with_schedulers(run, in_line) for run in BASELINE.runs)
    baseline = replace(BASELINE, runs=runs)
    one, two = PLAIN.trial([13], flaw=lost("scheduler")).attempts
    for start, name in ((4, "scheduler-not-restored"), (8, "mixed-steps")):
        resumed = with_schedulers(two, lambda step, start=start: start + step)
        attempts = (with_schedulers(one, in_line), resumed)
        trial = replace(PLAIN.trial([13]), attempts=attempts)
        assert name in names(judge(trial, baseline))
        assert ("mixed-steps" in names(judge(trial, baseline))) is (start == 8)
