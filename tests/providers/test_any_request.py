"""Whatever a program asks, a provider answers as a cloud would and never breaks."""

import string
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings, strategies as st

from spotchaos.providers import PROVIDERS
from spotchaos.providers.exchange import Delivery, Request
from spotchaos.providers.notice_file import PlainNotice
from spotchaos.providers.stories import story

START = datetime(2026, 1, 1, tzinfo=UTC)
PATHS = (
    "/",
    "/latest/api/token",
    "/latest/meta-data/",
    "/latest/meta-data/spot/instance-action",
    "/2021-07-15/meta-data/spot/termination-time",
    "/computeMetadata/v1/",
    "/computeMetadata/v1/instance/preempted",
    "/computeMetadata/v1/instance/?recursive=true",
    "/metadata/scheduledevents",
    "/metadata/instance/compute/name",
    "/latest/meta-data/instance/spot/termination-time",
)
HEADERS = (
    "metadata",
    "metadata-flavor",
    "x-aws-ec2-metadata-token",
    "x-aws-ec2-metadata-token-ttl-seconds",
    "x-aliyun-ecs-metadata-token",
    "x-aliyun-ecs-metadata-token-ttl-seconds",
    "x-forwarded-for",
)
QUERIES = (
    "api-version",
    "wait_for_change",
    "last_etag",
    "timeout_sec",
    "alt",
    "recursive",
)
# Printable, and what a careless client might send besides.
LETTERS = string.printable + "\u0663\u00e9\U0001f600"
VALUES = st.sampled_from(
    ["", "true", "True", "Google", "0", "1", "21600", "9" * 5000, "2020-07-01", "json"]
) | st.text(LETTERS, max_size=20)
BODIES = st.binary(max_size=40) | st.sampled_from(
    [
        b'{"StartRequests": [{"EventId": []}]}',
        b'{"StartRequests": 3}',
        b"[[[",
        b"[" * 100_000,
        b"\xff",
    ]
)

requests_of_all_kinds = st.builds(
    Request,
    method=st.sampled_from(["GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "FOO"]),
    path=st.sampled_from(PATHS)
    | st.text(LETTERS, max_size=30).map(lambda text: "/" + text),
    received_at=st.just(START),
    query=st.dictionaries(st.sampled_from(QUERIES), VALUES, max_size=4),
    headers=st.dictionaries(st.sampled_from(HEADERS), VALUES, max_size=4),
    body=BODIES,
)


@pytest.mark.parametrize("name", [*PROVIDERS, "plain"])
@settings(max_examples=60)
@given(request=requests_of_all_kinds, seconds=st.integers(0, 400))
def test_no_request_breaks_a_provider(name, request, seconds):
    make = PROVIDERS.get(name, PlainNotice)
    told = story("kubernetes" if name == "plain" else name, grace_s=60)
    provider = make(notices=told.begin(START))
    now = START + timedelta(seconds=seconds)
    response = provider.reply(request, now)
    assert 200 <= response.status <= 599
    assert response.delivery in {Delivery.ANSWER, Delivery.HOLD}
    # The same question at the same moment has the same answer: `reply` is pure.
    assert replace(provider.reply(request, now), after=None) == replace(
        response, after=None
    )
