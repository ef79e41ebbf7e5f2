"""Whether uninterrupted runs can be compared with, and where they part if not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synthetic import Program, digest

from spotchaos.campaign.zygote_setup import unlike
from spotchaos.model import AttemptTrace, LoadMark
from spotchaos.oracles import judge_baselines

PLAIN = Program(has_buffers=True)


def run(program=PLAIN):
    return program.attempt()[0]


def changed(attempt, change):
    trace = attempt.trace
    return replace(
        attempt,
        trace=replace(
            trace, ranks={r: change(each) for r, each in trace.ranks.items()}
        ),
    )


def states_changed(rank, component, *, since):
    states = {
        step: replace(
            state,
            components={
                **state.components,
                component: digest(state.components[component]),
            },
        )
        if step >= since
        else state
        for step, state in rank.states.items()
    }
    return replace(rank, states=states)


def steps_changed(rank, component, *, since):
    steps = [
        replace(
            mark,
            components={
                **mark.components,
                component: digest(mark.components[component]),
            },
        )
        if mark.step >= since
        else mark
        for mark in rank.steps
    ]
    return replace(rank, steps=tuple(steps))


def differing(*changes):
    """Return a run that differs from the plain one, by (what, component, since)."""
    attempt = run()
    for change, component, since in changes:
        attempt = changed(
            attempt, lambda rank, c=change, k=component, s=since: c(rank, k, since=s)
        )
    return attempt


def test_equal_runs_are_repeatable_and_everything_is_compared():
    facts = judge_baselines((run(), run()), run())
    assert (facts.repeatable, facts.finding, facts.notes) == (True, None, ())
    assert facts.baseline.not_compared == ()
    assert facts.baseline.horizon == PLAIN.horizon


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        pytest.param(
            [(states_changed, "weights", 0), (steps_changed, "batch", 1)],
            "the weights differ before the first step",
            id="initialisation",
        ),
        pytest.param(
            [(steps_changed, "batch", 1), (states_changed, "weights", 1)],
            "the batch of step 1 differs",
            id="first-batch",
        ),
        pytest.param(
            [(steps_changed, "loss", 3), (states_changed, "weights", 3)],
            "the loss of step 3 differs",
            id="loss",
        ),
        pytest.param(
            [(steps_changed, "gradients", 2), (states_changed, "weights", 2)],
            "the gradients of step 2 differ, on an equal batch and loss",
            id="gradients",
        ),
        pytest.param(
            [(states_changed, "weights", 5)],
            "the weights after step 5 differ",
            id="weights",
        ),
    ],
)
def test_runs_with_other_weights_do_not_repeat_and_part_somewhere(changes, said):
    facts = judge_baselines((run(), differing(*changes)))
    assert facts.finding.name == "not-repeatable"
    assert not facts.repeatable
    assert said in facts.baseline.differs_at
    assert "--seed-program" in facts.finding.hint


def test_a_component_that_differs_with_equal_weights_is_not_compared_and_noted():
    facts = judge_baselines((run(), differing((states_changed, "rng.torch", 0))))
    assert (facts.repeatable, facts.finding) == (True, None)
    assert facts.baseline.not_compared == ("rng.torch",)
    (note,) = facts.notes
    assert note.name == "component-not-compared"
    assert "torch's random stream, first at step 0" in note.message


def test_a_stream_that_nobody_draws_from_is_not_compared_without_a_word():
    facts = judge_baselines((run(), differing((states_changed, "rng.python", 0))))
    assert facts.baseline.not_compared == ("rng.python",)
    assert facts.notes == ()


def test_runs_of_other_lengths_do_not_repeat():
    longer = run(replace(PLAIN, horizon=25))
    facts = judge_baselines((run(), longer))
    assert facts.finding.name == "not-repeatable"
    assert "they take 24 and 25 steps" in facts.baseline.differs_at


def test_a_stream_that_never_agrees_is_not_taken_for_the_cause():
    changes = [
        (states_changed, "rng.python", 0),
        (steps_changed, "loss", 3),
        (states_changed, "weights", 3),
    ]
    facts = judge_baselines((run(), differing(*changes)))
    assert "the loss of step 3" in facts.baseline.differs_at


def test_the_place_is_said_with_its_rank():
    program = Program(ranks=2)
    ours = theirs = run(program)
    ranks = dict(theirs.trace.ranks)
    ranks[1] = states_changed(
        steps_changed(ranks[1], "batch", since=1), "weights", since=1
    )
    theirs = replace(theirs, trace=replace(theirs.trace, ranks=ranks))
    assert judge_baselines((ours, theirs)).baseline.differs_at.endswith("on rank 1")


def test_a_program_whose_weights_never_change_is_vacuous():
    attempt = run(Program(warmup=99, horizon=6))
    facts = judge_baselines((attempt, attempt))
    assert facts.finding.name == "vacuous"
    assert "is the loss connected" in facts.finding.hint


def test_weights_that_nobody_can_see_are_said_to_be_that():
    attempt = run(Program(warmup=99, horizon=6))
    counted = {"optimizer": 0, "backward": 0, "batch": 6}
    ranks = {
        number: replace(rank, counted=counted)
        for number, rank in attempt.trace.ranks.items()
    }
    attempt = replace(attempt, trace=replace(attempt.trace, ranks=ranks))
    finding = judge_baselines((attempt, attempt)).finding
    assert finding.name == "vacuous"
    assert "tensors of its own" in finding.hint


def test_a_program_that_computes_without_training_anything_is_not_judged():
    def without_weights(state):
        kept = {c: f for c, f in state.components.items() if c != "weights"}
        return replace(state, components=kept)

    attempt = run()
    ranks = {
        number: replace(
            rank,
            counted={"optimizer": 0, "backward": 0, "batch": 24},
            states={n: without_weights(s) for n, s in rank.states.items()},
            finish=None,
        )
        for number, rank in attempt.trace.ranks.items()
    }
    attempt = replace(attempt, trace=replace(attempt.trace, ranks=ranks))
    finding = judge_baselines((attempt, attempt)).finding
    assert finding.name == "not-observed"
    assert "24 batches, and no weights" in finding.message


def test_weights_that_change_once_are_not_vacuous():
    attempt = run(Program(warmup=5, horizon=6))
    assert judge_baselines((attempt, attempt)).finding is None


def test_a_run_without_any_step_was_not_observed():
    nothing = AttemptTrace(ranks={}, world_size=0, processes=1, torch_seen=False)
    attempt = replace(run(), trace=nothing)
    finding = judge_baselines((attempt, attempt)).finding
    assert finding.name == "not-observed"
    assert "PYTHONPATH" in finding.hint


def test_torch_without_any_step_is_not_blamed_on_the_interpreter():
    nothing = AttemptTrace(ranks={}, world_size=0, processes=1, torch_seen=True)
    attempt = replace(run(), trace=nothing)
    finding = judge_baselines((attempt, attempt)).finding
    assert finding.name == "not-observed"
    assert "PYTHONPATH" not in finding.hint
    assert "anything left to train" in finding.hint


def test_a_command_that_trains_several_times_is_told_to_be_tried_one_by_one():
    def told(*turns):
        attempt = run()
        attempt = replace(attempt, trace=replace(attempt.trace, in_turn=turns))
        return judge_baselines((attempt, attempt)).finding

    found = told("python pretrain.py", "python tune.py")
    assert found.name == "not-observed"
    assert "trains 2 times" in found.message
    assert "python pretrain.py, then python tune.py" in found.message
    assert told() is None


DETACHED = ("pid 7: python train.py",)


def test_a_command_that_ends_before_what_it_started_is_told_so():
    nothing = AttemptTrace(ranks={}, world_size=0, processes=1, torch_seen=True)
    attempt = replace(run(), trace=nothing, survivors=DETACHED)
    finding = judge_baselines((attempt, attempt)).finding
    assert finding.name == "not-observed"
    assert finding.message == (
        "the command ended while what it had started still ran: python train.py"
    )


def test_runs_that_were_cut_short_behind_their_command_are_told_so():
    def cut(attempt):
        ranks = {n: replace(r, said_bye=False) for n, r in attempt.trace.ranks.items()}
        trace = replace(attempt.trace, ranks=ranks)
        return replace(attempt, trace=trace, survivors=DETACHED)

    long, short = cut(run(Program(horizon=24))), cut(run(Program(horizon=16)))
    assert judge_baselines((long, short)).finding.name == "not-observed"
    # A helper that lives on convicts nobody.
    assert judge_baselines((long, long)).finding is None


def lightly(attempt):
    """Return what a light run keeps: the first state, those at saves, and the last."""

    def light(rank):
        steps = [replace(mark, components={}, samples=None) for mark in rank.steps]
        return replace(rank, states={0: rank.states[0]}, steps=tuple(steps))

    return changed(attempt, light)


def test_a_light_run_that_is_equal_shows_no_effect_of_the_observer():
    facts = judge_baselines((run(), run()), lightly(run()))
    assert (facts.finding, facts.baseline.observer_effect) == (None, False)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        pytest.param(
            replace(PLAIN, seed=1), "the weights of step 0 differ", id="start"
        ),
        pytest.param(
            replace(PLAIN, dropout_words=3),
            "the weights differ at the save of step 4",
            id="save",
        ),
    ],
)
def test_a_light_run_that_differs_shows_an_effect_of_the_observer(program, said):
    facts = judge_baselines((run(), run()), lightly(run(program)))
    assert facts.baseline.observer_effect
    assert not facts.repeatable
    assert facts.baseline.differs_at
    assert facts.finding.name == "not-repeatable"
    assert said in facts.finding.message


def test_a_light_run_is_not_held_to_what_baselines_disagree_on():
    other = differing((states_changed, "buffers", 0))
    facts = judge_baselines((run(), other), lightly(other))
    assert (facts.finding, facts.baseline.not_compared) == (None, ("buffers",))


def test_a_run_that_saved_at_other_steps_is_the_same_run():
    """As of a program that saves by the clock: forked, it is another number of times."""

    def saves_left_out(rank, keep):
        return replace(rank, saves=rank.saves[:keep])

    def kept(keep):
        return changed(run(), lambda rank: saves_left_out(rank, keep))

    assert unlike(run(), kept(2)) is None
    assert judge_baselines((run(), kept(2)), lightly(kept(1))).finding is None
    assert unlike(run(), kept(0)) == "rank 0 was seen to save or load other files"


@pytest.mark.parametrize(
    ("path", "via", "alike"),
    [
        pytest.param("plugins/registry.json", "read", True, id="read by an import"),
        pytest.param("state.pt", "torch.load", False, id="loaded"),
    ],
)
def test_what_a_package_reads_when_it_is_imported_is_not_read_by_a_fork(
    path, via, alike
):
    mark = LoadMark(path=path, via=via, step=0, t_s=0.1)
    fresh = changed(run(), lambda rank: replace(rank, loads=(*rank.loads, mark)))
    assert (unlike(fresh, run()) is None) is alike
