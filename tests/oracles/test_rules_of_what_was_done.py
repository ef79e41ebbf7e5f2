"""What had been done, saved and written when an attempt began, and what follows from it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from laying import BASELINE, PLAIN, changed, never_trained, trial_of
from synthetic import Flaw, Program, names

from spotchaos.model import AttemptTrace, Ended, Injected, LoadMark, RankTrace, Trial
from spotchaos.oracles import judge

HORIZON = PLAIN.horizon
# 20 is the last step at which it saves, of 24.
SAVES_EARLIER = Program(save_every=5)


def ends_at_once(*loaded):
    """Return an attempt that trains nothing, and says that all is done."""
    loads = tuple(LoadMark(path, "torch.load", 0, 1.0) for path in loaded)
    rank = RankTrace(0, {}, None, (), (), loads, {})
    trace = AttemptTrace({0: rank}, world_size=1, processes=1, torch_seen=True)
    return never_trained(ended=Ended.FINISHED, exit_code=0, trace=trace)


# -- starts after the last step ----------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "stop", "expected"),
    [
        pytest.param(PLAIN, HORIZON, [], id="saved-at-the-end"),
        pytest.param(SAVES_EARLIER, HORIZON, [], id="saves-nothing-at-the-end"),
        pytest.param(SAVES_EARLIER, HORIZON - 1, ["step-count-wrong"], id="not-done"),
    ],
)
def test_who_has_nothing_left_to_train_may_end_at_once(program, stop, expected):
    cut = program.attempt(stop=stop)[0]
    found = judge(trial_of(cut, ends_at_once()), program.baseline())
    assert names(found) == expected


def test_who_says_done_before_the_last_save_was_begun_left_it_out():
    cut = PLAIN.attempt(stop=HORIZON)[0]
    unsaved = changed(cut, ranks=lambda rank: replace(rank, saves=rank.saves[:-1]))
    assert names(judge(trial_of(unsaved, ends_at_once()), BASELINE)) == [
        "step-count-wrong"
    ]


def warned(attempt, **changes):
    """Return a whole run that a signal came to, and that ended with 0 at its end."""
    given = {"ended": Ended.EXITED, "exit_code": 0, "signal": "HUP", **changes}
    return changed(attempt, **given)


@pytest.mark.parametrize("kills", [[], [13]], ids=["at-once", "after-a-kill"])
def test_who_trains_all_over_after_its_success_has_retrained(kills):
    flaws = {len(kills) + 2: Flaw(restarts=True)}
    trial = PLAIN.trial([*kills, None], flaws=flaws)
    attempts = [*trial.attempts]
    attempts[-2] = warned(attempts[-2])
    judgement = judge(replace(trial, attempts=tuple(attempts)), BASELINE)
    assert names(judgement) == ["retrained-after-finish"]


def test_who_trains_all_over_after_a_kill_at_its_end_has_retrained():
    judgement = judge(PLAIN.trial([HORIZON], flaw=Flaw(restarts=True)), BASELINE)
    assert names(judgement) == ["retrained-after-finish"]
    assert "done its last step" in judgement.findings[0].message


def test_who_redoes_the_last_steps_after_a_kill_at_its_end_is_held():
    judgement = judge(SAVES_EARLIER.trial([HORIZON]), SAVES_EARLIER.baseline())
    assert names(judgement) == []
    assert judgement.resumes[0].joined == 20


# -- checkpoints that no attempt had written ---------------------------------------------


@pytest.mark.parametrize(
    ("loaded", "expected"),
    [
        pytest.param("ckpt-40.pt", ["foreign-resume"], id="another-run-s"),
        pytest.param("ckpt-12.pt", ["step-count-wrong"], id="its-own"),
        pytest.param("words.txt", ["step-count-wrong"], id="no-checkpoint"),
    ],
)
def test_who_trains_nothing_after_loading_another_run_s_file_is_foreign(
    loaded, expected
):
    cut = PLAIN.attempt(stop=13)[0]
    judgement = judge(trial_of(cut, ends_at_once(loaded)), BASELINE)
    assert names(judgement) == expected


def loading(path):
    return lambda rank: replace(rank, loads=(LoadMark(path, "torch.load", 0, 1.0),))


def test_who_begins_again_from_what_was_kept_resumes_from_an_old_checkpoint():
    runs = tuple(changed(run, ranks=loading("ckpt-2.pt")) for run in BASELINE.runs)
    baseline = replace(BASELINE, runs=runs)
    trial = PLAIN.trial([13], flaw=Flaw(restarts=True))
    again = changed(trial.attempts[1], ranks=loading("ckpt-2.pt"))
    judgement = judge(replace(trial, attempts=(trial.attempts[0], again)), baseline)
    assert names(judgement) == ["stale-resume"]
    assert (
        "'ckpt-2.pt', which lay in the folder before" in judgement.findings[0].message
    )
    assert names(judge(trial, baseline)) == ["silent-restart"]


# -- what a save holds -------------------------------------------------------------------


def later(rank, *, known):
    """Have each save be written two steps after it was copied."""
    saves = tuple(
        replace(
            save, step=save.step + 2, state=None, holds=save.step if known else None
        )
        for save in rank.saves
        if save.step + 2 <= rank.completed
    )
    return replace(rank, saves=saves)


def written_later(trial, *, known=True):
    attempts = tuple(
        changed(a, ranks=lambda rank: later(rank, known=known)) for a in trial.attempts
    )
    return replace(trial, attempts=attempts)


@pytest.mark.parametrize(
    ("older", "known", "expected"),
    [
        pytest.param(0, True, [], id="newest"),
        pytest.param(1, True, ["stale-resume"], id="one-before"),
        pytest.param(0, False, [], id="newest-opaque"),
        pytest.param(2, False, ["stale-resume"], id="two-before-opaque"),
    ],
)
def test_a_copy_that_is_written_later_is_of_the_step_at_which_it_was_taken(
    older, known, expected
):
    runs = tuple(
        changed(run, ranks=lambda rank: later(rank, known=known))
        for run in BASELINE.runs
    )
    clean = written_later(PLAIN.trial([15]), known=known)
    control = Trial(number=0, plan="step-end:15", attempts=clean.attempts)
    baseline = replace(BASELINE, runs=runs, control=control)
    trial = written_later(PLAIN.trial([19], flaw=Flaw(older=older)), known=known)
    assert names(judge(trial, baseline)) == expected


def test_two_steps_in_one_file_are_a_mix_at_the_step_that_streams_and_order_tell():
    """The weights were copied, the moments are those of the step of the write."""
    program = Program(save_every=6)
    trial = program.trial([15])
    moments = program.attempt()[0].trace.ranks[0].states[14].components["optimizer"]

    def mixed(rank):
        state = rank.states[0]
        parts = {**state.components, "optimizer": moments}
        return replace(rank, states={0: replace(state, components=parts)})

    cut, last = written_later(trial).attempts
    last = changed(last, ranks=mixed)
    judgement = judge(replace(trial, attempts=(cut, last)), program.baseline())
    assert "mixed-steps" in names(judgement)
    assert judgement.resumes[0].joined == 12


# -- saves that failed without a word ----------------------------------------------------


def injected(attempt, *, step):
    save = next(s for s in attempt.trace.ranks[0].saves if s.step == step)
    fault = Injected("enospc:last", "error", 1, save.begun_at_s, "ckpt.tmp")
    return changed(attempt, injected=(fault,))


@pytest.mark.parametrize(
    ("step", "older", "expected"),
    [
        pytest.param(HORIZON, 1, ["save-lost"], id="last"),
        pytest.param(HORIZON, 0, [], id="last-and-tried-again"),
        pytest.param(12, 0, [], id="in-the-middle"),
    ],
)
def test_a_last_save_that_failed_without_a_word_is_lost(step, older, expected):
    trial = PLAIN.trial([], after_finish=True, flaw=Flaw(older=older))
    attempts = (injected(trial.attempts[0], step=step), *trial.attempts[1:])
    trial = replace(trial, attempts=attempts)
    found = judge(trial, BASELINE, resume_after_finish=True)
    assert names(found) == expected


def test_a_last_save_that_failed_and_left_what_cannot_be_loaded_is_named():
    attempt = injected(PLAIN.attempt()[0], step=HORIZON)
    trial = trial_of(attempt, never_trained())
    (finding,) = judge(trial, BASELINE, resume_after_finish=True).findings
    assert finding.name == "error-destroyed-checkpoint"


def test_a_final_file_that_was_never_renamed_is_lost():
    def unnamed(rank):
        last = replace(rank.saves[-1], paths=("ckpt.tmp",))
        return replace(rank, saves=(*rank.saves[:-1], last))

    trial = PLAIN.trial([], after_finish=True)
    first = changed(injected(trial.attempts[0], step=HORIZON), ranks=unnamed)
    trial = replace(trial, attempts=(first, *trial.attempts[1:]))
    (finding,) = judge(trial, BASELINE, resume_after_finish=True).findings
    assert finding.name == "save-lost"
    assert "'ckpt-#.pt' was never written" in finding.message
