"""Azure's Scheduled Events, row by row, over every HTTP wire."""

import json

import pytest

PATH = "/metadata/scheduledevents?api-version=2020-07-01"
HEADER = {"Metadata": "true"}


def events(wire, path=PATH):
    answer = wire.get(path, **HEADER)
    assert answer.status_code == 200
    return answer.json()["Events"]


def start(wire, *ids):
    body = json.dumps({"StartRequests": [{"EventId": i} for i in ids]})
    return wire.ask("POST", PATH, body, **HEADER).status_code


def test_before_the_notice_the_list_is_empty(play):
    answer = play("azure", announce=False).get(PATH, **HEADER).json()
    assert answer == {"DocumentIncarnation": 1, "Events": []}


def test_a_preemption_is_scheduled_half_a_minute_ahead(play):
    (event,) = events(play("azure"))
    assert event.pop("EventId")
    assert event == {
        "EventType": "Preempt",
        "ResourceType": "VirtualMachine",
        "Resources": ["spotchaos_0"],
        "EventStatus": "Scheduled",
        "NotBefore": "Thu, 01 Jan 2026 00:00:30 GMT",
        "Description": "Virtual machine is being evicted to reclaim capacity.",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
    }


def test_a_request_through_a_proxy_is_refused(play):
    answer = play("azure").get(PATH, **HEADER, **{"X-Forwarded-For": "10.0.0.7"})
    assert answer.status_code == 400


def test_times_may_come_as_iso_8601(play):
    (event,) = events(play("azure-iso"))
    assert event["NotBefore"] == "2026-01-01T00:00:30Z"


def test_an_event_is_scheduled_then_started_then_gone(play):
    wire = play("azure-overdue")
    assert [e["EventStatus"] for e in events(wire)] == ["Scheduled"]
    wire.clock.advance(30)
    (event,) = events(wire)
    assert (event["EventStatus"], event["NotBefore"]) == ("Started", "")
    wire.clock.advance(15)
    assert events(wire) == []


def test_an_event_may_vanish_unstarted(play):
    wire = play("azure-withdrawn")
    wire.clock.advance(15)
    assert events(wire) == []
    assert wire.service.reclaim_at is None


def test_a_failure_of_hardware_is_never_scheduled(play):
    (event,) = events(play("azure-hardware"))
    assert (event["EventType"], event["EventStatus"]) == ("Reboot", "Started")
    assert event["NotBefore"] == ""


def test_the_incarnation_grows_with_each_change(play):
    wire = play("azure-overdue", announce=False)
    found = [wire.get(PATH, **HEADER).json()["DocumentIncarnation"]]
    wire.service.announce()
    for seconds in (0, 30, 15):
        wire.clock.advance(seconds)
        found.append(wire.get(PATH, **HEADER).json()["DocumentIncarnation"])
    assert found == sorted(set(found))


@pytest.mark.parametrize(
    ("name", "kind", "lead_s"),
    [
        ("azure", "Preempt", 30),
        ("azure-terminate", "Terminate", 300),
        ("azure-redeploy", "Redeploy", 600),
        ("azure-reboot", "Reboot", 900),
        ("azure-freeze", "Freeze", 900),
    ],
)
def test_each_kind_of_event_has_its_minimum_notice(play, name, kind, lead_s):
    wire = play(name)
    (event,) = events(wire)
    assert event["EventType"] == kind
    (notice,) = wire.service.notices
    assert (notice.deadline - notice.announced_at).total_seconds() == lead_s


def test_the_header_is_required(play):
    answer = play("azure").get(PATH)
    assert answer.status_code == 400
    assert "Bad request" in answer.text


@pytest.mark.parametrize("query", ["", "?api-version=2016-01-01", "?api-version="])
def test_a_known_api_version_is_required(play, query):
    answer = play("azure").get("/metadata/scheduledevents" + query, **HEADER)
    assert answer.status_code == 400


@pytest.mark.parametrize(
    ("name", "version", "is_shown"),
    [
        ("azure", "2017-08-01", False),
        ("azure", "2017-11-01", True),
        ("azure-terminate", "2017-11-01", False),
        ("azure-terminate", "2019-01-01", True),
    ],
)
def test_an_old_version_does_not_know_new_events(play, name, version, is_shown):
    path = f"/metadata/scheduledevents?api-version={version}"
    assert bool(events(play(name), path)) == is_shown


def test_the_duration_came_in_2020(play):
    wire = play("azure")
    (old,) = events(wire, "/metadata/scheduledevents?api-version=2019-08-01")
    (new,) = events(wire)
    assert "DurationInSeconds" not in old
    assert new["DurationInSeconds"] == -1


def test_an_acknowledgement_starts_the_event_for_all_its_resources(play):
    wire = play("azure")
    (event,) = events(wire)
    assert start(wire, event["EventId"]) == 200
    (started,) = events(wire)
    assert (started["EventStatus"], started["NotBefore"]) == ("Started", "")
    wire.clock.advance(1)
    assert wire.service.phase == "gone"


def test_an_acknowledgement_is_accepted_twice(play):
    wire = play("azure")
    (event,) = events(wire)
    assert [start(wire, event["EventId"]) for _ in range(2)] == [200, 200]
    assert "acknowledged" in wire.service.log[-1].note


@pytest.mark.parametrize("body", ["", "{}", "[]", '{"StartRequests": [{}]}', "no json"])
def test_a_malformed_acknowledgement_is_bad(play, body):
    wire = play("azure")
    assert wire.ask("POST", PATH, body, **HEADER).status_code == 400


def test_an_unknown_event_cannot_be_acknowledged(play):
    assert start(play("azure"), "5907C0A5-0000-4000-8000-000000000099") == 400


def test_an_acknowledgement_wants_the_header_too(play):
    wire = play("azure")
    (event,) = events(wire)
    body = json.dumps({"StartRequests": [{"EventId": event["EventId"]}]})
    assert wire.ask("POST", PATH, body).status_code == 400


def test_all_machines_of_the_set_see_the_event_of_one(play):
    wire = play("azure-other-vm")
    (event,) = events(wire)
    me = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
    assert wire.get(me, **HEADER).text not in event["Resources"]
    assert wire.service.reclaim_at is None


def test_the_first_call_switches_the_service_on(play):
    wire = play("azure-first-call")
    assert events(wire) == []
    wire.clock.advance(119)
    assert events(wire) == []
    wire.clock.advance(1)
    assert len(events(wire)) == 1


@pytest.mark.parametrize(("pause_s", "is_on"), [(86_399, True), (86_401, False)])
def test_a_day_without_a_request_switches_it_off_again(play, pause_s, is_on):
    wire = play("azure-first-call", announce=False)
    for seconds in (0, 120, pause_s):
        wire.clock.advance(seconds)
        if seconds < pause_s:
            assert events(wire) == []
    wire.service.announce()
    assert len(events(wire)) == is_on
    wire.clock.advance(120)
    assert len(events(wire)) == 1


def test_a_duplicated_notice_is_two_events_with_one_time(play):
    wire = play("azure-duplicated")
    wire.clock.advance(10)
    first, second = events(wire)
    assert first["EventId"] != second["EventId"]
    assert first["NotBefore"] == second["NotBefore"]


def test_an_unknown_path_is_not_found(play):
    wire = play("azure")
    assert wire.get("/metadata/scheduledevent", **HEADER).status_code == 404
    assert wire.service.log[-1].note == "unknown path"
