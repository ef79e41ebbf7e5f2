"""What is said of the place that a run resumes from, and of one that does not resume."""

from __future__ import annotations

from dataclasses import replace

import pytest
from laying import BASELINE, PLAIN, changed, first, lost, never_trained, trial_of
from synthetic import Flaw, Program, names

from spotchaos.model import Ended, ProgramException, SaveMark, StateMark, Trial, Verdict
from spotchaos.oracles import judge
from spotchaos.oracles.resume_points import habit_of, pattern_of, saves_of

# -- rule 3: saves and resume points ---------------------------------------------------


def test_a_start_from_0_is_right_while_nothing_is_saved():
    judgement = judge(PLAIN.trial([3]), BASELINE)
    assert names(judgement) == []
    assert judgement.resumes[0].joined == 0
    assert judgement.resumes[0].lost_steps == 3


def test_a_start_from_0_is_right_while_the_first_save_is_in_flight():
    assert names(judge(PLAIN.trial([4], in_save=(1,)), BASELINE)) == []


def test_right_after_a_save_the_one_before_is_a_fair_choice_too():
    judgement = judge(PLAIN.trial([8], flaw=Flaw(older=1)), BASELINE)
    assert names(judgement) == []
    assert judgement.resumes[0].joined == 4


def test_a_step_after_a_save_the_one_before_is_stale():
    judgement = judge(PLAIN.trial([9], flaw=Flaw(older=1)), BASELINE)
    assert names(judgement) == ["stale-resume"]


def test_a_best_model_is_no_resume_point():
    def best_only(rank):
        saves = [
            replace(save, paths=("best.pt",)) if save.step == 12 else save
            for save in rank.saves
        ]
        return replace(rank, saves=tuple(saves))

    trial = PLAIN.trial([13], flaw=Flaw(older=1))
    told = replace(
        trial, attempts=(changed(trial.attempts[0], ranks=best_only), trial.attempts[1])
    )
    judgement = judge(told, BASELINE)
    assert names(judgement) == []
    assert judgement.resumes[0].newest_resume_point == 8


def test_a_part_that_is_missing_makes_a_save_not_whole():
    def parts(rank, *, whole_until):
        saves = [
            replace(
                save,
                paths=(f"ckpt-{save.step}/model.pt",)
                if save.step > whole_until
                else (f"ckpt-{save.step}/model.pt", f"ckpt-{save.step}/opt.pt"),
            )
            for save in rank.saves
        ]
        return replace(rank, saves=tuple(saves))

    run = changed(BASELINE.first, ranks=lambda rank: parts(rank, whole_until=99))
    baseline = replace(BASELINE, runs=(run, run), patterns=("ckpt-#/model.pt",))
    trial = PLAIN.trial([13], flaw=Flaw(older=1))
    cut = changed(trial.attempts[0], ranks=lambda rank: parts(rank, whole_until=8))
    assert (
        names(judge(replace(trial, attempts=(cut, trial.attempts[1])), baseline)) == []
    )


def test_a_save_at_a_step_of_its_own_is_known_by_its_content():
    def saved_at_13(rank):
        state = StateMark(
            step=13,
            at="save",
            components=dict(BASELINE.first.trace.ranks[0].states[13].components),
        )
        extra = SaveMark(9, 13, ("ckpt-13.pt",), state, 1e6, 1e6 + 1)
        return replace(rank, saves=(*rank.saves, extra))

    trial = PLAIN.trial([13])
    stopped = changed(
        trial.attempts[0],
        ranks=saved_at_13,
        ended=Ended.EXITED,
        signal="TERM",
        signalled_step=13,
        exit_code=143,
    )
    judgement = judge(replace(trial, attempts=(stopped, trial.attempts[1])), BASELINE)
    assert names(judgement) == ["stale-resume"]
    assert judgement.resumes[0].newest_resume_point == 13


def beside(rank, *, known=True):
    """Have a thread write each save, a step after it was copied."""
    saves = tuple(
        replace(
            save,
            step=save.step + 1,
            state=None,
            is_beside=True,
            holds=save.step if known else None,
            is_of_unknown_step=not known,
        )
        for save in rank.saves
    )
    return replace(rank, saves=saves)


@pytest.mark.parametrize(
    ("older", "known", "expected"),
    [
        pytest.param(0, True, [], id="newest"),
        pytest.param(1, True, [], id="the-one-before"),
        pytest.param(2, True, ["stale-resume"], id="two-before"),
        pytest.param(2, False, [], id="two-before-of-unknown-steps"),
    ],
)
def test_what_a_thread_saves_is_in_flight_until_it_saves_a_later_step(
    older, known, expected
):
    run = changed(BASELINE.first, ranks=lambda rank: beside(rank, known=known))
    baseline = replace(BASELINE, runs=(run, run))
    trial = PLAIN.trial([18], flaw=Flaw(older=older))
    cut = changed(trial.attempts[0], ranks=lambda rank: beside(rank, known=known))
    judgement = judge(replace(trial, attempts=(cut, trial.attempts[1])), baseline)
    assert names(judgement) == expected


def test_what_the_training_thread_saved_has_settled_a_step_later():
    assert names(judge(PLAIN.trial([18], flaw=Flaw(older=1)), BASELINE)) == [
        "stale-resume"
    ]


def test_lost_work_is_judged_by_the_bound_that_was_given():
    trial = PLAIN.trial([15])
    assert names(judge(trial, BASELINE)) == []
    assert names(judge(trial, BASELINE, max_lost_steps=3)) == []
    assert names(judge(trial, BASELINE, max_lost_steps=2)) == ["lost-work"]


def test_no_checkpoint_is_said_only_of_a_program_that_never_saves():
    program = Program(save_every=99)
    judgement = judge(program.trial([13]), program.baseline(patterns=()))
    assert names(judgement) == ["no-checkpoint"]
    assert names(judge(PLAIN.trial([3]), BASELINE)) == []


def saved_at_0(rank):
    """Return a trace with a save before its first step, as a rate finder makes one."""
    if not rank.states:
        return rank
    save = SaveMark(0, 0, ("ckpt-0.pt",), rank.states[0], 0.5, 0.6)
    return replace(rank, saves=(save, *rank.saves))


@pytest.mark.parametrize(
    ("save_every", "expected"),
    [
        pytest.param(99, ["no-checkpoint"], id="and-never-again"),
        pytest.param(4, [], id="and-later-too"),
    ],
)
def test_a_save_before_the_first_step_is_no_checkpoint(save_every, expected):
    program = Program(save_every=save_every)
    run = changed(program.baseline().first, ranks=saved_at_0)
    baseline = replace(program.baseline(), runs=(run, run))
    trial = program.trial([13])
    attempts = tuple(changed(a, ranks=saved_at_0) for a in trial.attempts)
    assert names(judge(replace(trial, attempts=attempts), baseline)) == expected


def test_a_program_that_saves_only_at_its_end_has_no_checkpoint():
    program = Program(save_every=24)
    assert names(judge(program.trial([13]), program.baseline())) == ["no-checkpoint"]


@pytest.mark.parametrize(
    ("flaw", "found"),
    [
        pytest.param(Flaw(), [], id="resumes"),
        pytest.param(Flaw(restarts=True), ["no-checkpoint"], id="starts-over"),
    ],
)
def test_a_clean_stop_that_resumes_tells_of_saves_that_nobody_saw(flaw, found):
    program = Program(save_every=24)
    control = Trial(
        number=0, plan="step-end:23", attempts=PLAIN.trial([23], flaw=flaw).attempts
    )
    baseline = replace(program.baseline(), control=control)
    # It was killed before the first of them, if there are any.
    assert names(judge(program.trial([2]), baseline)) == found


@pytest.mark.parametrize(
    ("flaw", "said"),
    [
        pytest.param(Flaw(restarts=True), "from step 0", id="from-0"),
        pytest.param(Flaw(extra_steps=4), "beyond the last step", id="beyond"),
    ],
)
def test_a_finished_program_that_trains_again_is_named(flaw, said):
    trial = PLAIN.trial([], after_finish=True, flaw=flaw)
    (finding,) = judge(trial, BASELINE, resume_after_finish=True).findings
    assert finding.name == "retrained-after-finish"
    assert said in finding.message


def test_redoing_the_last_steps_identically_is_no_retraining():
    program = Program(horizon=22)
    trial = program.trial([], after_finish=True)
    assert trial.attempts[1].trace.completed == 2
    assert names(judge(trial, program.baseline(), resume_after_finish=True)) == []


def test_redoing_the_last_steps_with_other_weights_is_retraining():
    program = Program(horizon=22)
    trial = program.trial([], after_finish=True, flaw=lost("rng.torch"))
    judgement = judge(trial, program.baseline(), resume_after_finish=True)
    assert names(judgement) == ["retrained-after-finish"]


def test_a_resume_that_has_nothing_left_to_train_is_held():
    judgement = judge(PLAIN.trial([24]), BASELINE)
    assert names(judgement) == []
    assert judgement.resumes[0].joined == 24


def test_a_resume_that_trains_nothing_and_says_it_is_done_is_not():
    done = never_trained(ended=Ended.FINISHED, exit_code=0)
    assert names(judge(trial_of(first(), done), BASELINE)) == ["step-count-wrong"]


def test_what_is_saved_unseen_may_have_nothing_left_to_train():
    done = never_trained(ended=Ended.FINISHED, exit_code=0)
    cut = PLAIN.trial([24]).attempts[0]
    unseen = changed(cut, ranks=lambda rank: replace(rank, saves=()))
    assert names(judge(trial_of(unseen, done), BASELINE)) == []
    early = changed(
        PLAIN.trial([23]).attempts[0], ranks=lambda rank: replace(rank, saves=())
    )
    assert names(judge(trial_of(early, done), BASELINE)) == ["step-count-wrong"]


def test_one_pattern_stands_for_all_steps_and_temporary_names():
    assert pattern_of("out/ckpt-12/model.pt") == pattern_of("./out/ckpt-4/model.pt.tmp")
    assert pattern_of("out/template.pt") == "out/template.pt"


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        ("a/zarr.07c2a91f1d5b4e0f8b3c1a2d4e5f6071.partial", "a/zarr.#"),
        ("a/0b9c54a0-7e1f-4c1e-9d7a-1f2e3d4c5b6a.pt", "a/#.pt"),
        ("out/tmp1ab_x9qz.pt", "out/#.pt"),
        ("out/feedback.pt", "out/feedback.pt"),  # a word, not a number
        ("out/tmp.pt", "out/tmp.pt"),
        ("out/tmp_weights_of_all.pt", "out/tmp_weights_of_all.pt"),
    ],
)
def test_random_names_are_one_pattern(path, pattern):
    assert pattern_of(path) == pattern


# -- resumes that do not come off --------------------------------------------------------


def failing(**changes):
    exception = ProgramException("EOFError", "Ran out of input", "train.py", 40)
    attempt = PLAIN.attempt(number=2, stop=1)[0]

    def died(rank):
        return replace(
            rank, states={}, steps=(), saves=(), finish=None, exception=exception
        )

    return changed(
        attempt, ranks=died, **{"ended": Ended.FAILED, "exit_code": 1, **changes}
    )


def control(*attempts):
    return Trial(number=0, plan="step-end:9", attempts=attempts)


def test_a_resume_that_fails_only_after_this_kill_is_resume_failed():
    fine = PLAIN.trial([9])
    baseline = replace(BASELINE, control=control(*fine.attempts))
    (finding,) = judge(trial_of(first(), failing()), baseline).findings
    assert finding.name == "resume-failed"
    assert finding.where == {"file": "train.py", "line": 40}
    assert "EOFError: Ran out of input" in finding.message


def test_a_resume_that_fails_after_a_clean_stop_too_never_resumes():
    baseline = replace(BASELINE, control=control(first(9), failing()))
    assert names(judge(trial_of(first(), failing()), baseline)) == ["never-resumes"]


@pytest.mark.parametrize(
    ("said", "hinted"),
    [
        (
            "Weights only load failed. This file can still be loaded",
            "weights_only=False",
        ),
        ("no such file: last.pt", "--resume-cmd"),
    ],
)
def test_what_torch_does_not_let_in_is_told_how_to_be_loaded(said, hinted):
    baseline = replace(BASELINE, control=control(first(9), failing()))

    def says(rank):
        return replace(rank, exception=replace(rank.exception, message=said))

    trial = trial_of(first(), changed(failing(), ranks=says))
    (finding,) = judge(trial, baseline).findings
    assert finding.name == "never-resumes"
    assert hinted in finding.hint


def test_a_clear_refusal_keeps_a_promise_that_accepts_it():
    trial = trial_of(first(), failing())
    assert judge(trial, BASELINE, accept_refusal=True).verdict is Verdict.HELD
    assert judge(trial, BASELINE).verdict is Verdict.VIOLATED


def test_a_failure_in_mid_run_is_no_refusal():
    trial = PLAIN.trial([13])
    broken = changed(
        PLAIN.attempt(number=2, checkpoint=PLAIN.attempt(stop=13)[1][-1], stop=3)[0],
        ended=Ended.FAILED,
        exit_code=1,
    )
    told = replace(trial, attempts=(trial.attempts[0], broken))
    judgement = judge(told, BASELINE, accept_refusal=True)
    assert names(judgement) == ["resume-failed"]
    assert "3 steps after the resume at step 12" in judgement.findings[0].message


def test_a_hang_says_where_it_waits():
    stacks = 'Thread 1:\n  File "train.py", line 31 in barrier\n  File "x.py", line 1 in run\n'
    hung = never_trained(ended=Ended.HUNG, exit_code=None, stacks=stacks)
    (finding,) = judge(trial_of(first(), hung), BASELINE).findings
    assert (finding.name, finding.where) == ("hang", {"file": "train.py", "line": 31})


def test_attempts_that_fail_one_after_another_make_no_progress():
    attempts = [first(), *(replace(failing(), number=n) for n in (2, 3, 4))]
    found = names(judge(trial_of(*attempts), BASELINE))
    assert found == ["resume-failed", "no-progress"]
    assert "no-progress" not in names(judge(trial_of(*attempts[:3]), BASELINE))


def test_attempts_that_fail_further_on_each_time_make_progress():
    attempts = [*PLAIN.trial([13, 5, 5, 3]).attempts]
    for number in (1, 2, 3):
        attempts[number] = changed(attempts[number], ended=Ended.FAILED, exit_code=1)
    judgement = judge(trial_of(*attempts), BASELINE)
    assert [r.joined for r in judgement.resumes] == [12, 16, 20, 20]
    assert "resume-failed" in names(judgement)
    assert "no-progress" not in names(judgement)


def test_a_write_that_isolation_refused_is_unknown():
    refused = never_trained(refused_write="/data/cache")
    judgement = judge(trial_of(first(), refused), BASELINE)
    assert judgement.verdict is Verdict.UNKNOWN
    assert "/data/cache" in judgement.findings[0].message


def test_a_save_that_a_rank_has_not_written_is_not_whole():
    trace = PLAIN.attempt(stop=13)[0].trace
    rank = trace.ranks[0]
    both = replace(trace, ranks={0: rank, 1: rank}, world_size=2)
    habit = habit_of(both, ("ckpt-#.pt",))
    late = replace(both, ranks={0: rank, 1: replace(rank, saves=rank.saves[:-1])})
    found = saves_of(late, attempt=1, joined=0, ended=Ended.RECLAIMED, habit=habit)
    assert [(save.step, save.is_whole) for save in found] == [
        (4, True),
        (8, True),
        (12, False),
    ]


@pytest.mark.parametrize(
    ("names_of", "settled"),
    [
        pytest.param(
            {4: ("ckpt-1.pt",), 8: ("latest",), 12: ("latest",), 16: ("latest",)},
            [False, True, True, False],
            id="a-helper-writes-what-the-pointer-names-one-save-later",
        ),
        pytest.param(
            {4: ("ckpt-1.pt", "latest"), 8: ("latest",), 12: ("latest",), 16: ("latest",)},
            [True, True, True, True],
            id="one-save-has-all",
        ),
    ],
)  # fmt: skip
def test_a_pointer_that_lags_settles_a_save_with_the_next_one(names_of, settled):
    trace = PLAIN.attempt(stop=17)[0].trace
    rank = trace.ranks[0]
    saves = tuple(replace(save, paths=names_of[save.step]) for save in rank.saves)
    told = replace(trace, ranks={0: replace(rank, saves=saves)})
    habit = habit_of(told, ("ckpt-#.pt", "latest"))
    found = saves_of(told, attempt=1, joined=0, ended=Ended.RECLAIMED, habit=habit)
    assert [save.step for save in found] == [4, 8, 12, 16]
    assert [save.is_settled for save in found] == settled
