"""The pollers of the reference core, written from the documents alone, see our notices."""

from datetime import UTC, datetime, timedelta

import pytest

from spotchaos.clock import ManualClock
from spotchaos.providers.service import NoticeService
from spotchaos.providers.serving import on_loopback
from spotchaos.providers.stories import story
from spotchaos.training.pollers import (
    AlibabaPoller,
    AwsPoller,
    AzurePoller,
    GcpPoller,
    PollError,
)

POLLERS = {
    "aws": AwsPoller,
    "gcp": GcpPoller,
    "azure": AzurePoller,
    "alibaba": AlibabaPoller,
}


@pytest.mark.parametrize(
    "name",
    [
        "aws",
        "aws-stop",
        "aws-token-required",
        "aws-token-revoked",
        "aws-duplicated",
        "aws-no-time",
        "gcp",
        "azure",
        "azure-iso",
        "azure-duplicated",
        "alibaba",
        "alibaba-empty",
        "alibaba-token-required",
        "alibaba-token-expired",
    ],
)
def test_an_order_is_seen_with_its_deadline(name):
    clock = ManualClock()
    service = NoticeService(story(name), clock=clock)
    make = POLLERS[service.story.provider]
    with on_loopback(service) as url:
        poller = make(url, timeout_s=30.0, clock=clock)
        assert poller.ask() is None
        (first, *_) = service.announce()
        clock.advance(1)
        service.look_again()
        # A token may end in between; a second hanging GET would wait for a change.
        for _ in range(1 if name == "gcp" else 3):
            sighting = poller.ask()
            assert sighting.is_order
            # Google names no time: the poller counts from when it saw the change.
            named = sighting.deadline or first.deadline
            assert abs(named - first.deadline) <= timedelta(seconds=1)


@pytest.mark.parametrize("name", ["aws-rebalance", "azure-other-vm", "aws-missing"])
def test_what_is_no_order_is_not_taken_for_one(name):
    clock = ManualClock()
    service = NoticeService(story(name), clock=clock)
    options = {"name": "spotchaos_0"} if name.startswith("azure") else {}
    with on_loopback(service) as url:
        poller = POLLERS[service.story.provider](
            url, timeout_s=30.0, clock=clock, **options
        )
        service.announce()
        sighting = poller.ask()
    assert sighting is None or not sighting.is_order


@pytest.mark.parametrize("name", ["aws-403", "aws-429", "azure-500", "alibaba-503"])
def test_a_service_that_fails_is_not_taken_for_silence(name):
    clock = ManualClock()
    service = NoticeService(story(name), clock=clock)
    with on_loopback(service) as url:
        poller = POLLERS[service.story.provider](url, timeout_s=30.0, clock=clock)
        with pytest.raises(PollError):
            poller.ask()


def test_a_window_of_less_than_a_second_is_not_taken_for_an_old_notice():
    clock = ManualClock(datetime(2026, 1, 1, 0, 0, 0, 700_000, tzinfo=UTC))
    service = NoticeService(story("aws"), clock=clock, time_scale=600)
    with on_loopback(service) as url:
        poller = AwsPoller(url, timeout_s=30.0, clock=clock)
        (notice,) = service.announce()
        assert notice.deadline.second == 0
        assert poller.ask().is_order


def test_an_acknowledgement_hastens_the_end():
    clock = ManualClock()
    service = NoticeService(story("azure"), clock=clock)
    with on_loopback(service) as url:
        poller = AzurePoller(url, timeout_s=30.0, acknowledge=True, clock=clock)
        service.announce()
        poller.ask()
        poller.acknowledged()
        clock.advance(1)
        assert service.phase == "gone"
