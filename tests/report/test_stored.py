import json

import pytest

from spotchaos.errors import ReportError
from spotchaos.report.formats import render
from spotchaos.report.screen import plain, screen
from spotchaos.report.stored import compare, comparison_text, read_report


@pytest.mark.parametrize("name", ["held", "violated", "unknown"])
def test_a_stored_report_gives_the_same_screen(document, tmp_path, name):
    path = tmp_path / "report.json"
    path.write_text(render(document(name)))
    assert plain(screen(read_report(path))) == plain(screen(document(name)))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(b"", "is no JSON", id="empty"),
        pytest.param(b'{"schema": 1, "verd', "is no JSON", id="cut"),
        pytest.param(b"\xff\xfe\x00", "is no JSON", id="binary"),
        pytest.param(b"[" * 100_000, "is no JSON", id="deep"),
        pytest.param(b"[]", "is no report", id="list"),
        pytest.param(b'{"a": 1}', "is no report", id="other-object"),
        pytest.param(b'{"schema": 2}', "has schema 2", id="newer"),
        pytest.param(b'{"schema": 1}', "is damaged", id="keys-missing"),
        pytest.param(b'{"schema": "x"}', "is damaged", id="schema-as-text"),
    ],
)
def test_what_is_no_readable_report_is_refused_in_one_sentence(tmp_path, content, said):
    path = tmp_path / "report.json"
    path.write_bytes(content)
    with pytest.raises(ReportError) as caught:
        read_report(path)
    assert said in caught.value.message
    assert caught.value.hint
    assert "\n" not in caught.value.message


def test_a_report_with_a_damaged_trial_is_refused(document, tmp_path):
    wrong = document("violated")
    wrong["trials"][1]["attempts"] = "none"
    path = tmp_path / "report.json"
    path.write_text(render(wrong))
    with pytest.raises(ReportError, match="is damaged"):
        read_report(path)


def test_a_report_that_is_not_there_says_how_to_make_one(tmp_path):
    with pytest.raises(ReportError, match="there is no report") as caught:
        read_report(tmp_path / "report.json")
    assert "--json" in caught.value.hint


def test_a_folder_is_no_report(tmp_path):
    with pytest.raises(ReportError, match="cannot read"):
        read_report(tmp_path)


def test_what_a_later_release_adds_is_left_alone(document, tmp_path):
    path = tmp_path / "report.json"
    path.write_text(json.dumps({**document("held"), "weather": "fine"}))
    assert read_report(path)["verdict"] == "held"


def test_a_comparison_tells_new_fixed_and_remaining(document):
    before, after = document("violated"), document("violated")
    before["findings"] = [
        {"name": "rng-not-restored", "trials": [1]},
        {"name": "hang", "trials": [2]},
    ]
    found = compare(before, after)
    assert found.new == ("order-changed",)
    assert found.fixed == ("hang",)
    assert found.remaining == ("rng-not-restored",)


def test_a_comparison_as_text(document, snapshot):
    before, after = document("violated"), document("held")
    after["seed"] = 8
    snapshot("comparison.txt", comparison_text(compare(before, after)))
