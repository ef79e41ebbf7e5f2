"""Each poller takes what a metadata service answers for what it is, errors included."""

import json
import socketserver
import threading
from datetime import UTC, datetime, timedelta

import pytest

from spotchaos.clock import ManualClock
from spotchaos.training.pollers import (
    AlibabaPoller,
    AwsPoller,
    AzurePoller,
    GcpPoller,
    PollError,
    detect,
)

ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
TOKEN = "/latest/api/token"
INSTANCE = "/computeMetadata/v1/instance/"
PREEMPTED = '{"preempted": "TRUE", "maintenanceEvent": "NONE"}'
QUIET = '{"preempted": "FALSE", "maintenanceEvent": "NONE"}'
NOW = datetime(2026, 1, 1, tzinfo=UTC)
DEADLINE = "2026-01-01T00:02:00Z"
LIMIT_S = 20


def order(time=DEADLINE, action="terminate"):
    return 200, json.dumps({"action": action, "time": time}), {}


def with_tokens(service, *, life_s=21600):
    """Require tokens, as IMDSv2 does, and hand out a new one each time."""
    given = []

    def token(method, headers):
        assert method == "PUT"
        assert headers["x-aws-ec2-metadata-token-ttl-seconds"] == "21600"
        given.append(f"token-{len(given)}")
        return 200, given[-1], {"X-aws-ec2-metadata-token-ttl-seconds": str(life_s)}

    def guarded(answer):
        def reply(method, headers):
            if headers.get("x-aws-ec2-metadata-token") != given[-1]:
                return 401, "", {}
            return answer

        return reply

    service.answers[TOKEN] = token
    return given, guarded


# --- AWS


def test_aws_404_is_no_notice(service):
    assert AwsPoller(service.url).ask() is None
    assert [path for _, path, _ in service.log] == [TOKEN, ACTION, REBALANCE]


@pytest.mark.parametrize("action", ["terminate", "stop", "hibernate"])
def test_aws_an_action_is_an_order_with_its_deadline(service, action):
    service.answers[ACTION] = order(action=action)
    sighting = AwsPoller(service.url, clock=ManualClock(NOW)).ask()
    assert sighting.is_order
    assert sighting.deadline == NOW + timedelta(minutes=2)
    assert sighting.detail == action


def test_aws_rebalance_is_advice(service):
    service.answers[REBALANCE] = (200, '{"noticeTime": "2026-01-01T00:00:00Z"}', {})
    assert not AwsPoller(service.url).ask().is_order


def test_aws_a_time_that_has_passed_is_no_notice(service):
    service.answers[ACTION] = order("2025-12-31T23:00:00Z")
    assert AwsPoller(service.url, clock=ManualClock(NOW)).ask() is None


@pytest.mark.parametrize(
    "body", ["", "soon", "[]", '{"action": "stop"}', '{"time": 3}']
)
def test_aws_a_body_that_is_no_order_is_an_error_and_not_a_notice(service, body):
    service.answers[ACTION] = (200, body, {})
    with pytest.raises(PollError, match="not as documented"):
        AwsPoller(service.url).ask()


def test_aws_the_token_is_sent_and_kept(service):
    given, guarded = with_tokens(service)
    service.answers[ACTION] = guarded(order())
    poller = AwsPoller(service.url, clock=ManualClock(NOW))
    assert poller.ask().is_order
    assert poller.ask().is_order
    assert given == ["token-0"]


def test_aws_the_token_is_renewed_before_it_ends(service):
    given, guarded = with_tokens(service, life_s=300)
    service.answers[ACTION] = guarded(order("2027-01-01T00:00:00Z"))
    clock = ManualClock(NOW)
    poller = AwsPoller(service.url, clock=clock)
    for _ in range(4):
        assert poller.ask().is_order
        clock.advance(250)
    assert len(given) == 4
    assert not [1 for _, path, headers in service.log if path == ACTION and not headers]


def test_aws_a_401_in_the_middle_fetches_a_new_token(service):
    given, guarded = with_tokens(service)
    service.answers[ACTION] = guarded(order())
    poller = AwsPoller(service.url, clock=ManualClock(NOW))
    assert poller.ask().is_order
    given.append("revoked-and-replaced")
    assert poller.ask().is_order
    assert len(given) == 3


@pytest.mark.parametrize("answer", [(403, "", {}), (404, "", {}), None, (500, "", {})])
def test_aws_without_a_token_it_falls_back_to_version_1(service, answer):
    service.answers[TOKEN] = lambda method, headers: answer
    service.answers[ACTION] = order()
    assert AwsPoller(service.url, clock=ManualClock(NOW)).ask().is_order


@pytest.mark.parametrize("status", [400, 401, 403, 429, 500, 503])
def test_aws_an_error_of_the_service_is_an_error_and_not_silence(service, status):
    service.answers[ACTION] = (status, "", {})
    with pytest.raises(PollError, match=f"status {status}"):
        AwsPoller(service.url).ask()


def test_a_service_that_never_answers_costs_its_time_out(service):
    service.answers[ACTION] = lambda method, headers: None
    with pytest.raises(PollError):
        AwsPoller(service.url, timeout_s=0.2).ask()


def test_nobody_there_is_an_error(service):
    with pytest.raises(PollError, match="ConnectionRefusedError"):
        AlibabaPoller("http://127.0.0.1:9").ask()


def test_a_connection_that_the_server_closed_between_polls_is_made_anew():
    class Closing(socketserver.BaseRequestHandler):
        """Answers once as if it kept the connection, and closes it without a word."""

        def handle(self):
            while b"\r\n\r\n" not in self.request.recv(4096):
                pass
            self.server.served += 1
            self.request.sendall(b"HTTP/1.1 404 Gone\r\nContent-Length: 0\r\n\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Closing) as server:
        server.served = 0
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            poller = AlibabaPoller(f"http://127.0.0.1:{server.server_address[1]}")
            assert [poller.ask() for _ in range(3)] == [None] * 3
        finally:
            server.shutdown()
            thread.join()
    assert server.served == 3


def test_a_server_that_closes_without_an_answer_is_asked_at_most_twice(service):
    service.answers[ACTION] = lambda method, headers: None
    poller = AwsPoller(service.url)
    with pytest.raises(PollError, match="RemoteDisconnected"):
        poller.ask()
    assert [entry[1] for entry in service.log].count(ACTION) <= 2


def test_the_documented_variables_redirect_the_pollers(service, monkeypatch):
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", service.url)
    service.answers[ACTION] = order()
    assert AwsPoller(clock=ManualClock(NOW)).ask().is_order
    monkeypatch.setenv("GCE_METADATA_HOST", service.url.removeprefix("http://"))
    service.answers[INSTANCE] = (200, PREEMPTED, {"Metadata-Flavor": "Google"})
    assert GcpPoller().ask().is_order


# --- Google Cloud


def test_gcp_waits_for_a_change_from_what_it_knows(service):
    google = {"Metadata-Flavor": "Google", "ETag": "e1"}
    service.answers[INSTANCE] = (200, QUIET, google)
    poller = GcpPoller(service.url)
    assert poller.ask() is None
    assert "last_etag=0" in service.query
    assert "wait_for_change=true" in service.query
    service.answers[INSTANCE] = (200, PREEMPTED, {**google, "ETag": "e2"})
    clock_before = datetime.now(UTC)
    sighting = poller.ask()
    assert "last_etag=e1" in service.query
    assert sighting.is_order
    assert sighting.deadline >= clock_before + timedelta(seconds=29)
    assert service.log[-1][2]["metadata-flavor"] == "Google"


@pytest.mark.parametrize(
    ("event", "is_order"),
    [
        ("TERMINATE_ON_HOST_MAINTENANCE", True),
        ("SHUTDOWN_ON_HOST_MAINTENANCE", True),
        ("MIGRATE_ON_HOST_MAINTENANCE", False),
    ],
)
def test_gcp_maintenance_that_ends_the_machine_is_an_order(service, event, is_order):
    told = {"preempted": "FALSE", "maintenanceEvent": event}
    service.answers[INSTANCE] = (200, json.dumps(told), {"Metadata-Flavor": "Google"})
    sighting = GcpPoller(service.url, clock=ManualClock(NOW)).ask()
    assert (sighting is not None) is is_order
    if sighting is not None:
        assert sighting.is_order
        assert sighting.deadline == NOW + timedelta(seconds=60)


@pytest.mark.parametrize("body", ["TRUE", "[]", "", '"x"'])
def test_gcp_what_is_no_instance_is_an_error(service, body):
    service.answers[INSTANCE] = (200, body, {"Metadata-Flavor": "Google"})
    with pytest.raises(PollError, match="no JSON object"):
        GcpPoller(service.url).ask()


@pytest.mark.parametrize("status", [403, 503])
def test_gcp_errors_are_errors(service, status):
    service.answers[INSTANCE] = (status, "", {"Metadata-Flavor": "Google"})
    with pytest.raises(PollError, match=f"status {status}"):
        GcpPoller(service.url).ask()


def test_gcp_a_stranger_is_not_believed(service):
    service.answers[INSTANCE] = (200, PREEMPTED, {})
    with pytest.raises(PollError, match="not Google"):
        GcpPoller(service.url).ask()


# --- Azure


def event(kind="Preempt", **more):
    return {
        "EventId": "A1", "EventType": kind, "ResourceType": "VirtualMachine",
        "Resources": ["vm_0"], "EventStatus": "Scheduled",
        "NotBefore": "Thu, 01 Jan 2026 00:00:30 GMT", **more,
    }  # fmt: skip


def events(*given):
    return 200, json.dumps({"DocumentIncarnation": 1, "Events": list(given)}), {}


@pytest.mark.parametrize(
    "time", ["Thu, 01 Jan 2026 00:00:30 GMT", "2026-01-01T00:00:30Z"]
)
def test_azure_preempt_is_an_order_in_either_spelling_of_time(service, time):
    service.answers[AzurePoller.PATH] = events(event(NotBefore=time))
    sighting = AzurePoller(service.url).ask()
    assert sighting.is_order
    assert sighting.deadline == NOW + timedelta(seconds=30)
    assert service.log[-1][2]["metadata"] == "true"
    assert "api-version=2020-07-01" in service.query


def test_azure_a_started_event_has_no_time_and_is_an_order(service):
    service.answers[AzurePoller.PATH] = events(
        event(NotBefore="", EventStatus="Started")
    )
    assert AzurePoller(service.url).ask().deadline is None


@pytest.mark.parametrize("kind", ["Freeze", "Reboot", "Redeploy"])
def test_azure_other_events_are_no_orders(service, kind):
    service.answers[AzurePoller.PATH] = events(event(kind))
    assert AzurePoller(service.url).ask() is None


def test_azure_an_event_of_another_machine_is_not_ours(service):
    service.answers[AzurePoller.PATH] = events(event())
    assert AzurePoller(service.url, name="vm_7").ask() is None
    assert AzurePoller(service.url, name="vm_0").ask().is_order


def test_azure_is_told_to_go_ahead_only_if_that_was_asked_for(service):
    service.answers[AzurePoller.PATH] = events(event())
    for acknowledge in (False, True):
        service.log.clear()
        poller = AzurePoller(service.url, acknowledge=acknowledge)
        poller.ask()
        poller.acknowledged()
        posts = [entry for entry in service.log if entry[0] == "POST"]
        assert len(posts) == acknowledge
    assert json.loads(service.body) == {"StartRequests": [{"EventId": "A1"}]}


@pytest.mark.parametrize("body", ["", "[]", "{}", '{"Events": [{}]}'])
def test_azure_a_document_that_is_none_is_an_error(service, body):
    service.answers[AzurePoller.PATH] = (200, body, {})
    with pytest.raises(PollError):
        AzurePoller(service.url).ask()


# --- Alibaba


def test_alibaba_a_time_is_an_order(service):
    service.answers[AlibabaPoller.PATH] = (200, "2026-01-01T00:05:00Z", {})
    sighting = AlibabaPoller(service.url, clock=ManualClock(NOW)).ask()
    assert sighting.deadline == NOW + timedelta(minutes=5)


@pytest.mark.parametrize("answer", [(404, "", {}), (200, "", {}), (200, "none", {})])
def test_alibaba_no_time_is_no_notice(service, answer):
    service.answers[AlibabaPoller.PATH] = answer
    assert AlibabaPoller(service.url).ask() is None


def test_alibaba_the_hardened_mode_wants_a_token(service):
    def guarded(method, headers):
        if headers.get("x-aliyun-ecs-metadata-token") != "t":
            return 403, "", {}
        return 200, "2026-01-01T00:05:00Z", {}

    service.answers[AlibabaPoller.PATH] = guarded
    service.answers[TOKEN] = (200, "t", {})
    poller = AlibabaPoller(service.url, clock=ManualClock(NOW))
    assert poller.ask().is_order
    assert poller.ask().is_order


# --- where am I


@pytest.mark.parametrize(
    ("environment", "vendor", "found"),
    [
        ({}, "Amazon EC2", AwsPoller),
        ({}, "Google", GcpPoller),
        ({}, "Microsoft Corporation", AzurePoller),
        ({}, "Alibaba Cloud", AlibabaPoller),
        ({}, "Dell Inc.", None),
        ({"AWS_EC2_METADATA_DISABLED": "true"}, "Amazon EC2", None),
        ({"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:9"}, "x", AwsPoller),
        ({"GCE_METADATA_HOST": "127.0.0.1:9"}, "x", GcpPoller),
    ],
)
def test_the_provider_is_known_without_asking_the_network(
    tmp_path, environment, vendor, found
):
    (tmp_path / "sys_vendor").write_text(vendor + "\n")
    pollers = detect(environment, tmp_path / "sys_vendor")
    assert [type(poller) for poller in pollers] == ([found] if found else [])


def test_a_machine_that_does_not_say_is_polled_for_nothing(tmp_path):
    assert detect({}, tmp_path / "missing") == []
