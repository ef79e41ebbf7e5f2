"""Every provider's story can be named, begins and ends as documented, or says why not."""

from datetime import UTC, datetime, timedelta

import pytest

from spotchaos.errors import UsageError
from spotchaos.providers import PROVIDERS
from spotchaos.providers.notice import Follows, Phase, reclaim_at
from spotchaos.providers.profiles import profile, profiles
from spotchaos.providers.stories import STEMS, stories, story

START = datetime(2026, 1, 1, tzinfo=UTC)
# contracts: the notice in seconds, or what is said in its place.
DOCUMENTED = {
    "aws": "120 s",
    "gcp": "30 s",
    "gke": "15 s",
    "azure": "30 s",
    "alibaba": "300 s",
    "tencent": "not verified",
    "oracle": "120 s",
    "nebius": "60 s",
    "yandex": "30 s",
    "coreweave": "420 s",
    "runpod": "5 s",
    "vast": "none documented",
    "verda": "none documented",
    "salad": "none documented",
    "lambda": "none documented",
    "hetzner": "none documented",
    "kubernetes": "30 s",
    "slurm": "set by the site",
    "metaflow": "120 s",
}


def at(seconds):
    return START + timedelta(seconds=seconds)


def test_the_profiles_say_what_each_provider_documents():
    assert {name: row.says for name, row in profiles().items()} == DOCUMENTED


@pytest.mark.parametrize("name", sorted(DOCUMENTED))
def test_a_profile_names_its_source_and_what_follows(name):
    row = profile(name)
    assert row.source
    assert row.follows
    assert row.read.year >= 2026
    assert (row.notice == "documented") == (row.notice_s is not None)
    assert row.billing_minimum_s is None or row.billing_s is not None
    assert (row.billing_s is None) == (row.billing_source == "")
    assert (row.free_first_s is None) == (row.free_source == "")


def test_every_metadata_service_has_a_profile_and_a_story():
    assert set(PROVIDERS) <= set(profiles())
    assert set(PROVIDERS) <= {stem.provider for stem in STEMS.values()}


@pytest.mark.parametrize("stem", sorted(STEMS))
def test_a_story_begins_and_ends_where_it_says(stem):
    names = [name for name in stories() if name.startswith(stem)]
    assert names
    for name in names:
        told = story(name, grace_s=60)
        notices = told.begin(START)
        last = at(told.lasts_s)
        assert notices
        assert all(START <= n.announced_at <= n.deadline <= last for n in notices)
        assert told.is_reclaimed == (reclaim_at(notices) is not None)
        is_gone = Phase.GONE in {n.phase(last) for n in notices}
        assert is_gone == told.is_reclaimed, name


@pytest.mark.parametrize(
    ("name", "readable_s", "deadline_s", "reclaim_s"),
    [
        pytest.param("aws", 0, 120, 120, id="aws"),
        pytest.param("aws-early", 0, 120, 25, id="95-s-before-the-named-time"),
        pytest.param("aws-late", 60, 120, 120, id="late"),
        pytest.param("aws-missing", None, 120, 120, id="missing"),
        pytest.param("aws-withdrawn", 0, 120, None, id="withdrawn"),
        pytest.param("aws-overdue", 0, 120, 180, id="overdue"),
        pytest.param("aws-rebalance", 0, 120, None, id="advice"),
        pytest.param("aws-hibernate", 0, 0, 0, id="no-lead"),
        pytest.param("gcp", 0, 30, 30, id="gcp"),
        pytest.param("gcp-extended", 0, 150, 150, id="gcp-extended"),
        pytest.param("azure", 0, 30, 30, id="azure"),
        pytest.param("azure-redeploy", 0, 600, 600, id="azure-redeploy"),
        pytest.param("azure-reboot", 0, 900, 900, id="azure-reboot"),
        pytest.param("azure-other-vm", 0, 30, None, id="another-machine"),
        pytest.param("alibaba", 0, 300, 300, id="alibaba"),
        pytest.param("runpod", 0, 5, 5, id="runpod"),
        pytest.param("vast", None, 0, 0, id="no-notice-is-documented"),
    ],
)
def test_a_story_keeps_its_times(name, readable_s, deadline_s, reclaim_s):
    (notice,) = story(name).begin(START)
    assert notice.readable_at == (None if readable_s is None else at(readable_s))
    assert notice.deadline == at(deadline_s)
    assert notice.reclaim_at == (None if reclaim_s is None else at(reclaim_s))


def test_a_duplicated_notice_names_the_same_deadline_twice():
    first, second = story("aws-duplicated").begin(START)
    assert second.announced_at > first.announced_at
    assert second.deadline == first.deadline == at(120)


def test_a_rebalance_that_comes_first_is_followed_by_a_notice():
    advice, loss = story("aws-rebalance-first").begin(START)
    assert (advice.kind, advice.reclaim_at) == ("rebalance", None)
    assert (loss.kind, loss.announced_at, loss.reclaim_at) == (
        "terminate",
        at(20),
        at(140),
    )


def test_hibernation_freezes():
    (notice,) = story("aws-hibernate").begin(START)
    assert notice.follows is Follows.FREEZE


def test_the_grace_window_and_the_scale_set_the_deadline():
    (notice,) = story("aws", grace_s=60).begin(START, time_scale=30)
    assert notice.deadline == at(2)


def test_a_withdrawal_can_be_set_for_any_story():
    (notice,) = story("gcp").withdrawn_after(10).begin(START)
    assert (notice.withdrawn_at, notice.reclaim_at) == (at(10), None)


def test_a_withdrawal_after_the_reclaim_is_refused():
    with pytest.raises(UsageError, match="comes too late") as caught:
        story("gcp").withdrawn_after(31)
    assert "'gcp' reclaims after 30 s" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        pytest.param("awz", "did you mean 'aws'?", id="near-miss"),
        pytest.param("aws-erly", "did you mean 'aws-early'?", id="near-variant"),
        pytest.param("gcp-token-required", "did you mean", id="gcp-has-no-tokens"),
        pytest.param("", "notices are aws", id="empty"),
    ],
)
def test_an_unknown_notice_says_which_there_are(name, hint):
    with pytest.raises(UsageError, match="unknown provider or notice") as caught:
        story(name)
    assert hint in str(caught.value)


def test_an_unknown_provider_names_the_nearest():
    with pytest.raises(UsageError) as caught:
        profile("azur")
    assert str(caught.value) == "unknown provider 'azur'\nHint: did you mean 'azure'?"


@pytest.mark.parametrize("name", ["slurm", "tencent"])
def test_a_notice_without_a_length_of_its_own_wants_one(name):
    with pytest.raises(UsageError, match="no length of its own") as caught:
        story(name)
    assert "--grace SECONDS" in str(caught.value)
    assert story(name, grace_s=12).grace_s == 12


def test_an_impossible_grace_is_refused_by_name():
    with pytest.raises(UsageError, match=r"impossible grace window of -5\.0 s"):
        story("aws", grace_s=-5.0)
