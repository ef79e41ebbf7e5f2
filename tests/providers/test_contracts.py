"""Every documented fact of the providers has a test, which all wires must pass.

The wires are `responses` in this process, loopback HTTP, the provider's own address where
the probe redirects sockets, and that address for real, in a network namespace.

The tables name, for each fact, the tests that show it. Providers without HTTP have one
wire each, a signal or a file; how long each notice lasts is in test_stories.py too.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spotchaos.providers import ADDRESSES

HERE = Path(__file__).parent

AWS = {
    "addresses": [
        "a_built_in_address_leads_to_our_server",
        "answers_at_the_ipv6_address",
    ],
    "redirecting clients": ["botocore_is_pointed_to_the_server"],
    "body type": ["the_notice_names_action_and_time_two_minutes_ahead"],
    "not present": ["an_item_is_absent_until_there_is_something_to_say"],
    "listing": ["a_listing_has_one_name_a_line"],
    "version 1": ["version_1_needs_no_token"],
    "token": [
        "a_token_comes_with_its_time_to_live",
        "a_token_request_without_a_good_time_to_live_is_bad",
        "a_token_request_that_is_not_allowed_is_forbidden",
    ],
    "use of a token": ["a_token_is_required_when_it_is", "a_token_runs_out"],
    "errors": [
        "a_token_may_end_in_mid_run_and_a_new_one_helps",
        "a_service_can_refuse_with_any_status_once_or_for_good",
    ],
    "hop limit": ["beyond_the_hop_limit_a_token_never_arrives"],
    "throttling": ["a_throttled_poller_gets_through_in_the_end"],
    "the best-known client": ["the_best_known_poller_is_told_whatever_happens"],
    "instance-action": ["the_notice_names_action_and_time_two_minutes_ahead"],
    "termination-time": [
        "a_failed_termination_leaves_the_old_time_and_no_action",
        "the_time_may_be_a_text_that_is_none",
    ],
    "lead time": ["hibernation_begins_with_its_notice"],
    "guarantee": [
        "a_missing_notice_is_never_read_and_the_machine_still_goes",
        "a_late_notice_shows_the_deadline_that_was_fixed_before",
    ],
    "rebalance": [
        "rebalance_is_advice_with_a_time_and_no_spot_notice",
        "rebalance_may_come_before_the_notice",
    ],
    "lifecycle state": [
        "the_lifecycle_state_is_the_one_it_moves_to",
        "a_group_may_move_a_machine_to_any_lifecycle_state",
    ],
    "maintenance": ["maintenance_is_a_list_of_events"],
    "other items": [
        "pollers_find_who_they_are",
        "the_identity_document_agrees_with_the_items",
    ],
    "EventBridge": ["eventbridge_tells_the_same"],
    "fault injection": ["rebalance_may_come_before_the_notice"],
    "not offered by the mock": [
        "orders_drive_a_server_at_run_time",
        "a_slow_service_takes_its_time",
    ],
}
GCP = {
    "addresses": [
        "a_built_in_address_leads_to_our_server",
        "get_a_host_without_a_scheme",
    ],
    "required header": [
        "without_the_flavor_it_is_forbidden",
        "the_server_shows_its_flavor",
    ],
    "preempted": ["preempted_turns_true"],
    "maintenance-event": ["the_maintenance_event_changes_a_minute_ahead"],
    "hanging GET": [
        "the_first_etag_is_answered_at_once",
        "an_etag_that_differs_is_answered_at_once",
        "a_hanging_get_is_answered_by_the_change",
        "timeout_sec_bounds_the_wait",
        "a_folder_can_be_read_recursively",
        "alt_json_shapes_the_body",
    ],
    "errors": [
        "what_is_not_defined_is_not_found",
        "the_server_is_unavailable_for_less_than_a_second_during_maintenance",
    ],
    "preemption": ["a_preemption_ends_when_its_kind_of_machine_does"],
    "longer notice": ["a_preemption_ends_when_its_kind_of_machine_does"],
    "simulated": ["the_maintenance_event_changes_a_minute_ahead"],
}
AZURE = {
    "endpoint": [
        "a_known_api_version_is_required",
        "an_old_version_does_not_know_new_events",
    ],
    "header": ["the_header_is_required"],
    "first call": [
        "the_first_call_switches_the_service_on",
        "a_day_without_a_request_switches_it_off_again",
    ],
    "document": [
        "before_the_notice_the_list_is_empty",
        "the_incarnation_grows_with_each_change",
    ],
    "event": [
        "a_preemption_is_scheduled_half_a_minute_ahead",
        "the_duration_came_in_2020",
    ],
    "NotBefore": ["times_may_come_as_iso_8601"],
    "minimum notice": ["each_kind_of_event_has_its_minimum_notice"],
    "life": [
        "an_event_is_scheduled_then_started_then_gone",
        "an_event_may_vanish_unstarted",
        "a_failure_of_hardware_is_never_scheduled",
    ],
    "acknowledge": [
        "an_acknowledgement_starts_the_event_for_all_its_resources",
        "an_acknowledgement_is_accepted_twice",
        "a_malformed_acknowledgement_is_bad",
    ],
    "scope": ["all_machines_of_the_set_see_the_event_of_one"],
    "guarantee": ["a_preemption_is_scheduled_half_a_minute_ahead"],
}
OTHERS = {
    "alibaba": [
        "alibaba_names_the_release_five_minutes_ahead",
        "alibaba_may_answer_with_nothing_until_then",
        "alibaba_in_hardened_mode_wants_a_token",
    ],
    "tencent": ["tencent_shows_a_time_under_its_own_name"],
    "oracle, metaflow": ["a_provider_that_writes_a_file_writes_it"],
    "gke, nebius, yandex, coreweave, runpod, kubernetes, slurm": [
        "a_provider_that_signals_sends_its_signal"
    ],
    "vast, verda, salad": ["a_provider_without_a_notice_just_takes_the_machine"],
    "lambda, hetzner": ["a_provider_without_spot_machines_has_no_story"],
}
# What is no answer of a service, or is asked of one wire that the others lack.
ELSEWHERE = {
    "a_built_in_address_leads_to_our_server",
    "answers_at_the_ipv6_address",
    "botocore_is_pointed_to_the_server",
    "get_a_host_without_a_scheme",
    "eventbridge_tells_the_same",
    "orders_drive_a_server_at_run_time",
    "a_provider_that_writes_a_file_writes_it",
    "a_provider_that_signals_sends_its_signal",
    "a_provider_without_a_notice_just_takes_the_machine",
    "a_provider_without_spot_machines_has_no_story",
}
TABLES = {"aws": AWS, "gcp": GCP, "azure": AZURE, "others": OTHERS}
PLAYED = ("aws", "gcp", "azure", "others", "scripts", "service")
NUMBERS = {a for known in ADDRESSES.values() for a in known if a[0].isdigit()}
ROWS = [
    pytest.param(shown_by, id=f"{provider}-{row}")
    for provider, rows in TABLES.items()
    for row, shown_by in rows.items()
]


@pytest.fixture(scope="module")
def tests():
    """Return the tests beside this one, each with the names of its arguments."""
    return {
        node.name: {argument.arg for argument in node.args.args}
        for path in HERE.glob("test_*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
    }


@pytest.mark.slow
def test_every_fact_holds_at_the_real_address_as_well():
    if shutil.which("unshare") is None:
        pytest.skip("no unshare here")
    allowed = ["unshare", "-r", "-n", "true"]
    if subprocess.run(allowed, capture_output=True, check=False).returncode:
        pytest.skip("network namespaces are not allowed here")
    files = [str(HERE / f"test_{name}.py") for name in PLAYED]
    code = (
        "import os, sys; from spotchaos.launch.isolation.namespaces import bring_up_loopback;"
        f" bring_up_loopback({sorted(NUMBERS)});"
        " os.execv(sys.executable, [sys.executable, '-m', 'pytest', *sys.argv[1:]])"
    )
    options = ["-q", "-p", "no:cacheprovider", "-k", "real-address"]
    done = subprocess.run(
        ["unshare", "-r", "-n", sys.executable, "-c", code, *options, *files],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=HERE.parent.parent,
        env={**os.environ, "SPOTCHAOS_TEST_ALONE": "1"},
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    passed = int(re.search(r"(\d+) passed", done.stdout)[1])
    assert passed >= len(ROWS)


@pytest.mark.parametrize("shown_by", ROWS)
def test_a_documented_fact_has_its_tests(tests, shown_by):
    for words in shown_by:
        found = [name for name in tests if words in name]
        assert found, words
        if words not in ELSEWHERE:
            assert all("play" in tests[name] for name in found), words
