"""The drawings and tables of the page that come from several trials at once."""

import re

from spotchaos.report import grace, html, svg as drawing


def told(trial=1, *, what="signal", saved=None, end="reclaim"):
    moments = [
        {"t_s": 0.0, "what": "start", "step": 0, "attempt": 1},
        {"t_s": 0.5, "what": "save-end", "step": 5, "attempt": 1},
        {"t_s": 1.0, "what": what, "step": 12, "attempt": 1},
        {"t_s": 3.0, "what": end, "step": 15, "attempt": 1},
    ]
    if saved is not None:
        moments.insert(3, {"t_s": saved, "what": "save-end", "step": 13, "attempt": 1})
    return {"number": trial, "verdict": "held", "timeline": moments}


def test_a_window_goes_from_the_notice_to_the_reclaim():
    (window,) = grace.windows([told(saved=1.75)])
    assert (window.length_s, window.used_s, window.reclaimed) == (2.0, 0.75, True)


def test_a_save_before_the_notice_is_no_use_of_the_window():
    (window,) = grace.windows([told()])
    assert window.used_s is None


def test_a_trial_without_a_notice_has_no_window():
    assert grace.windows([told(what="load")]) == []
    assert grace.draw([told(what="load")]) == ""


def test_the_grace_chart_says_in_words_what_it_shows():
    drawn = grace.draw([told(1, saved=1.75), told(2, end="exit")])
    assert "2 grace windows; in 1 a save became whole" in drawn
    assert "saved 0.75 s after the signal" in drawn
    assert "no save became whole, ended by itself" in drawn


def test_the_window_of_a_provider_is_its_own_compressed():
    trial = told(what="notice", saved=1.75, end="exit")
    notice = {"story": "aws", "provider": "aws", "grace_s": 120, "time_scale": 30.0}
    trial["attempts"] = [{"number": 1, "notice": notice}]
    (window,) = grace.windows([trial])
    assert (window.length_s, window.scale, window.story) == (4.0, 30.0, "aws")
    assert "notice of 4.00 s (aws: 120 cloud seconds): saved 0.75 s" in grace.draw(
        [trial]
    )


def test_the_weights_part_by_so_many_bits():
    curve = [
        {"step": 11, "elements": 1, "max_ulp": 0},
        {"step": 12, "elements": 40, "max_ulp": 1023},
        {"step": 13, "elements": 64, "max_ulp": None},
    ]
    trial = {"number": 3, "attempts": [{"number": 2, "divergence": {"curve": curve}}]}
    drawn = drawing.weights_apart([trial])
    assert "in bits, 1 attempts" in drawn
    (points,) = re.findall('points="([^"]*)"', drawn)
    assert len(points.split()) == 2  # none for a distance that is not known
    assert ">10<" in drawn
    assert ">trial 3, attempt 2<" in drawn


def test_weights_that_nobody_compared_are_not_drawn():
    assert drawing.weights_apart([{"number": 1, "attempts": [{"number": 1}]}]) == ""


def a_class(**changed):
    entry = {
        "finding": "torn-checkpoint",
        "severity": "kill",
        "states": 3,
        "state": "K7",
        "model": "kill",
        "trial": 1,
        "operation": "write last.pt",
        "where": {"file": "train.py", "line": 40},
        "message": "a kill inside the save left half a file",
        "hint": "write beside it, then rename",
        "on_disk": ["last.pt: 12 bytes (works with: 80 bytes)"],
        "tokens": ["K7", "K8"],
    }
    return {**entry, **changed}


def test_the_map_has_a_row_for_each_operation_and_a_column_for_each_model():
    found = html.crash_map(
        [
            a_class(),
            a_class(model="ext4", state="E9", finding="unsynced-checkpoint"),
            a_class(operation="rename last.tmp -> last.pt", model="ext4", state="E11"),
        ]
    )
    assert found["models"] == ["kill", "ext4"]
    assert [row["operation"] for row in found["rows"]] == [
        "write last.pt",
        "rename last.tmp -> last.pt",
    ]
    assert [len(cell) for cell in found["rows"][0]["cells"]] == [1, 1]
    assert [len(cell) for cell in found["rows"][1]["cells"]] == [0, 1]


def test_a_class_without_an_operation_has_a_row_too():
    (row,) = html.crash_map([a_class(operation=None)])["rows"]
    assert row["operation"] == "before the first operation"


def test_the_page_shows_each_state_with_its_token_and_its_place(document):
    page = html.render({**document("violated"), "classes": [a_class()]})
    cell = re.search(r'<td class="broken">(.*?)</td>', page, re.DOTALL)[1]
    assert "torn-checkpoint" in cell
    assert "K7" in cell
    assert 'href="#trial-1"' in cell
    assert "Made at train.py:40." in page


def test_the_page_shows_the_grace_chart_only_where_there_was_a_notice(document):
    report = document("violated")
    assert "grace-title" not in html.render(report)
    assert "grace-title" in html.render(
        {**report, "trials": [*report["trials"][:1]]}
        | {"trials": [{**report["trials"][0], "timeline": told()["timeline"]}]}
    )
