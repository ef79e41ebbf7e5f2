"""What forks of a zygote show counts once fresh processes have shown it as well."""

import types

import pytest

from spotchaos.campaign.confirming import Confirmer
from spotchaos.config.plan import Plan
from spotchaos.model import Finding, Judgement, Trial, Verdict

PLAN = Plan.parse("step-end:3")


def judgement(*names, verdict=Verdict.VIOLATED):
    findings = tuple(Finding(name, "what was seen") for name in names)
    return Judgement(verdict, findings, notes=(), resumes=(), holds_up_to=None)


def trial(number, path="warm"):
    return Trial(number=number, plan=str(PLAN), attempts=(), wall_s=1.0, path=path)


@pytest.fixture
def zygote():
    return types.SimpleNamespace(confirmed=set(), is_vouched_for=False)


@pytest.fixture
def asked():
    return []


@pytest.fixture
def confirmer(asked):
    """Return one whose fresh processes show a lost optimizer and nothing else."""

    def again(trial, plan):
        asked.append(trial.number)
        return trial, judgement("optimizer-not-restored")

    return Confirmer(again)


def test_a_finding_is_confirmed_once(confirmer, zygote, asked):
    found = judgement("optimizer-not-restored")
    first = confirmer.confirm(zygote, trial(1), PLAN, found)
    assert [note.name for note in first.notes] == ["confirmed-cold"]
    assert first.verdict is Verdict.VIOLATED
    assert confirmer.confirm(zygote, trial(2), PLAN, found) == found
    assert asked == [1]


def test_another_campaign_on_the_same_zygote_asks_for_other_findings_only(
    confirmer, zygote, asked
):
    zygote.confirmed = {"optimizer-not-restored"}
    confirmer.confirm(zygote, trial(1), PLAN, judgement("optimizer-not-restored"))
    assert asked == []
    confirmer.confirm(zygote, trial(2), PLAN, judgement("rng-not-restored"))
    assert asked == [2]


def test_what_fresh_processes_do_not_show_convicts_nobody(confirmer, zygote):
    found = judgement("rng-not-restored")
    refuted = confirmer.confirm(zygote, trial(2), PLAN, found)
    assert refuted.verdict is Verdict.UNKNOWN
    assert [finding.name for finding in refuted.findings] == ["not-repeatable"]
    assert confirmer.has_refuted
    assert zygote.confirmed == set()
    earlier = (trial(1), found)
    other = (trial(3), judgement("optimizer-not-restored"))
    fresh = (trial(4, path="cold"), found)
    doubted, kept, kept_fresh = confirmer.doubt_refuted([earlier, other, fresh])
    assert doubted[1].verdict is Verdict.UNKNOWN
    assert (kept, kept_fresh) == (other, fresh)


@pytest.mark.parametrize(
    ("path", "verdict"), [("cold", Verdict.VIOLATED), ("warm", Verdict.HELD)]
)
def test_fresh_or_held_trials_need_no_confirming(
    confirmer, zygote, asked, path, verdict
):
    found = judgement("optimizer-not-restored", verdict=verdict)
    assert confirmer.confirm(zygote, trial(1, path), PLAN, found) == found
    assert asked == []


def test_who_is_vouched_for_needs_no_confirming(confirmer, zygote, asked):
    zygote.is_vouched_for = True
    found = judgement("optimizer-not-restored")
    assert confirmer.confirm(zygote, trial(1), PLAN, found) == found
    assert asked == []


def test_what_forks_leave_open_is_decided_by_fresh_processes(zygote, asked):
    def again(trial, plan):
        asked.append(trial.number)
        if trial.number == 1:
            return trial, judgement("not-reached", verdict=Verdict.UNKNOWN)
        return fresh

    confirmer = Confirmer(again)
    fresh = trial(2, path="cold"), judgement(verdict=Verdict.HELD)
    for number in (1, 2):
        found = judgement("not-reached", verdict=Verdict.UNKNOWN)
        given = trial(number)
        assert confirmer.decide(zygote, given, PLAN, found) == (given, found)
    assert asked == [1]  # fresh processes cannot tell either
    assert not confirmer.has_refuted
    found = judgement("hang", verdict=Verdict.UNKNOWN)
    assert confirmer.decide(zygote, trial(2), PLAN, found) == fresh
    assert confirmer.has_refuted


@pytest.mark.parametrize(
    ("path", "verdict"), [("cold", Verdict.UNKNOWN), ("warm", Verdict.VIOLATED)]
)
def test_what_fresh_processes_left_open_is_not_decided_again(
    confirmer, zygote, asked, path, verdict
):
    found = judgement("not-reached", verdict=verdict)
    given = trial(1, path)
    assert confirmer.decide(zygote, given, PLAN, found) == (given, found)
    assert asked == []
