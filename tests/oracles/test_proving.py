"""A trial in which nothing happened to the program is never held, whatever was asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from drawing import QUICK
from hypothesis import given, strategies as st
from laying import BASELINE, PLAIN, changed, trial_of
from synthetic import names

from spotchaos.findings import PROMISES
from spotchaos.model import Ended, Injected, NoticePlayed, Sent, Verdict
from spotchaos.oracles import judge

WHOLE = PLAIN.trial([PLAIN.horizon])
AT_S = next(m.t_s for m in WHOLE.attempts[0].trace.ranks[0].steps if m.step == 13)
SIGNALS = ["TERM", "INT", "HUP"]


def a_notice(**changes):
    played = NoticePlayed(
        story="gcp",
        provider="gcp",
        grace_s=30.0,
        time_scale=1.0,
        deadline_at_s=AT_S + 30.0,
        reclaimed=True,
        is_served=True,
    )
    return replace(played, **changes)


def whole(*, is_started_again=False, **changes):
    """Return a trial whose first attempt trained to its end; the second finds it done."""
    first, second = WHOLE.attempts
    first = changed(first, **{"ended": Ended.EXITED, "exit_code": 0, **changes})
    return trial_of(first, *([second] if is_started_again else []))


@st.composite
def unheard_notices(draw):
    refused = draw(st.integers(0, 3))
    story = draw(st.sampled_from(["aws", "gcp", "azure-missing", "gcp-withdrawn"]))
    return a_notice(
        story=story,
        reclaimed=story != "gcp-withdrawn",
        asked=draw(st.integers(0, 9)),
        asked_after=refused,
        refused=refused,
        is_served=draw(st.booleans()),
        is_hasty=draw(st.booleans()),
        is_cut_short=draw(st.booleans()),
        time_scale=draw(st.sampled_from([1.0, 60.0])),
    )


@st.composite
def warnings(draw):
    """Return what may be done to an attempt without anything happening to it."""
    kind = draw(st.sampled_from(["none", "notice", "unreadable", "signal"]))
    if kind == "notice":
        return {
            "notice": draw(unheard_notices()),
            "notice_at_s": AT_S,
            "signalled_step": 13,
        }
    if kind == "unreadable":  # a variant that no program is told of
        return {"notice": draw(unheard_notices()), "notice_at_s": None}
    if kind == "none":
        return {"kill_point": draw(st.sampled_from([None, "step-end:13"]))}
    name = draw(st.sampled_from([*SIGNALS, "STOP", "KILL", "USR1"]))
    past = {
        "notified_rank": False,
        "target": draw(st.sampled_from(["leader", "launcher"])),
    }
    deaf = {"is_deaf": True, "target": draw(st.sampled_from(["all", "rank:0"]))}
    ways = [past, deaf] if name in SIGNALS else [past]
    if name == "USR1":
        ways = [deaf]
    way = draw(st.sampled_from(ways))
    sent = (Sent(name, way["target"], AT_S, 13),)
    return {"signal": name, "signalled_step": 13, "sent": sent, **way}


@st.composite
def nothing_happened(draw):
    missed = draw(
        st.lists(st.sampled_from(["enospc:9", "http-503:4", "bit-flip:7"]), max_size=2)
    )
    trial = whole(
        ended=draw(st.sampled_from([Ended.EXITED, Ended.FINISHED])),
        is_started_again=draw(st.booleans()),
        reached=draw(st.booleans()),
        injected=tuple(Injected(fault, "error", 0) for fault in missed),
        unsent=draw(st.sampled_from([(), ("KILL@save-begin:1",)])),
        path=draw(st.sampled_from(["warm", "cold"])),
        **draw(warnings()),
    )
    dropped = draw(st.sampled_from([(), ("step-end:20",)]))
    return replace(trial, dropped=dropped)


OPTIONS = st.fixed_dictionaries(
    {
        "promise": st.sampled_from(PROMISES),
        "max_lost_steps": st.sampled_from([None, 0, 5]),
        "accept_refusal": st.booleans(),
        "exit_codes": st.sampled_from([None, (143,), (0, 143)]),
        "counts": st.sampled_from([lambda name: True, lambda name: False]),
    }
)


@QUICK
@given(trial=nothing_happened(), options=OPTIONS)
def test_no_way_leads_round_it(trial, options):
    assert judge(trial, BASELINE, **options).verdict is not Verdict.HELD


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(
            {"injected": (Injected("eio-once", "error", 1),)}, id="a-fault-struck"
        ),
        pytest.param({"signal": "STOP", "signalled_step": 13}, id="it-stood-still"),
        pytest.param({"signal": "TERM", "signalled_step": 13}, id="heard-and-finished"),
        pytest.param(
            {"notice": a_notice(asked=9, asked_after=2), "notice_at_s": AT_S},
            id="asked-saved-and-finished",
        ),
        pytest.param(
            {
                "notice": a_notice(story="aws-rebalance", reclaimed=False),
                "notice_at_s": AT_S,
                "ended": Ended.FINISHED,
            },
            id="advice-is-to-change-nothing",
        ),
        pytest.param(
            {
                "notice": a_notice(
                    story="gcp-withdrawn", reclaimed=False, asked_after=4, refused=1
                ),
                "notice_at_s": AT_S,
                "ended": Ended.FINISHED,
            },
            id="withdrawn-and-heard",
        ),
        pytest.param(
            {
                "notice": a_notice(
                    story="azure-other-vm", reclaimed=False, asked_after=2
                ),
                "ended": Ended.FINISHED,
            },
            id="of-another-machine",
        ),
        pytest.param(
            {
                "notice": a_notice(reclaimed=False, paused=True),
                "notice_at_s": AT_S,
                "ended": Ended.FINISHED,
            },
            id="frozen",
        ),
    ],
)
@pytest.mark.parametrize("is_started_again", [False, True])
def test_what_happened_to_it_is_enough(changes, is_started_again):
    trial = whole(is_started_again=is_started_again, **changes)
    judgement = judge(trial, BASELINE)
    assert (names(judgement), judgement.verdict) == ([], Verdict.HELD)


def test_an_uninterrupted_run_is_not_held_unless_a_second_start_was_asked_for():
    again = whole(is_started_again=True, ended=Ended.FINISHED)
    judgement = judge(again, BASELINE)
    assert (names(judgement), judgement.verdict) == (["not-reached"], Verdict.UNKNOWN)
    assert judgement.holds_up_to is None
    asked = judge(again, BASELINE, resume_after_finish=True)
    assert (names(asked), asked.verdict) == ([], Verdict.HELD)
    alone = judge(trial_of(again.attempts[0]), BASELINE, resume_after_finish=True)
    assert alone.verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("asked", "refused", "words"),
    [
        (0, 0, "it asked the metadata service for nothing after it"),
        (3, 3, "every request after it was refused"),
    ],
)
def test_a_notice_that_nobody_heard_before_the_end_was_no_test(asked, refused, words):
    notice = a_notice(asked=9, asked_after=asked, refused=refused)
    trial = whole(notice=notice, notice_at_s=AT_S, signalled_step=13)
    (finding,) = judge(trial, BASELINE).findings
    assert finding.name == "not-reached"
    assert words in finding.message


def test_a_finding_that_does_not_count_does_not_hide_one_that_says_unknown():
    trial = PLAIN.trial([13])
    first = changed(trial.attempts[0], reached=False, signal="TERM", exit_code=0)
    trial = trial_of(
        replace(first, signalled_step=12, ended=Ended.EXITED), *trial.attempts[1:]
    )
    both = judge(trial, BASELINE)
    assert sorted(names(both)) == ["exit-code", "not-reached"]
    assert both.verdict is Verdict.VIOLATED
    uncounted = judge(trial, BASELINE, counts=lambda name: name == "hang")
    assert uncounted.verdict is Verdict.UNKNOWN
