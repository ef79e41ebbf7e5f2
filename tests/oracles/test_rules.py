"""Each rule of judgement on both sides: what it convicts, and what it acquits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synthetic import Flaw, Program, digest, names

from spotchaos.findings import FINDINGS, PROMISES
from spotchaos.model import (
    Attempt,
    AttemptTrace,
    Divergence,
    Ended,
    ProgramException,
    SaveMark,
    StateMark,
    Trial,
    Verdict,
)
from spotchaos.oracles import ORACLES, judge
from spotchaos.oracles.divergence import with_measured
from spotchaos.oracles.lineage import lay_out
from spotchaos.oracles.saves import pattern_of

PLAIN = Program()
BASELINE = PLAIN.baseline()


def lost(*components, **more):
    return Flaw(lost=frozenset(components), **more)


def changed(attempt, *, ranks=None, **changes):
    """Return the attempt with fields changed; `ranks` maps a rank's trace to a new one."""
    if ranks is not None:
        trace = attempt.trace
        found = {rank: ranks(each) for rank, each in trace.ranks.items()}
        changes["trace"] = replace(trace, ranks=found)
    return replace(attempt, **changes)


def with_last(trial, **changes):
    *others, last = trial.attempts
    return replace(trial, attempts=(*others, changed(last, **changes)))


def empty_trace():
    return AttemptTrace(ranks={}, world_size=1, processes=1, torch_seen=True)


def never_trained(number=2, **changes):
    defaults = {
        "number": number,
        "command": ("python", "train.py"),
        "ended": Ended.FAILED,
        "exit_code": 1,
        "trace": empty_trace(),
        "wall_s": 1.0,
    }
    return Attempt(**{**defaults, **changes})


def trial_of(*attempts, plan="step-end:13"):
    return Trial(number=1, plan=plan, attempts=attempts)


def first(stop=13, **changes):
    return changed(PLAIN.attempt(stop=stop)[0], **changes)


# -- all oracles ----------------------------------------------------------------------


def test_every_oracle_is_silent_on_a_perfect_resume():
    case = lay_out(PLAIN.trial([13]), BASELINE)
    assert {name: [*oracle(case)] for name, oracle in ORACLES.items()} == {
        name: [] for name in ORACLES
    }


@pytest.mark.parametrize(
    ("oracle", "flaw"),
    [
        pytest.param("progress", Flaw(restarts=True), id="progress"),
        pytest.param("restored", lost("optimizer"), id="restored"),
        pytest.param("samples", lost("position"), id="samples"),
        pytest.param("divergence", Flaw(hidden=True), id="divergence"),
    ],
)
def test_every_oracle_convicts_its_own_mutant(oracle, flaw):
    case = lay_out(PLAIN.trial([13], flaw=flaw), BASELINE)
    assert [*ORACLES[oracle](case)]


def test_every_finding_says_what_to_do():
    flaws = [
        Flaw(restarts=True),
        Flaw(older=1),
        Flaw(hidden=True),
        Flaw(skip_batches=1),
        Flaw(disturbed={"rng.torch": 1}),
        Flaw(stale={"optimizer": 1}),
        lost("rng.torch", "position", "order"),
        lost("optimizer", "scheduler"),
    ]
    found = [
        f
        for flaw in flaws
        for f in judge(PLAIN.trial([13], flaw=flaw), BASELINE).findings
    ]
    assert len(found) >= len(flaws)
    assert all(f.hint and f.message and f.name in FINDINGS for f in found)


# -- the words of a finding --------------------------------------------------------------


def test_an_order_that_starts_again_at_the_seed_is_said_so():
    flaw = lost("rng.torch", "position", "order")
    rng, order = judge(PLAIN.trial([13], flaw=flaw), BASELINE).findings
    assert (rng.name, order.name) == ("rng-not-restored", "order-changed")
    assert order.message == (
        "after the resume at step 12 the program got the batch of step 1: the order"
        " starts again at the seed"
    )


def test_a_lost_component_is_said_with_what_it_had_instead():
    (finding,) = judge(PLAIN.trial([13], flaw=lost("optimizer")), BASELINE).findings
    assert finding.message == (
        "the program resumed at step 12, but the optimizer's state came back as at the"
        " start of a run"
    )
    assert finding.hint.startswith("save optimizer.state_dict()")


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


# -- rule 2: samples -------------------------------------------------------------------


def test_steps_done_again_are_lost_work_and_not_repeated_samples():
    judgement = judge(PLAIN.trial([15, 2]), BASELINE)
    assert [r.lost_steps for r in judgement.resumes] == [3, 2]
    assert (judgement.ledger["repeated"], judgement.ledger["skipped"]) == (0, 0)
    assert names(judgement) == []


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


def test_an_order_drawn_from_a_lost_stream_is_named_with_it():
    program = Program(dropout_words=0, order="rng.generators")
    flaw = lost("rng.generators")
    judgement = judge(program.trial([13], flaw=flaw), program.baseline())
    assert names(judgement) == ["rng-not-restored", "order-changed"]
    assert judgement.findings[0].component == "rng.generators"


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


def test_a_step_that_was_saved_half_way_says_what_is_lost():
    def accumulated(rank, first=None):
        steps = []
        for mark in rank.steps:
            cut = mark.samples[len(mark.samples) // 2 :]
            other = {"batch": digest("half", cut), "samples": digest("samples", cut)}
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

    runs = tuple(changed(run, ranks=accumulated) for run in BASELINE.runs)
    baseline = replace(BASELINE, runs=runs)
    trial = PLAIN.trial([13])
    whole = with_last(trial, ranks=accumulated)
    assert names(judge(whole, baseline)) == []
    halved = with_last(trial, ranks=lambda rank: accumulated(rank, first=1))
    (finding,) = judge(halved, baseline).findings
    assert finding.name == "samples-skipped"
    assert finding.message.startswith(
        "the first step after the resume at step 12 was made of 1 micro-batch instead of"
        " 2: the gradients of "
    )


def test_a_fixed_order_is_not_drawn_from_a_lost_stream():
    program = Program(dropout_words=0, order="fixed")
    judgement = judge(
        program.trial([13], flaw=lost("rng.torch", "position")), program.baseline()
    )
    assert "rng-not-restored" not in names(judgement)
    assert "samples-repeated" in names(judgement)


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


def test_a_program_that_saves_only_at_its_end_has_no_checkpoint():
    program = Program(save_every=24)
    assert names(judge(program.trial([13]), program.baseline())) == ["no-checkpoint"]


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


def test_one_pattern_stands_for_all_steps_and_temporary_names():
    assert pattern_of("out/ckpt-12/model.pt") == pattern_of("./out/ckpt-4/model.pt.tmp")
    assert pattern_of("out/template.pt") == "out/template.pt"


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


def test_a_write_that_isolation_refused_is_unknown():
    refused = never_trained(refused_write="/data/cache")
    judgement = judge(trial_of(first(), refused), BASELINE)
    assert judgement.verdict is Verdict.UNKNOWN
    assert "/data/cache" in judgement.findings[0].message


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


# -- rules 5 and 6: what was carried out, and how it was answered ----------------------------


def test_a_kill_point_that_was_never_reached_is_unknown():
    attempt = changed(PLAIN.attempt()[0], reached=False)
    judgement = judge(trial_of(attempt), BASELINE)
    assert (names(judgement), judgement.verdict) == (["not-reached"], Verdict.UNKNOWN)
    assert judgement.holds_up_to is None


def test_a_drawn_kill_point_that_was_not_reached_drops_off():
    trial = with_last(PLAIN.trial([13]), reached=False)
    assert names(judge(replace(trial, dropped=("step-end:30",)), BASELINE)) == []


def stopped(exit_code, *, stop=13, **changes):
    defaults = {
        "ended": Ended.EXITED,
        "exit_code": exit_code,
        "signal": "TERM",
        "signalled_step": stop - 1,
    }
    trial = PLAIN.trial([stop])
    attempt = changed(trial.attempts[0], **{**defaults, **changes})
    return replace(trial, attempts=(attempt, *trial.attempts[1:]))


def test_status_0_with_steps_missing_is_a_wrong_exit_code():
    assert names(judge(stopped(0), BASELINE)) == ["exit-code"]


def test_death_by_the_default_action_is_no_finding():
    assert names(judge(stopped(-15), BASELINE)) == []


@pytest.mark.parametrize(
    ("exit_code", "declared", "expected"),
    [
        pytest.param(-15, (143,), [], id="two-spellings-of-one-status"),
        pytest.param(143, (-15,), [], id="and-the-other-way"),
        pytest.param(0, (0,), [], id="declared-0"),
        pytest.param(85, (143, 85), [], id="one-of-several"),
        pytest.param(1, (143,), ["exit-code"], id="not-declared"),
        pytest.param(0, (143,), ["exit-code"], id="0-not-declared"),
    ],
)
def test_a_declared_exit_code_is_judged(exit_code, declared, expected):
    assert names(judge(stopped(exit_code), BASELINE, exit_codes=declared)) == expected


def test_a_program_that_finishes_within_the_grace_window_may_exit_with_0():
    trial = stopped(0, stop=24)
    assert "exit-code" not in names(judge(trial, BASELINE, exit_codes=(143,)))


def test_training_on_to_the_deadline_without_a_save_is_ignoring_the_signal():
    trial = stopped(None, stop=15, ended=Ended.RECLAIMED, signalled_step=13)
    assert names(judge(trial, BASELINE)) == ["signal-ignored"]


def test_a_save_begun_and_whole_in_time_is_an_answer():
    trial = stopped(None, stop=18, ended=Ended.RECLAIMED, signalled_step=15)
    assert names(judge(trial, BASELINE)) == []


def test_a_save_begun_and_not_whole_misses_the_deadline():
    trial = PLAIN.trial([16], in_save=(1,))
    attempt = changed(trial.attempts[0], signal="TERM", signalled_step=15)
    told = replace(trial, attempts=(attempt, *trial.attempts[1:]))
    assert names(judge(told, BASELINE)) == ["deadline-missed"]


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


# -- promises ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flaw", "holds"),
    [
        pytest.param(Flaw(), "bitwise", id="perfect"),
        pytest.param(Flaw(hidden=True), "samples", id="diverged"),
        pytest.param(lost("position"), "state", id="samples"),
        pytest.param(lost("optimizer"), "resumes", id="state"),
        pytest.param(Flaw(restarts=True), None, id="restart"),
    ],
)
def test_the_strongest_promise_that_holds_is_named_and_decides(flaw, holds):
    trial = PLAIN.trial([13], flaw=flaw)
    kept = PROMISES[: PROMISES.index(holds) + 1] if holds else ()
    for promise in PROMISES:
        judgement = judge(trial, BASELINE, promise=promise)
        assert judgement.holds_up_to == holds
        held = promise in kept
        assert judgement.verdict is (Verdict.HELD if held else Verdict.VIOLATED)
