"""Steps that are made at each start and thrown away, as by a rate finder, are no restart."""

from __future__ import annotations

from dataclasses import replace

import pytest
from laying import BASELINE, PLAIN, changed, lost, trial_of
from synthetic import Flaw, names

from spotchaos.model import Ended, Trial
from spotchaos.oracles import judge

LENGTH = 3


def after_prelude(attempt, *, stop=None):
    """Return the attempt with the first steps of the run before its own.

    stop: steps after which it was stopped within them.
    """

    def lead(trace):
        own = BASELINE.first.trace.ranks[trace.rank]
        length = LENGTH if stop is None else stop
        states = {step: own.states[step] for step in range(length)}
        steps = own.steps[:length]
        if stop is not None:
            return replace(trace, states=states, steps=steps, saves=(), finish=None)
        states |= {
            LENGTH + step: replace(state, step=LENGTH + step)
            for step, state in trace.states.items()
        }
        later = [replace(mark, step=LENGTH + mark.step) for mark in trace.steps]
        saves = [replace(save, step=LENGTH + save.step) for save in trace.saves]
        return replace(trace, states=states, steps=(*steps, *later), saves=tuple(saves))

    ended = {} if stop is None else {"ended": Ended.RECLAIMED, "exit_code": None}
    return changed(attempt, ranks=lead, **ended)


def resumed(flaw=None):
    first, last = PLAIN.trial([13], flaw=flaw or Flaw()).attempts
    return first, after_prelude(last)


def test_steps_that_are_made_at_each_start_before_the_load_are_no_restart():
    judgement = judge(trial_of(*resumed()), BASELINE)
    assert not judgement.findings
    (resume,) = judgement.resumes
    assert (resume.joined, resume.discarded_steps) == (12, LENGTH)


def of_its_own(attempt):
    """Return the attempt with a prelude that no step of the run was like."""

    def told(trace):
        def strange(mark):
            made = {name: f"strange {value}" for name, value in mark.components.items()}
            return replace(mark, components=made)

        steps = [strange(m) if m.step <= LENGTH else m for m in trace.steps]
        states = {
            step: strange(state) if 0 < step < LENGTH else state
            for step, state in trace.states.items()
        }
        return replace(trace, steps=tuple(steps), states=states)

    return changed(attempt, ranks=told)


def test_steps_that_only_make_a_state_to_load_into_are_no_restart():
    first, last = resumed()
    judgement = judge(trial_of(first, of_its_own(last)), BASELINE)
    assert not judgement.findings
    (resume,) = judgement.resumes
    assert (resume.joined, resume.discarded_steps) == (12, LENGTH)
    first, last = resumed(lost("optimizer"))
    judgement = judge(trial_of(first, of_its_own(last)), BASELINE)
    assert "optimizer-not-restored" in names(judgement)


@pytest.mark.parametrize("component", ["optimizer", "rng.torch", "scheduler"])
def test_what_is_lost_after_such_steps_is_named(component):
    plain = judge(PLAIN.trial([13], flaw=lost(component)), BASELINE)
    judgement = judge(trial_of(*resumed(lost(component))), BASELINE)
    assert names(judgement) == names(plain) != []


def test_a_restart_that_never_comes_to_its_checkpoint_is_named():
    trial = PLAIN.trial([13], flaw=Flaw(restarts=True))
    assert names(judge(trial, BASELINE)) == ["silent-restart"]


def test_an_attempt_that_is_stopped_before_its_load_has_trained_nothing():
    first, last = resumed()
    stopped = replace(after_prelude(last, stop=2), number=2)
    judgement = judge(trial_of(first, stopped, replace(last, number=3)), BASELINE)
    assert not judgement.findings


@pytest.mark.parametrize("done", [0, 1, 2])
def test_such_steps_that_are_stopped_before_the_load_have_trained_nothing(done):
    first, last = resumed()
    last = replace(of_its_own(last), number=3)
    if done:
        stopped = of_its_own(after_prelude(last, stop=done))
    else:
        # It was stopped in the first of them, once the state had been seen.
        stopped = changed(
            after_prelude(last, stop=1), ranks=lambda rank: replace(rank, steps=())
        )
    stopped = replace(stopped, number=2)
    judgement = judge(trial_of(first, stopped, last), BASELINE)
    assert not judgement.findings


def test_a_restart_is_named_whatever_steps_other_attempts_throw_away():
    first, restarted, last = PLAIN.trial([13, 3], flaw=Flaw(restarts=True)).attempts
    last = of_its_own(after_prelude(PLAIN.trial([13]).attempts[1]))
    trial = trial_of(first, restarted, replace(last, number=3))
    assert "silent-restart" in names(judge(trial, BASELINE))


def finished_again(weights=None):
    """Return a finished run, and an attempt that makes such steps and finds it finished."""
    done, again = PLAIN.trial([], after_finish=True).attempts
    end = BASELINE.first.trace.ranks

    def loaded(trace):
        own = end[trace.rank]
        assert own.finish is not None
        finish = replace(own.finish, step=LENGTH)
        if weights is not None:
            made = {**finish.components, "weights": weights}
            finish = replace(finish, components=made)
        return replace(trace, finish=finish)

    again = after_prelude(again, stop=LENGTH)
    again = changed(again, ranks=loaded, ended=Ended.FINISHED, exit_code=0)
    return trial_of(done, of_its_own(again))


def test_who_makes_such_steps_and_finds_the_run_finished_has_trained_nothing():
    assert not judge(finished_again(), BASELINE, resume_after_finish=True).findings


def test_who_makes_them_and_ends_with_other_weights_has_trained():
    judgement = judge(finished_again("other"), BASELINE, resume_after_finish=True)
    assert names(judgement) == ["retrained-after-finish"]


def test_the_clean_stop_tells_how_long_it_may_be():
    first, last = resumed()
    stopped = after_prelude(last, stop=2)
    unknown = judge(trial_of(first, stopped), BASELINE)
    assert "silent-restart" in names(unknown)
    control = Trial(number=0, plan="step-end:13", attempts=(first, last))
    known = judge(trial_of(first, stopped), replace(BASELINE, control=control))
    assert "silent-restart" not in names(known)


def in_turns(trace, *, every=4, turns=3):
    """Return a rank's trace with the weights of clients that are trained in turns.

    Each begins with the weights that all of them began with, as in federated averaging.
    """
    own = BASELINE.first.trace.ranks[trace.rank].states
    begun = {
        own[step].components["weights"]: own[step - step % (every * turns)]
        for step in own
        if step % every == 0
    }

    def turned(state):
        known = begun.get(state.components["weights"])
        if known is None:
            return state
        weights = known.components["weights"]
        return replace(state, components={**state.components, "weights": weights})

    states = {step: turned(state) for step, state in trace.states.items()}
    return replace(trace, states=states)


def test_clients_that_are_trained_in_turns_from_the_same_weights_are_no_prelude():
    baseline = replace(
        BASELINE, runs=tuple(changed(each, ranks=in_turns) for each in BASELINE.runs)
    )
    first, last = PLAIN.trial([13]).attempts
    attempts = [changed(each, ranks=in_turns) for each in (first, last)]
    judgement = judge(trial_of(*attempts), baseline)
    assert not judgement.findings
    (resume,) = judgement.resumes
    assert (resume.joined, resume.discarded_steps) == (12, 0)


def with_search(attempt):
    """Return the attempt with a search before it, from which the weights come back."""

    def lead(trace):
        start = trace.states[0]

        def strange(step):
            weights = f"sought {step} from {start.components['weights']}"
            return replace(
                start, step=step, components={**start.components, "weights": weights}
            )

        states = {0: start} | {step: strange(step) for step in range(1, LENGTH)}
        states |= {
            LENGTH + step: replace(state, step=LENGTH + step)
            for step, state in trace.states.items()
        }
        sought = [
            replace(mark, components={"batch": f"sought {mark.step}"})
            for mark in trace.steps[:LENGTH]
        ]
        sought = [replace(m, step=n) for n, m in enumerate(sought, start=1)]
        later = [replace(mark, step=LENGTH + mark.step) for mark in trace.steps]
        saves = [replace(save, step=LENGTH + save.step) for save in trace.saves]
        finish = trace.finish and replace(trace.finish, step=LENGTH + trace.finish.step)
        return replace(
            trace,
            states=states,
            steps=(*sought, *later),
            saves=tuple(saves),
            finish=finish,
        )

    return changed(attempt, ranks=lead)


def test_a_search_on_the_weights_that_each_start_has_is_a_prelude():
    baseline = replace(
        BASELINE, runs=tuple(with_search(each) for each in BASELINE.runs)
    )
    first, last = (with_search(each) for each in PLAIN.trial([13]).attempts)
    judgement = judge(trial_of(first, last), baseline)
    (resume,) = judgement.resumes
    assert (resume.joined, resume.discarded_steps) == (12 + LENGTH, LENGTH)
    assert not judgement.findings
