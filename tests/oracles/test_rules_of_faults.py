"""What is said of a resume after a fault that came without a kill."""

from __future__ import annotations

from dataclasses import replace

import pytest
from laying import BASELINE, PLAIN, changed, first, lost, never_trained, trial_of
from synthetic import Flaw, names

from spotchaos.model import Ended, Injected
from spotchaos.oracles import judge


def injected(trial, kind, *, at_s=1e9, times=1):
    """Return the trial with a fault in its first attempt, late in it by default."""
    fault = Injected(f"{kind}:2", kind, times, at_s if times else None, "ckpt-12.pt")
    attempt = changed(trial.attempts[0], injected=(fault,))
    return replace(trial, attempts=(attempt, *trial.attempts[1:]))


@pytest.mark.parametrize(
    "trial",
    [
        pytest.param(PLAIN.trial([13], flaw=Flaw(restarts=True)), id="restart"),
        pytest.param(trial_of(first(), never_trained()), id="failure"),
    ],
)
def test_an_error_that_took_the_old_checkpoint_as_well_is_named(trial):
    (finding,) = judge(injected(trial, "error"), BASELINE).findings
    assert finding.name == "error-destroyed-checkpoint"
    assert "'error:2' struck 'ckpt-12.pt' while attempt 1 saved" in finding.message
    assert "write beside the old checkpoint" in finding.hint


def test_who_takes_a_short_write_for_a_whole_one_is_told_so():
    trial = injected(trial_of(first(), never_trained()), "error")
    attempt = trial.attempts[0]
    short = replace(attempt.injected[0], fault="short-write:2")
    told = replace(attempt, injected=(short,))
    trial = replace(trial, attempts=(told, *trial.attempts[1:]))
    (finding,) = judge(trial, BASELINE).findings
    assert "write on until nothing is left" in finding.hint


def test_an_error_that_leaves_the_checkpoint_before_it_is_no_finding():
    assert names(judge(injected(PLAIN.trial([13]), "error"), BASELINE)) == []


def test_damage_that_is_trained_on_is_silent():
    trial = PLAIN.trial([13], flaw=lost("optimizer"))
    (finding,) = judge(injected(trial, "damage"), BASELINE).findings
    assert finding.name == "silent-damage"
    assert "'damage:2' damaged 'ckpt-12.pt'" in finding.message


def test_what_a_fault_that_never_struck_would_explain_keeps_its_name():
    trial = PLAIN.trial([13], flaw=lost("optimizer"))
    found = names(judge(injected(trial, "damage", times=0), BASELINE))
    assert found == ["not-reached", "optimizer-not-restored"]


@pytest.mark.parametrize(
    ("fault", "words", "hint"),
    [
        ("s3-error-body", "for such an operation", "what the program does do"),
        ("s3-cut:1+", "for such an operation", "what the program does do"),
        ("s3-cut:11", "for so many such operations", "name an earlier one"),
    ],
)
def test_a_first_operation_that_never_came_has_none_before_it(fault, words, hint):
    trial = PLAIN.trial([13])
    one = changed(trial.attempts[0], injected=(Injected(fault, "store", 0),))
    told = replace(trial, attempts=(one, *trial.attempts[1:]))
    (finding,) = (f for f in judge(told, BASELINE).findings if f.name == "not-reached")
    assert finding.message.endswith(words)
    assert hint in finding.hint


def refused(attempt):
    """Return an attempt that failed before its first step, since its store refused it."""
    fault = Injected("s3-403:5", "store", 1, 1e9, "bucket/ckpt-12.pt")
    return replace(attempt, ended=Ended.FAILED, exit_code=1, injected=(fault,))


def test_a_resume_that_ends_for_a_fault_and_works_when_started_again_is_no_finding():
    last = changed(PLAIN.trial([13]).attempts[1], number=3)
    trial = trial_of(first(), refused(never_trained()), last)
    assert names(judge(trial, BASELINE)) == []
    unstruck = trial_of(first(), never_trained(), last)
    assert names(judge(unstruck, BASELINE)) == ["resume-failed"]


def test_a_resume_that_ends_for_a_fault_and_is_the_last_is_named():
    trial = trial_of(first(), refused(never_trained()))
    assert names(judge(trial, BASELINE)) == ["resume-failed"]


def broken_off(trial, **changes):
    """Return the trial with a save at step 12 that a signal broke off, after whole ones."""
    attempt = trial.attempts[0]
    ranks = {
        n: replace(rank, steps=rank.steps[:12])
        for n, rank in attempt.trace.ranks.items()
    }
    attempt = replace(
        attempt,
        trace=replace(attempt.trace, ranks=ranks),
        **{
            "ended": Ended.EXITED,
            "signal": "INT",
            "signalled_step": 12,
            "kill_point": "file-op:40@all",
            **changes,
        },
    )
    return replace(trial, attempts=(attempt, *trial.attempts[1:]))


LOST_ALL = PLAIN.trial([12], flaw=Flaw(restarts=True))


def test_ctrl_c_within_a_save_that_took_the_old_checkpoint_as_well_is_named():
    (finding,) = judge(broken_off(LOST_ALL), BASELINE).findings
    assert finding.name == "error-destroyed-checkpoint"
    assert "SIGINT broke off a save of attempt 1" in finding.message


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"kill_point": "step-end:12"}, id="between saves"),
        pytest.param({"ended": Ended.RECLAIMED}, id="reclaimed"),
        pytest.param({"signal": "KILL", "exit_code": -9}, id="killed"),
        pytest.param({"signal": "TERM", "exit_code": -15}, id="ended by default"),
    ],
)
def test_what_broke_off_no_save_by_an_error_keeps_its_name(changes):
    found = names(judge(broken_off(LOST_ALL, **changes), BASELINE))
    assert "error-destroyed-checkpoint" not in found


def test_a_save_that_was_broken_off_is_none_that_a_resume_should_have_taken():
    # It joins at the save before, that of step 8, which is whole.
    late, early = PLAIN.trial([13]), PLAIN.trial([11])
    trial = replace(late, attempts=(late.attempts[0], *early.attempts[1:]))
    assert names(judge(trial, BASELINE)) == ["stale-resume"]
    assert names(judge(broken_off(trial), BASELINE)) == []
