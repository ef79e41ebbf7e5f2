"""Compute Engine's metadata server, row by row, over every HTTP wire."""

import threading

import pytest

ROOT = "/computeMetadata/v1/"
PREEMPTED = ROOT + "instance/preempted"
EVENT = ROOT + "instance/maintenance-event"
FLAVOR = {"Metadata-Flavor": "Google"}


def test_preempted_turns_true(play):
    wire = play("gcp", announce=False)
    assert wire.get(PREEMPTED, **FLAVOR).text == "FALSE"
    wire.service.announce()
    assert wire.get(PREEMPTED, **FLAVOR).text == "TRUE"
    wire.clock.advance(30)
    assert wire.service.phase == "gone"


@pytest.mark.parametrize(
    ("name", "grace_s", "lasts_s"),
    [
        pytest.param("gcp", None, 30, id="spot"),
        pytest.param("gcp", 120, 120, id="standard"),
        pytest.param("gcp-extended", None, 150, id="longer-notice"),
        pytest.param("gcp-shutdown", None, 30, id="with-the-guests-shutdown"),
    ],
)
def test_a_preemption_ends_when_its_kind_of_machine_does(play, name, grace_s, lasts_s):
    wire = play(name, grace_s=grace_s)
    assert wire.get(PREEMPTED, **FLAVOR).text == "TRUE"
    wire.clock.advance(lasts_s - 1)
    assert wire.service.phase == "announced"
    wire.clock.advance(1)
    assert wire.service.phase == "gone"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gcp", "NONE"),
        ("gcp-migrate", "MIGRATE_ON_HOST_MAINTENANCE"),
        ("gcp-maintenance", "TERMINATE_ON_HOST_MAINTENANCE"),
        ("gcp-old-maintenance", "SHUTDOWN_ON_HOST_MAINTENANCE"),
    ],
)
def test_the_maintenance_event_changes_a_minute_ahead(play, name, text):
    wire = play(name)
    wire.clock.advance(1)
    assert wire.get(EVENT, **FLAVOR).text == text
    if name != "gcp":
        assert wire.service.notices[0].deadline.minute == 1


def test_the_server_is_unavailable_for_less_than_a_second_during_maintenance(play):
    wire = play("gcp-maintenance")
    assert wire.get(EVENT, **FLAVOR).status_code == 503
    wire.clock.advance(0.9)
    assert wire.get(EVENT, **FLAVOR).status_code == 200


@pytest.mark.parametrize("headers", [{}, {"Metadata-Flavor": "Amazon"}])
def test_without_the_flavor_it_is_forbidden(play, headers):
    answer = play("gcp").get(PREEMPTED, **headers)
    assert answer.status_code == 403


@pytest.mark.parametrize("path", ["/", PREEMPTED, ROOT + "nothing"])
def test_the_server_shows_its_flavor(play, path):
    assert play("gcp").get(path, **FLAVOR).headers["Metadata-Flavor"] == "Google"


def test_what_is_not_defined_is_not_found(play):
    wire = play("gcp")
    assert wire.get(ROOT + "instance/premepted", **FLAVOR).status_code == 404
    assert wire.service.log[-1].note == "unknown path"


def test_the_first_etag_is_answered_at_once(play):
    answer = play("gcp").get(PREEMPTED + "?wait_for_change=true&last_etag=0", **FLAVOR)
    assert answer.text == "TRUE"
    assert answer.headers["ETag"]


def test_an_etag_that_differs_is_answered_at_once(play):
    wire = play("gcp", announce=False)
    seen = wire.get(PREEMPTED, **FLAVOR).headers["ETag"]
    wire.service.announce()
    query = f"?wait_for_change=true&last_etag={seen}"
    answer = wire.get(PREEMPTED + query, **FLAVOR)
    assert answer.text == "TRUE"
    assert answer.headers["ETag"] != seen


@pytest.mark.parametrize("last_etag", [True, False])
def test_a_hanging_get_is_answered_by_the_change(play, last_etag):
    wire = play("gcp", announce=False)
    seen = wire.get(PREEMPTED, **FLAVOR).headers["ETag"]
    query = "?wait_for_change=true" + (f"&last_etag={seen}" if last_etag else "")
    found = []
    asked = threading.Thread(
        target=lambda: found.append(wire.get(PREEMPTED + query, **FLAVOR).text)
    )
    asked.start()
    asked.join(0.1)
    assert not found
    wire.clock.advance(1)
    wire.service.announce()
    asked.join(10)
    assert found == ["TRUE"]


def test_timeout_sec_bounds_the_wait(play):
    wire = play("gcp", announce=False)
    found = []
    query = "?wait_for_change=true&timeout_sec=20"
    asked = threading.Thread(
        target=lambda: found.append(wire.get(PREEMPTED + query, **FLAVOR))
    )
    asked.start()
    asked.join(0.1)
    assert not found
    wire.clock.advance(20)
    wire.service.look_again()
    asked.join(10)
    assert found[0].text == "FALSE"
    assert wire.service.log[-1].note == "timeout_sec passed, value unchanged"


def test_a_folder_can_be_read_recursively(play):
    wire = play("gcp")
    tree = wire.get(ROOT + "instance/?recursive=true", **FLAVOR).json()
    assert tree["preempted"] == "TRUE"
    assert tree["maintenanceEvent"] == "NONE"
    assert tree["scheduling"]["preemptible"] == "TRUE"
    rows = wire.get(ROOT + "instance/?recursive=true&alt=text", **FLAVOR).text
    assert "preempted TRUE\n" in rows


def test_a_whole_folder_can_be_waited_for(play):
    wire = play("gcp", announce=False)
    path = ROOT + "instance/?recursive=true"
    seen = wire.get(path, **FLAVOR).headers["ETag"]
    wire.service.announce()
    answer = wire.get(f"{path}&wait_for_change=true&last_etag={seen}", **FLAVOR)
    assert answer.json()["preempted"] == "TRUE"


def test_alt_json_shapes_the_body(play):
    answer = play("gcp").get(PREEMPTED + "?alt=json", **FLAVOR)
    assert answer.json() == "TRUE"
    assert answer.headers["Content-Type"] == "application/json"


def test_folders_are_listed_by_name(play):
    wire = play("gcp")
    assert "preempted" in wire.get(ROOT + "instance/", **FLAVOR).text.splitlines()
    assert wire.get(ROOT + "instance", **FLAVOR).status_code == 301


def test_only_reading_is_allowed(play):
    assert play("gcp").ask("POST", PREEMPTED, **FLAVOR).status_code == 405
