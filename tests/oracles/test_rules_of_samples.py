"""What is said of the samples after a resume: repeated, skipped, in another order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from laying import BASELINE, PLAIN, changed, lost, with_last
from synthetic import Flaw, Program, digest, names

from spotchaos.oracles import judge
from spotchaos.oracles.lineage import lay_out
from spotchaos.oracles.samples import whole_course

# -- rule 2: samples -------------------------------------------------------------------


def test_steps_done_again_are_lost_work_and_not_repeated_samples():
    judgement = judge(PLAIN.trial([15, 2]), BASELINE)
    assert [r.lost_steps for r in judgement.resumes] == [3, 2]
    assert (judgement.ledger["repeated"], judgement.ledger["skipped"]) == (0, 0)
    assert names(judgement) == []


def test_a_last_attempt_that_ends_early_leaves_out_what_came_after_it():
    def only_one_step(rank):
        return replace(rank, steps=rank.steps[:1])

    judgement = judge(with_last(PLAIN.trial([15]), ranks=only_one_step), BASELINE)
    # It joined at step 12 of 24, and each step has two samples.
    assert (judgement.ledger["repeated"], judgement.ledger["skipped"]) == (0, 22)


def test_what_a_rank_that_is_gone_had_trained_on_counts():
    two = Program(ranks=2)
    trial = two.trial([13])
    last = trial.attempts[1]
    alone = replace(last.trace, ranks={0: last.trace.ranks[0]})
    trial = replace(trial, attempts=(trial.attempts[0], replace(last, trace=alone)))
    course = whole_course(lay_out(trial, two.baseline()).links[1])
    assert {rank: max(steps) for rank, steps in course.items()} == {0: 24, 1: 12}


def on_one_rank(trial, *, of=(0, 1)):
    """Let the last attempt train on one rank what two had, in a rank's own other way."""
    last = trial.attempts[-1]
    one, other = (last.trace.ranks[rank] for rank in (0, 1))

    def own(mark):
        common = {
            name: value
            for name, value in mark.components.items()
            if not name.startswith("rng.") and name not in ("batch", "samples", "loss")
        }
        others = mark.components.keys() - common.keys()
        return {**common, **{name: digest("one rank's", name) for name in others}}

    steps = [
        replace(
            mine,
            components=own(mine),
            samples=(*(mine, theirs)[of[0]].samples, *(mine, theirs)[of[1]].samples),
            rows=None,
        )
        for mine, theirs in zip(one.steps, other.steps, strict=True)
    ]
    states = {n: replace(s, components=own(s), rng={}) for n, s in one.states.items()}
    rank = replace(one, steps=tuple(steps), states=states, finish=None)
    trace = replace(last.trace, ranks={0: rank}, world_size=1)
    attempts = (*trial.attempts[:-1], replace(last, trace=trace))
    return replace(trial, attempts=attempts)


def test_a_run_that_goes_on_with_fewer_ranks_has_no_rank_to_be_compared_with():
    two = Program(ranks=2)
    held = judge(on_one_rank(two.trial([13])), two.baseline())
    assert names(held) == []
    assert (held.ledger["repeated"], held.ledger["skipped"]) == (0, 0)


def test_a_run_that_goes_on_with_fewer_ranks_must_train_on_all_samples():
    two = Program(ranks=2)
    judgement = judge(on_one_rank(two.trial([13]), of=(0, 0)), two.baseline())
    assert names(judgement) == ["samples-repeated", "samples-skipped"]


def test_samples_whose_gradients_were_put_aside_are_not_missing():
    two = Program(ranks=2)
    trial = two.trial([13])
    last = trial.attempts[-1]
    alone = on_one_rank(trial).attempts[-1].trace.ranks[0]
    steps = [
        replace(mark, samples=mark.samples[len(mark.samples) // 2 :])
        for mark in alone.steps
    ]
    trace = replace(
        last.trace, ranks={0: replace(alone, steps=tuple(steps))}, world_size=1
    )
    trial = replace(trial, attempts=(trial.attempts[0], replace(last, trace=trace)))
    assert names(judge(trial, two.baseline())) == []


def test_a_run_that_goes_on_with_fewer_ranks_needs_its_optimizer():
    two = Program(ranks=2)
    trial = on_one_rank(two.trial([13], flaw=lost("optimizer")))
    assert "optimizer-not-restored" in names(judge(trial, two.baseline()))


def test_a_loader_of_what_is_left_that_numbers_anew_repeats_nothing():
    def numbered_anew(rank):
        steps = [
            replace(
                mark,
                samples=tuple(str(i) for i in range(len(mark.samples))),
                components={**mark.components, "samples": digest("anew", mark.step)},
            )
            for mark in rank.steps
        ]
        return replace(rank, steps=tuple(steps))

    judgement = judge(with_last(PLAIN.trial([13]), ranks=numbered_anew), BASELINE)
    assert names(judgement) == []
    assert (judgement.ledger["repeated"], judgement.ledger["skipped"]) == (0, 0)
    flaw = lost("rng.torch")
    program = Program(order="epoch")
    trial = with_last(program.trial([13], flaw=flaw), ranks=numbered_anew)
    assert names(judge(trial, program.baseline())) == ["rng-not-restored"]


def test_the_ledger_counts_for_each_epoch():
    judgement = judge(PLAIN.trial([13], flaw=lost("position")), BASELINE)
    assert judgement.ledger["epochs"] == [
        {"epoch": 0, "repeated": 0, "skipped": 0},
        {"epoch": 1, "repeated": 8, "skipped": 0},
        {"epoch": 2, "repeated": 0, "skipped": 8},
    ]
    assert names(judgement) == ["samples-repeated", "samples-skipped"]


def test_the_same_samples_otherwise_augmented_are_no_other_order():
    program = Program(dropout_words=0, order="epoch", augment_from="rng.numpy")
    flaw = lost("rng.numpy")
    assert "order-changed" not in names(
        judge(program.trial([13], flaw=flaw), program.baseline())
    )


def test_a_stream_that_was_moved_and_augments_the_same_samples_is_the_cause():
    program = Program(dropout_words=0, order="epoch", augment_from="rng.numpy")
    flaw = Flaw(disturbed={"rng.numpy": 64})
    judgement = judge(program.trial([13], flaw=flaw), program.baseline())
    assert names(judgement) == ["rng-disturbed"]


def made_anew(rank):
    """Return a rank that trained on samples which nobody ever had."""
    steps = []
    for mark in rank.steps:
        new = tuple(f"new {mark.step} {s}" for s in mark.samples)
        other = {"batch": digest("new", new), "samples": digest("samples", new)}
        components = {**mark.components, **other}
        steps.append(
            replace(mark, samples=new, ids="rows", rows=None, components=components)
        )
    return replace(rank, steps=tuple(steps))


def test_samples_that_the_run_never_had_may_be_of_a_memory_that_was_not_saved():
    trial = PLAIN.trial([13], flaw=Flaw(disturbed={"rng.torch": 49}))
    known = judge(trial, BASELINE).findings[0]
    new = judge(with_last(trial, ranks=made_anew), BASELINE).findings[0]
    assert known.name == new.name == "rng-disturbed"
    assert "replay memory" not in known.hint
    assert "replay memory" in new.hint


def test_a_batch_that_only_an_unseen_generator_explains_is_said_to_be_that():
    program = Program(dropout_words=0, order="epoch")
    trial = with_last(program.trial([13]), ranks=made_anew)
    (finding,) = judge(trial, program.baseline()).findings
    assert finding.name == "diverged"
    assert "numpy.random.default_rng" in finding.hint


def test_an_order_drawn_from_a_lost_stream_is_named_with_it():
    program = Program(dropout_words=0, order="rng.generators")
    flaw = lost("rng.generators")
    judgement = judge(program.trial([13], flaw=flaw), program.baseline())
    assert names(judgement) == ["rng-not-restored", "order-changed"]
    assert judgement.findings[0].component == "rng.generators"
    assert "loaders and samplers are as at" in judgement.findings[0].message


def of_its_own(rank):
    """Return the trace of a program whose order is drawn by a generator of its own."""
    named = {"rng.generators": "rng.own"}

    def renamed(state):
        if state is None:
            return None
        found = {named.get(c, c): value for c, value in state.components.items()}
        rng = {named.get(c, c): value for c, value in state.rng.items()}
        return replace(state, components=found, rng=rng)

    return replace(
        rank,
        states={step: renamed(state) for step, state in rank.states.items()},
        saves=tuple(replace(s, state=renamed(s.state)) for s in rank.saves),
        finish=renamed(rank.finish),
    )


@pytest.mark.parametrize(
    ("flaw", "expected"),
    [
        pytest.param(
            lost("rng.generators"), ["rng-not-restored", "order-changed"], id="lost"
        ),
        pytest.param(Flaw(), [], id="restored"),
    ],
)
def test_a_generator_of_the_programs_own_is_named(flaw, expected):
    program = Program(dropout_words=0, order="rng.generators")
    run = program.baseline()
    baseline = replace(run, runs=tuple(changed(r, ranks=of_its_own) for r in run.runs))
    trial = program.trial([13], flaw=flaw)
    attempts = tuple(changed(a, ranks=of_its_own) for a in trial.attempts)
    judgement = judge(replace(trial, attempts=attempts), baseline)
    assert names(judgement) == expected
    for finding in judgement.findings[:1]:
        assert "the program's own random generators" in finding.message
        assert "bit_generator.state" in finding.hint


def test_steps_that_a_lost_scaler_skipped_are_its_only_finding():
    def skipping(rank):
        return replace(rank, counts={**rank.counts, "backward": len(rank.steps) + 3})

    program = Program(has_scaler=True)
    trial = program.trial([13], flaw=lost("scaler", "rng.torch"))
    baseline = program.baseline()
    assert "rng-not-restored" in names(judge(trial, baseline))
    (finding,) = judge(with_last(trial, ranks=skipping), baseline).findings
    assert finding.name == "scaler-not-restored"
    assert "skipped steps" in finding.message


def in_two(kept, *, has_gradients=False):
    """Let steps be made of two micro-batches; `first`: that one of one, with `kept`."""

    def accumulated(rank, first=None):
        steps = []
        for mark in rank.steps:
            cut = kept(mark.samples)
            other = {"batch": digest("half", cut), "samples": digest("samples", cut)}
            if not has_gradients:
                other["gradients"] = digest("gradients of", cut)
            half = mark.step == first
            steps.append(
                replace(
                    mark,
                    micro=1 if half else 2,
                    samples=cut if half else mark.samples,
                    components={**mark.components, **(other if half else {})},
                )
            )
        return replace(rank, steps=tuple(steps))

    return accumulated


def first_step_of(kept, **how):
    """Return the judgement of a resume whose first step has one micro-batch of two."""
    accumulated = in_two(kept, **how)
    runs = tuple(changed(run, ranks=accumulated) for run in BASELINE.runs)
    baseline = replace(BASELINE, runs=runs)
    trial = PLAIN.trial([13])
    assert names(judge(with_last(trial, ranks=accumulated), baseline)) == []
    halved = with_last(trial, ranks=lambda rank: accumulated(rank, first=1))
    return judge(halved, baseline)


def last_half(samples):
    return samples[len(samples) // 2 :]


def test_gradients_that_came_back_are_made_of_their_samples():
    judgement = first_step_of(last_half, has_gradients=True)
    assert names(judgement) == []
    assert judgement.ledger["skipped"] == 0


@pytest.mark.parametrize("has_gradients", [False, True])
def test_a_stream_within_a_window_is_where_the_program_had_left_it(has_gradients):
    """It was saved after half of the step's draws, and ends the step where it should."""
    accumulated = in_two(last_half, has_gradients=has_gradients)

    def moved(rank):
        rank = accumulated(rank, first=1)
        state = rank.states[0]
        block, following, used = state.rng["rng.torch"]
        stream = block, following, used + 300
        components = {**state.components, "rng.torch": f"{block}.{used + 300}"}
        components["buffers"] = digest("between")
        rng = {**state.rng, "rng.torch": stream}
        first = replace(state, components=components, rng=rng)
        return replace(rank, states={**rank.states, 0: first})

    program = Program(has_buffers=True)
    run = program.baseline()
    runs = tuple(changed(each, ranks=accumulated) for each in run.runs)
    baseline = replace(run, runs=runs)
    judgement = judge(with_last(program.trial([13]), ranks=moved), baseline)
    assert names(judgement) == ([] if has_gradients else ["samples-skipped"])
    assert "rng-moved-without-effect" not in [note.name for note in judgement.notes]


def test_a_step_that_was_saved_half_way_says_what_is_lost():
    (finding,) = first_step_of(last_half).findings
    assert finding.name == "samples-skipped"
    assert finding.message.startswith(
        "the first step after the resume at step 12 was made of 1 micro-batch instead of"
        " 2: the gradients of "
    )


def test_a_step_of_fewer_micro_batches_is_said_to_be_that():
    (finding,) = first_step_of(lambda samples: samples[: len(samples) // 2]).findings
    assert finding.message.startswith(
        "step 13, after the resume at step 12, was made of 1 micro-batch instead of 2; "
    )
    assert "counter" in finding.hint


def test_a_fixed_order_is_not_drawn_from_a_lost_stream():
    program = Program(dropout_words=0, order="fixed")
    judgement = judge(
        program.trial([13], flaw=lost("rng.torch", "position")), program.baseline()
    )
    assert "rng-not-restored" not in names(judgement)
    assert "samples-repeated" in names(judgement)


def test_an_epoch_that_is_left_out_is_skipped_and_the_next_repeats_nothing():
    program = Program(order="epoch", batch=4, dropout_words=0)
    flaw = Flaw(next_epoch=True)
    judgement = judge(program.trial([13], flaw=flaw), program.baseline())
    assert names(judgement) == ["samples-skipped"]
    (finding,) = judgement.findings
    assert "got the batch of step 17 instead of 13; 16 samples left out" in (
        finding.message
    )
    assert judgement.ledger["epochs"][1] == {"epoch": 1, "repeated": 0, "skipped": 16}
    assert names(judge(program.trial([13]), program.baseline())) == []


def test_a_stream_that_was_moved_did_not_draw_a_batch_of_another_step():
    """The epoch's iterator was made after the restore; each step draws from it too."""
    program = Program(order="epoch", batch=4)
    flaw = Flaw(next_epoch=True)
    judgement = judge(program.trial([13], flaw=flaw), program.baseline())
    assert names(judgement) == ["rng-disturbed", "samples-skipped"]
    assert "it is read within each step" in judgement.findings[0].message
    program = Program()
    judgement = judge(program.trial([13], flaw=lost("rng.torch")), program.baseline())
    assert names(judgement) == ["rng-not-restored", "order-changed"]


def test_an_epoch_that_starts_again_is_repeated_and_nothing_of_the_next_is_skipped():
    program = Program(order="epoch", batch=4)
    flaw = lost("position", extra_steps=4)
    judgement = judge(program.trial([13], flaw=flaw), program.baseline())
    assert names(judgement) == ["step-count-wrong", "samples-repeated"]
    assert (judgement.ledger["repeated"], judgement.ledger["skipped"]) == (16, 0)


def test_an_epoch_that_starts_again_does_so_by_no_stream_of_another_epoch():
    program = Program(order="epoch", batch=4, dropout_words=0)
    flaw = lost("position", "rng.torch", extra_steps=4)
    judgement = judge(program.trial([13], flaw=flaw), program.baseline())
    assert judgement.resumes[0].restored[0]["rng.torch"] == "fresh"
    assert "rng-not-restored" not in names(judgement)
    assert "samples-repeated" in names(judgement)


def test_an_epoch_begun_again_in_the_order_of_the_next_is_repeated():
    program = Program(order="epoch", batch=4, dropout_words=0)
    flaw = Flaw(next_epoch=True, extra_steps=4)
    judgement = judge(program.trial([13], flaw=flaw), program.baseline())
    assert names(judgement) == ["step-count-wrong", "samples-repeated"]
    assert "16 samples trained on again" in judgement.findings[1].message


@pytest.mark.parametrize("words", [0, 41])
def test_what_is_left_of_an_epoch_in_another_order_is_neither_more_nor_less(words):
    """Shuffling it again may move a stream that was restored: that is no loss of it."""
    program = Program(order="epoch", dropout_words=0)
    flaw = lost("order", renumbers=True, disturbed={"rng.torch": words})

    def shuffled_again(rank):
        """Turn the order of what was left of the epoch around."""
        first, *others = rank.steps
        left = [m for m in (first, *others) if m.epoch == first.epoch]
        turned = [
            replace(
                mark,
                samples=mark.samples,
                rows=other.rows[::-1],
                components={
                    **mark.components,
                    "batch": digest("turned", mark.step),
                    "samples": digest("turned", mark.step),
                    "loss": digest("turned", mark.step),
                },
            )
            for mark, other in zip(left, reversed(left), strict=True)
        ]
        return replace(rank, steps=(*turned, *rank.steps[len(left) :]))

    trial = with_last(program.trial([13], flaw=flaw), ranks=shuffled_again)
    judgement = judge(trial, program.baseline())
    assert names(judgement) == ["order-changed"]
    assert (judgement.ledger["repeated"], judgement.ledger["skipped"]) == (0, 0)
    assert names(judge(program.trial([13], flaw=flaw), program.baseline())) == []


@pytest.mark.parametrize("seen", ["index", "rows"])
def test_samples_have_one_name_with_a_loader_and_without(seen):
    """After the resume the batches come from a loader, or no longer from one."""
    other = "rows" if seen == "index" else "index"
    program, twin = (
        Program(order="epoch", dropout_words=0, ids=ids) for ids in (seen, other)
    )
    flaw = lost("position")
    expected = judge(program.trial([13], flaw=flaw), program.baseline())
    begun, _ = program.attempt(stop=13)
    resumed = twin.trial([13], flaw=flaw).attempts[1]
    trial = replace(program.trial([13]), attempts=(begun, resumed))
    assert names(judge(trial, program.baseline())) == names(expected)
    right = replace(trial, attempts=(begun, twin.trial([13]).attempts[1]))
    assert names(judge(right, program.baseline())) == []


def test_an_order_that_starts_again_is_told_though_its_batches_come_round():
    program = Program(order="fixed")
    judgement = judge(program.trial([21], flaw=lost("position")), program.baseline())
    # The batch of step 1 is also that of step 17, which is nearer to step 21.
    assert judgement.resumes[0].joined == 20
    assert "the order starts again" in judgement.findings[0].message
