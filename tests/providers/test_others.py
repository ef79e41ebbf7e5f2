"""Alibaba, Tencent, and those that have no metadata service."""

import json

import pytest

from spotchaos.clock import ManualClock
from spotchaos.errors import UsageError
from spotchaos.providers.service import NoticeService
from spotchaos.providers.serving import in_process
from spotchaos.providers.stories import story

ITEM = "/latest/meta-data/instance/spot/termination-time"
TTL = "X-aliyun-ecs-metadata-token-ttl-seconds"
TOKEN = "X-aliyun-ecs-metadata-token"


def test_alibaba_names_the_release_five_minutes_ahead(play):
    wire = play("alibaba", announce=False)
    assert wire.get(ITEM).status_code == 404
    wire.service.announce()
    assert wire.get(ITEM).text == "2026-01-01T00:05:00Z"


def test_alibaba_may_answer_with_nothing_until_then(play):
    answer = play("alibaba-empty", announce=False).get(ITEM)
    assert (answer.status_code, answer.text) == (200, "")


def test_alibaba_in_hardened_mode_wants_a_token(play):
    wire = play("alibaba-token-required")
    assert wire.get(ITEM).status_code == 403
    answer = wire.ask("PUT", "/latest/api/token", **{TTL: "60"})
    assert answer.status_code == 200
    assert wire.get(ITEM, **{TOKEN: answer.text}).status_code == 200
    wire.clock.advance(60)
    assert wire.get(ITEM, **{TOKEN: answer.text}).status_code == 401


@pytest.mark.parametrize("ttl", ["0", "21601", "x"])
def test_alibaba_bounds_the_life_of_a_token(play, ttl):
    wire = play("alibaba")
    assert wire.ask("PUT", "/latest/api/token", **{TTL: ttl}).status_code == 400


def test_alibaba_lists_its_items(play):
    names = play("alibaba").get("/latest/meta-data/").text.splitlines()
    assert {"instance-id", "instance/"} <= set(names)


def test_tencent_shows_a_time_under_its_own_name(play):
    wire = play("tencent", announce=False, grace_s=60)
    path = "/latest/meta-data/spot/termination-time"
    assert wire.get(path).status_code == 404
    wire.service.announce()
    assert wire.get(path).text == "2026-01-01T00:01:00Z"


@pytest.mark.parametrize("name", ["oracle", "metaflow", "nebius", "kubernetes"])
def test_a_provider_without_http_still_has_its_document(name):
    clock = ManualClock()
    service = NoticeService(story(name), clock=clock)
    (before,) = service.documents(clock.now()).values()
    service.announce()
    (after,) = service.documents(clock.now()).values()
    assert (before.status, after.status) == (404, 200)
    assert json.loads(after.body)["deadline"].startswith("2026-01-01T00:0")


def test_a_provider_without_http_has_no_http_wire():
    service = NoticeService(story("nebius"), clock=ManualClock())
    with (
        pytest.raises(UsageError, match="has no metadata service"),
        in_process(service),
    ):
        pass
