"""Every documented fact of the three big providers has a test, which all wires must pass.

The table names, for each fact, the tests that show it; the fourth table of facts, of the
other providers, is `DOCUMENTED` in test_stories.py.
"""

import ast
from pathlib import Path

import pytest

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
    "lifecycle state": ["the_lifecycle_state_is_the_one_it_moves_to"],
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
# What is no answer of a service, or is asked of one wire that the others lack.
ELSEWHERE = {
    "a_built_in_address_leads_to_our_server",
    "answers_at_the_ipv6_address",
    "botocore_is_pointed_to_the_server",
    "get_a_host_without_a_scheme",
    "eventbridge_tells_the_same",
    "orders_drive_a_server_at_run_time",
}
ROWS = [
    pytest.param(shown_by, id=f"{provider}-{row}")
    for provider, rows in (("aws", AWS), ("gcp", GCP), ("azure", AZURE))
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


@pytest.mark.parametrize("shown_by", ROWS)
def test_a_documented_fact_has_its_tests(tests, shown_by):
    for words in shown_by:
        found = [name for name in tests if words in name]
        assert found, words
        if words not in ELSEWHERE:
            assert all("play" in tests[name] for name in found), words
