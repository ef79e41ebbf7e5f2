"""EC2's metadata service, row by row, over every HTTP wire."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
import requests

from spotchaos.errors import UsageError
from spotchaos.providers.aws import AwsMetadata
from spotchaos.providers.aws_events import event
from spotchaos.providers.stories import story

ROOT = "/latest/meta-data/"
ACTION = ROOT + "spot/instance-action"
TERMINATION = ROOT + "spot/termination-time"
REBALANCE = ROOT + "events/recommendations/rebalance"
MAINTENANCE = ROOT + "events/maintenance/scheduled"
LIFECYCLE = ROOT + "autoscaling/target-lifecycle-state"
TTL = "X-aws-ec2-metadata-token-ttl-seconds"
TOKEN = "X-aws-ec2-metadata-token"


def new_token(wire, ttl="21600"):
    answer = wire.ask("PUT", "/latest/api/token", **{TTL: ttl})
    assert answer.status_code == 200
    return answer.text


@pytest.mark.parametrize("path", [ACTION, TERMINATION, REBALANCE])
def test_an_item_is_absent_until_there_is_something_to_say(play, path):
    answer = play("aws", announce=False).get(path)
    assert answer.status_code == 404
    assert "<title>404 - Not Found</title>" in answer.text


@pytest.mark.parametrize("action", ["terminate", "stop"])
def test_the_notice_names_action_and_time_two_minutes_ahead(play, action):
    wire = play("aws" if action == "terminate" else "aws-stop")
    answer = wire.get(ACTION)
    assert answer.json() == {"action": action, "time": "2026-01-01T00:02:00Z"}
    assert answer.headers["Content-Type"].startswith("text/plain")
    assert wire.get(TERMINATION).text == "2026-01-01T00:02:00Z"


def test_hibernation_begins_with_its_notice(play):
    wire = play("aws-hibernate")
    assert wire.get(ACTION).json() == {
        "action": "hibernate",
        "time": "2026-01-01T00:00:00Z",
    }
    assert wire.service.phase == "gone"


def test_a_failed_termination_leaves_the_old_time_and_no_action(play):
    wire = play("aws")
    wire.service.withdraw()
    wire.clock.advance(500)
    assert wire.get(ACTION).status_code == 404
    assert wire.get(TERMINATION).text == "2026-01-01T00:02:00Z"


def test_a_late_notice_shows_the_deadline_that_was_fixed_before(play):
    wire = play("aws-late")
    assert wire.get(ACTION).status_code == 404
    wire.clock.advance(60)
    assert wire.get(ACTION).json()["time"] == "2026-01-01T00:02:00Z"


def test_a_missing_notice_is_never_read_and_the_machine_still_goes(play):
    wire = play("aws-missing")
    wire.clock.advance(119)
    assert wire.get(ACTION).status_code == 404
    wire.clock.advance(1)
    assert wire.service.phase == "gone"


def test_rebalance_is_advice_with_a_time_and_no_spot_notice(play):
    wire = play("aws-rebalance")
    assert wire.get(REBALANCE).json() == {"noticeTime": "2026-01-01T00:00:00Z"}
    assert wire.get(ACTION).status_code == 404
    assert wire.service.reclaim_at is None


def test_rebalance_may_come_before_the_notice(play):
    wire = play("aws-rebalance-first")
    assert wire.get(ACTION).status_code == 404
    wire.clock.advance(20)
    assert wire.get(ACTION).json()["time"] == "2026-01-01T00:02:20Z"
    assert wire.get(REBALANCE).status_code == 200


def test_the_lifecycle_state_is_the_one_it_moves_to(play):
    wire = play("aws-autoscaling", announce=False)
    assert wire.get(LIFECYCLE).text == "InService"
    wire.service.announce()
    assert wire.get(LIFECYCLE).text == "Terminated"
    assert wire.get(ACTION).status_code == 404


def test_maintenance_is_a_list_of_events(play):
    wire = play("aws-maintenance", announce=False)
    assert wire.get(MAINTENANCE).json() == []
    wire.service.announce()
    (event,) = wire.get(MAINTENANCE).json()
    assert event["Code"] == "instance-stop"
    assert event["State"] == "active"
    assert event["NotBefore"] == "1 Jan 2026 00:02:00 GMT"
    assert set(event) == {
        "Code",
        "Description",
        "EventId",
        "NotAfter",
        "NotBefore",
        "NotBeforeDeadline",
        "State",
    }
    wire.service.withdraw()
    assert wire.get(MAINTENANCE).json()[0]["State"] == "canceled"


def test_a_listing_has_one_name_a_line(play):
    wire = play("aws")
    names = wire.get(ROOT).text
    assert names.endswith("\n")
    assert {"instance-id", "placement/", "spot/"} <= set(names.splitlines())
    assert wire.get(ROOT + "spot/").text == "instance-action\ntermination-time\n"


def test_an_item_answers_with_a_slash_after_it_too(play):
    wire = play("aws")
    zone = wire.get(ROOT + "placement/availability-zone/")  # as botocore asks
    assert (zone.status_code, zone.text) == (200, "us-east-1a")
    assert wire.get(ROOT + "spot/instance-action/").json()["action"] == "terminate"
    assert wire.get(ROOT + "placement/nothing/").status_code == 404


def test_the_spot_folder_is_absent_with_its_items(play):
    wire = play("aws", announce=False)
    assert "spot/" not in wire.get(ROOT).text.splitlines()
    assert wire.get(ROOT + "spot/").status_code == 404


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ("instance-id", "i-0123456789abcdef0"),
        ("instance-life-cycle", "spot"),
        ("instance-type", "g5.xlarge"),
        ("placement/availability-zone", "us-east-1a"),
        ("placement/region", "us-east-1"),
    ],
)
def test_pollers_find_who_they_are(play, item, text):
    answer = play("aws").get(ROOT + item)
    assert answer.text == text
    assert answer.headers["Content-Type"].startswith("text/plain")


def test_the_identity_document_agrees_with_the_items(play):
    document = play("aws").get("/latest/dynamic/instance-identity/document").json()
    assert document["instanceId"] == "i-0123456789abcdef0"
    assert document["region"] == "us-east-1"


def test_a_dated_version_answers_like_the_latest(play):
    wire = play("aws")
    dated = wire.get("/2021-07-15/meta-data/spot/instance-action")
    assert dated.json() == wire.get(ACTION).json()


def test_version_1_needs_no_token(play):
    assert play("aws").get(ACTION).status_code == 200


def test_a_token_comes_with_its_time_to_live(play):
    answer = play("aws").ask("PUT", "/latest/api/token", **{TTL: "60"})
    assert answer.status_code == 200
    assert answer.headers[TTL] == "60"
    assert answer.text


@pytest.mark.parametrize(
    "ttl",
    [
        pytest.param(None, id="no-header"),
        pytest.param("0", id="too-short"),
        pytest.param("21601", id="too-long"),
        pytest.param("an hour", id="not-a-number"),
        pytest.param("-5", id="negative"),
    ],
)
def test_a_token_request_without_a_good_time_to_live_is_bad(play, ttl):
    headers = {} if ttl is None else {TTL: ttl}
    answer = play("aws").ask("PUT", "/latest/api/token", **headers)
    assert answer.status_code == 400


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        pytest.param("/2021-07-15/api/token", {TTL: "60"}, id="dated-version"),
        pytest.param(
            "/latest/api/token",
            {TTL: "60", "X-Forwarded-For": "x"},
            id="through-a-proxy",
        ),
    ],
)
def test_a_token_request_that_is_not_allowed_is_forbidden(play, path, headers):
    assert play("aws").ask("PUT", path, **headers).status_code == 403


def test_a_token_is_required_when_it_is(play):
    wire = play("aws-token-required")
    assert wire.get(ACTION).status_code == 401
    assert wire.get(ACTION, **{TOKEN: new_token(wire)}).status_code == 200
    assert wire.service.log[0].note == "no token, and one is required"


def test_a_token_runs_out(play):
    wire = play("aws-token-required")
    token = new_token(wire, ttl="30")
    wire.clock.advance(29)
    assert wire.get(ACTION, **{TOKEN: token}).status_code == 200
    wire.clock.advance(1)
    assert wire.get(ACTION, **{TOKEN: token}).status_code == 401
    assert wire.service.log[-1].note == "token expired"
    assert wire.get(ACTION, **{TOKEN: new_token(wire)}).status_code == 200


@pytest.mark.parametrize("fault", ["token-expired", "token-revoked"])
def test_a_token_may_end_in_mid_run_and_a_new_one_helps(play, fault):
    wire = play(f"aws-{fault}")
    token = new_token(wire)
    found = [wire.get(ACTION, **{TOKEN: token}).status_code for _ in range(4)]
    assert found == [200, 200, 401, 401]
    assert wire.get(ACTION, **{TOKEN: new_token(wire)}).status_code == 200


@pytest.mark.parametrize("token", ["", "AQAAA", "not base 64!"])
def test_a_token_from_elsewhere_is_refused_even_by_version_1(play, token):
    assert play("aws").get(ACTION, **{TOKEN: token}).status_code == 401


def test_other_methods_are_not_allowed(play):
    assert play("aws").ask("POST", ACTION).status_code == 405


def test_an_unknown_path_is_absent_and_named_in_the_log(play):
    wire = play("aws")
    assert wire.get("/latest/meta-data/spot/instance-acton").status_code == 404
    assert wire.service.log[-1].note == "unknown path"


def test_a_known_but_absent_path_is_no_surprise(play):
    wire = play("aws", announce=False)
    wire.get(ACTION)
    assert wire.service.log[-1].note == ""


def test_a_role_has_credentials_that_open_nothing(play):
    wire = play("aws")
    folder = ROOT + "iam/security-credentials/"
    role = wire.get(folder).text  # botocore strips nothing from it
    found = json.loads(wire.get(folder + role).text)
    assert found["Code"] == "Success"
    assert "DUMMY" in found["AccessKeyId"]


def test_the_time_may_be_a_text_that_is_none(play):
    wire = play("aws-no-time", announce=False)
    assert wire.get(TERMINATION).text == "not scheduled"
    assert wire.get(ACTION).status_code == 404
    wire.service.announce()
    assert wire.get(TERMINATION).text == "2026-01-01T00:02:00Z"


@pytest.mark.parametrize(
    "state",
    [
        "InService",
        "Terminated",
        "Detached",
        "Standby",
        "Warmed:Hibernated",
        "Warmed:Running",
        "Warmed:Stopped",
        "Warmed:Terminated",
        None,  # a very new instance
    ],
)
def test_a_group_may_move_a_machine_to_any_lifecycle_state(play, state):
    told = replace(story("aws"), settings={"lifecycle_state": state})
    answer = play(told).get(LIFECYCLE)
    assert (answer.status_code, answer.text) == (200, state) or (
        state is None and answer.status_code == 404
    )
    assert answer.headers["Content-Type"].startswith("text/plain") == bool(state)


@pytest.mark.parametrize("action", ["terminate", "stop", "hibernate"])
def test_eventbridge_tells_the_same(action):
    name = "aws" if action == "terminate" else f"aws-{action}"
    (notice,) = story(name).begin(datetime(2026, 1, 1, tzinfo=UTC))
    told = event(notice, AwsMetadata())
    assert told["source"] == "aws.ec2"
    assert told["detail-type"] == "EC2 Spot Instance Interruption Warning"
    assert told["detail"] == {
        "instance-id": "i-0123456789abcdef0",
        "instance-action": action,
    }
    assert told["resources"] == ["arn:aws:ec2:us-east-1a:instance/i-0123456789abcdef0"]


def test_eventbridge_tells_of_advice_and_not_of_silence():
    at = datetime(2026, 1, 1, tzinfo=UTC)
    (advice,) = story("aws-rebalance").begin(at)
    assert "Rebalance" in event(advice, AwsMetadata())["detail-type"]
    (missing,) = story("aws-missing").begin(at)
    with pytest.raises(UsageError, match="sends nothing"):
        event(missing, AwsMetadata())


class NodeTerminationHandler:
    """Asks as aws-node-termination-handler does, in its own words.

    Source: aws/aws-node-termination-handler, `pkg/ec2metadata/ec2metadata.go`.
    """

    def __init__(self, wire, timeout_s):
        self.wire = wire
        self.timeout_s = timeout_s
        self.token = None
        self.token_ends_s = 0.0

    def is_told(self):
        for _ in range(2):
            headers = {} if self._token() is None else {TOKEN: self.token}
            status = self.wire.get(ACTION, **headers).status_code
            if status == 401:
                self.token = None
                continue
            assert status in {200, 404}
            return status == 200
        return False

    def _token(self):
        now_s = self.wire.clock.monotonic()
        if self.token is None or now_s > self.token_ends_s - 15:
            try:
                answer = requests.put(
                    self.wire.base_url + "/latest/api/token",
                    headers={TTL: "3600"},
                    timeout=self.timeout_s,
                )
            except requests.RequestException:
                return None
            self.token = answer.text
            self.token_ends_s = now_s + int(answer.headers[TTL])
        return self.token


@pytest.mark.parametrize(
    ("name", "puts"),
    [
        pytest.param("aws", 2, id="refreshed-before-it-ends"),
        pytest.param("aws-token-required", 2, id="required"),
        pytest.param("aws-token-revoked", 3, id="revoked-in-mid-run"),
        pytest.param("aws-hop-limit", 6, id="falls-back-to-version-1"),
    ],
)
def test_the_best_known_poller_is_told_whatever_happens_to_its_token(play, name, puts):
    wire = play(name, announce=False)
    # Only where no answer comes is the wait worth keeping short.
    poller = NodeTerminationHandler(wire, 0.2 if name == "aws-hop-limit" else 20.0)
    told = [poller.is_told() for _ in range(4)]
    wire.clock.advance(3590)
    told.append(poller.is_told())
    wire.service.announce()
    told.append(poller.is_told())
    assert told == [False] * 5 + [True]
    assert [e.method for e in wire.service.log].count("PUT") == puts
