"""What is said of how a program was stopped, and of how it answered."""

from __future__ import annotations

from dataclasses import replace

import pytest
from laying import BASELINE, PLAIN, changed, first, never_trained, trial_of, with_last
from synthetic import names

from spotchaos.model import Ended, NoticePlayed, Sent, Verdict
from spotchaos.oracles import judge

# -- rules 5 and 6: what was carried out, and how it was answered ----------------------------


def test_a_kill_point_that_was_never_reached_is_unknown():
    attempt = changed(PLAIN.attempt()[0], reached=False)
    judgement = judge(trial_of(attempt), BASELINE)
    assert (names(judgement), judgement.verdict) == (["not-reached"], Verdict.UNKNOWN)
    assert judgement.holds_up_to is None


def test_a_drawn_kill_point_that_was_not_reached_drops_off():
    trial = with_last(PLAIN.trial([13]), reached=False)
    assert names(judge(replace(trial, dropped=("step-end:30",)), BASELINE)) == []


def test_a_resume_that_failed_is_not_also_one_that_reached_no_kill_point():
    trial = with_last(PLAIN.trial([13]), reached=False, ended=Ended.FAILED, exit_code=1)
    assert names(judge(trial, BASELINE)) == ["resume-failed"]


def test_a_refusal_that_is_accepted_still_reached_no_kill_point():
    trial = trial_of(first(), never_trained(reached=False))
    assert names(judge(trial, BASELINE)) == ["resume-failed"]
    assert names(judge(trial, BASELINE, accept_refusal=True)) == ["not-reached"]


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


def test_a_machine_that_goes_before_its_grace_window_ends_gives_no_deadline_to_miss():
    trial = PLAIN.trial([16], in_save=(1,))
    early = (Sent("TERM", "all", 1.0, 15), Sent("KILL", "all", 2.0, 15))
    attempt = changed(trial.attempts[0], signal="TERM", signalled_step=15, sent=early)
    told = replace(trial, attempts=(attempt, *trial.attempts[1:]))
    assert names(judge(told, BASELINE)) == []


def test_a_second_signal_that_no_attempt_was_sent_proves_nothing():
    missed = stopped(-15, sent=(Sent("TERM", "all", 1.0, 12),), unsent=("INT@5s",))
    (finding,) = judge(missed, BASELINE).findings
    assert finding.name == "not-reached"
    assert "INT@5s was to follow SIGTERM, and attempt 1 ended" in finding.message
    both = tuple(Sent(name, "all", 1.0, 12) for name in ("TERM", "INT"))
    assert names(judge(stopped(-15, sent=both), BASELINE)) == []


PAST = {"target": "leader", "notified_rank": False}


def test_habitual_saves_are_no_answer_where_no_rank_was_told():
    given = {"ended": Ended.RECLAIMED, "signalled_step": 15, **PAST}
    (finding,) = judge(stopped(None, stop=18, **given), BASELINE).findings
    assert finding.name == "signal-ignored"
    assert "saved only where it always does; the leader, which alone" in finding.message
    assert "`exec`" in finding.hint
    # After USR1 many save where they always do, and train on.
    told = stopped(None, stop=18, **given, signal="USR1")
    assert names(judge(told, BASELINE)) == []


def test_a_run_that_finished_without_a_rank_being_told_proves_nothing():
    trial = PLAIN.trial([24])
    whole = {"signal": "TERM", "signalled_step": 15, "ended": Ended.EXITED}
    attempt = changed(trial.attempts[0], **whole, **PAST, exit_code=0)
    told = replace(trial, attempts=(attempt, *trial.attempts[1:]))
    assert names(judge(told, BASELINE)) == ["not-reached"]


def test_a_save_begun_and_not_whole_misses_the_deadline():
    trial = PLAIN.trial([16], in_save=(1,))
    attempt = changed(trial.attempts[0], signal="TERM", signalled_step=15)
    told = replace(trial, attempts=(attempt, *trial.attempts[1:]))
    (finding,) = judge(told, BASELINE).findings
    assert finding.name == "deadline-missed"
    assert "status" not in finding.message


def test_a_checkpoint_that_was_resumed_from_was_in_time_though_its_end_was_not_seen():
    def unseen(rank):
        *others, last = rank.saves
        return replace(rank, saves=(*others, replace(last, ended_at_s=None)))

    trial = PLAIN.trial([16])
    attempt = changed(trial.attempts[0], ranks=unseen, signal="TERM", signalled_step=15)
    told = replace(trial, attempts=(attempt, *trial.attempts[1:]))
    assert names(judge(told, BASELINE)) == []


def noticed(*, stop, deadline_s, reclaimed=True, story="aws", **changes):
    """Return a trial with a notice after step 13, read at once, and what came of it."""
    trial = PLAIN.trial([stop])
    attempt = trial.attempts[0]
    told_at_s = next(m.t_s for m in attempt.trace.ranks[0].steps if m.step == 13)
    notice = NoticePlayed(
        story=story,
        provider="aws",
        grace_s=120.0,
        time_scale=60.0,
        deadline_at_s=told_at_s + deadline_s,
        reclaimed=reclaimed,
        asked=9,
        asked_after=3,
    )
    attempt = changed(
        attempt, notice=notice, notice_at_s=told_at_s, signalled_step=13, **changes
    )
    return replace(trial, attempts=(attempt, *trial.attempts[1:]))


def test_a_proxy_that_was_passed_by_is_named():
    trial = noticed(stop=15, deadline_s=0.0, reclaimed_at_s=1e9)
    first, *others = trial.attempts
    for proxy in ("", "http_proxy"):
        notice = replace(first.notice, is_served=True, proxy=proxy)
        told = replace(trial, attempts=(replace(first, notice=notice), *others))
        (text,) = [n.message for n in judge(told, BASELINE).notes]
        assert ("the proxy of http_proxy was passed by" in text) == bool(proxy)


def test_training_on_to_the_deadline_of_a_notice_is_ignoring_it():
    trial = noticed(stop=15, deadline_s=0.0, reclaimed_at_s=1e9)
    assert names(judge(trial, BASELINE)) == ["notice-ignored"]


@pytest.mark.parametrize(("refused", "expected"), [(3, ["notice-ignored"]), (2, [])])
def test_who_is_refused_every_time_did_not_save_for_the_notice(refused, expected):
    trial = noticed(stop=18, deadline_s=1e8, reclaimed_at_s=1e9)
    first, *others = trial.attempts
    notice = replace(first.notice, refused=refused)
    trial = replace(trial, attempts=(replace(first, notice=notice), *others))
    judgement = judge(trial, BASELINE)
    assert names(judgement) == expected
    for finding in judgement.findings:
        assert "saved only where it always does; all 3 requests" in finding.message


@pytest.mark.parametrize(
    ("asked", "is_served", "words"),
    [
        (0, True, "saved only where it always does; it never asked"),
        (
            9,
            True,
            "saved only where it always does; it did not ask the metadata service",
        ),
        (0, False, None),  # a notice may come as a file, and who reads that is unknown
    ],
)
def test_who_asks_for_nothing_did_not_save_for_the_notice(asked, is_served, words):
    trial = noticed(stop=18, deadline_s=1e8, reclaimed_at_s=1e9)
    first, *others = trial.attempts
    told = replace(first.notice, asked=asked, asked_after=0, is_served=is_served)
    trial = replace(trial, attempts=(replace(first, notice=told), *others))
    findings = judge(trial, BASELINE).findings
    assert len(findings) == (words is not None)
    for finding in findings:
        assert words in finding.message
        assert ("NO_PROXY" in finding.hint) == (not asked)


@pytest.mark.parametrize(
    ("asked_after", "expected"), [(0, ["not-reached"]), (2, ["notice-ignored"])]
)
def test_a_notice_that_was_over_at_once_proves_nothing_of_who_asks_rarely(
    asked_after, expected
):
    trial = noticed(stop=15, deadline_s=0.0, reclaimed_at_s=1e9)
    first, *others = trial.attempts
    told = replace(first.notice, asked_after=asked_after, is_hasty=True, is_served=True)
    trial = replace(trial, attempts=(replace(first, notice=told), *others))
    judgement = judge(trial, BASELINE)
    assert names(judgement) == expected
    if not asked_after:
        assert judgement.verdict is Verdict.UNKNOWN
        assert "step-end:N" in judgement.findings[0].hint


@pytest.mark.parametrize(
    ("asked", "refused", "words"),
    [
        (0, 0, "the program never asked"),
        (1, 0, "the program asked once"),
        (9, 1, "the program asked 9 times, and was refused once after the notice"),
        (9, 3, "the program asked 9 times, and was refused 3 times after the notice"),
    ],
)
def test_the_note_of_a_notice_says_how_often_was_asked(asked, refused, words):
    trial = noticed(stop=15, deadline_s=0.0, reclaimed_at_s=1e9)
    first, *others = trial.attempts
    told = replace(first.notice, asked=asked, refused=refused)
    trial = replace(trial, attempts=(replace(first, notice=told), *others))
    (note,) = (n for n in judge(trial, BASELINE).notes if n.name == "notice-played")
    assert note.message.endswith(words)


def test_the_last_save_of_all_is_no_answer_to_a_notice_either():
    trial = noticed(stop=PLAIN.horizon, deadline_s=1e8, reclaimed_at_s=1e9)
    first, *others = trial.attempts
    notice = replace(first.notice, refused=3)
    trial = replace(trial, attempts=(replace(first, notice=notice), *others))
    assert names(judge(trial, BASELINE)) == ["notice-ignored"]


@pytest.mark.parametrize(
    ("provider", "wants"),
    [
        ("aws", "a session token"),
        ("azure", "the header `Metadata: true`"),
        ("gcp", "the header `Metadata-Flavor: Google`"),
        ("tencent", "another path"),
    ],
)
def test_who_is_refused_is_told_what_the_provider_wants(provider, wants):
    trial = noticed(stop=15, deadline_s=0.0, reclaimed_at_s=1e9)
    first, *others = trial.attempts
    notice = replace(
        first.notice, provider=provider, refused=3, refusal="400 to GET /x, no header"
    )
    trial = replace(trial, attempts=(replace(first, notice=notice), *others))
    (finding,) = judge(trial, BASELINE).findings
    assert finding.name == "notice-ignored"
    assert "(the last: 400 to GET /x, no header)" in finding.message
    assert wants in finding.hint


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        pytest.param({"is_cut_short": True}, [], id="as-the-story-goes"),
        pytest.param({"is_cut_short": False}, ["not-reached"], id="by-our-doing"),
        pytest.param(
            {"is_cut_short": True, "asked_after": 0, "is_served": True},
            ["not-reached"],
            id="before-it-asked",
        ),
    ],
)
def test_nobody_can_keep_a_deadline_that_is_not_kept(told, expected):
    trial = noticed(stop=15, deadline_s=1e6, reclaimed_at_s=1.0)
    first, *others = trial.attempts
    first = replace(first, notice=replace(first.notice, **told))
    judgement = judge(replace(trial, attempts=(first, *others)), BASELINE)
    assert names(judgement) == expected


def test_a_machine_that_was_gone_a_moment_early_did_not_hear_an_answer():
    trial = noticed(stop=15, deadline_s=2.0)
    first, *others = trial.attempts
    gone = replace(first, reclaimed_at_s=first.notice.deadline_at_s - 0.35)
    judgement = judge(replace(trial, attempts=(gone, *others)), BASELINE)
    assert (names(judgement), judgement.verdict) == (["not-reached"], Verdict.UNKNOWN)
    assert "before the deadline of the notice" in judgement.findings[0].message
    # Who had begun a save by then has reacted.
    saved = noticed(stop=18, deadline_s=1e6, reclaimed_at_s=1e6)
    first, *others = saved.attempts
    gone = replace(first, reclaimed_at_s=first.notice.deadline_at_s - 0.35)
    assert names(judge(replace(saved, attempts=(gone, *others)), BASELINE)) == []


@pytest.mark.parametrize(
    ("story", "expected"),
    [
        pytest.param("aws-rebalance", ["stopped-for-advice"], id="advice"),
        pytest.param("azure-withdrawn", [], id="withdrawn"),
    ],
)
def test_a_notice_that_no_reclaim_follows_is_no_reason_to_stop(story, expected):
    trial = noticed(
        stop=13,
        deadline_s=1e6,
        reclaimed=False,
        story=story,
        ended=Ended.EXITED,
        exit_code=143,
    )
    assert names(judge(trial, BASELINE)) == expected
