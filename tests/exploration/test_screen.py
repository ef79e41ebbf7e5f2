"""What the screen says of explored states."""

from spotchaos.report.exploration_screen import class_lines, counted, not_visited

HELD = {
    "by_model": {"kill": 155, "ext4": 40},
    "drawn": 195,
    "distinct": 120,
    "run": 20,
    "held": 120,
    "violated": 0,
    "unknown": 0,
    "skipped_by_readset": 100,
    "spot_checked": 5,
    "why_not_visited": ["11 of 54 crash points, in other saves"],
}
TORN = {
    "finding": "torn-checkpoint",
    "severity": "kill",
    "states": 37,
    "state": "K@7",
    "operation": "write out/last.pt",
    "on_disk": ["against K@6, which works:", "last.pt: 0 bytes"],
}


def document(told=HELD, classes=()):
    return {"coverage": {"crash_states": told}, "classes": list(classes)}


def test_states_are_counted_by_model_and_by_what_became_of_them():
    text = counted(document())
    assert "120 states" in text
    assert "kill 155, ext4 40" in text
    assert "100 equal to one of these" in text
    assert "120 held, 0 violated" in text


def test_a_campaign_without_states_says_nothing_of_them():
    assert counted(document(told=None)) is None
    assert not_visited(document(told=None)) == []


def test_what_was_not_visited_is_said():
    assert not_visited(document()) == [
        "not visited: 11 of 54 crash points, in other saves"
    ]


def test_a_class_is_shown_with_its_severity_state_and_difference():
    lines = class_lines(document(classes=[TORN]))
    assert lines[0] == (
        "torn-checkpoint (kill): 37 states, the simplest K@7 at write out/last.pt"
    )
    assert lines[-1] == "  last.pt: 0 bytes"


def test_more_classes_than_fit_are_counted():
    lines = class_lines(document(classes=[TORN] * 6))
    assert lines[-1] == "and 2 more classes in the report"
