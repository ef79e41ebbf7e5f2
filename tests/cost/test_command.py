"""The command: its screen, its files, and what it says of what makes no sense."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from spotchaos.cli import main
from spotchaos.report.cost_page import render

MEASURED = {"median": 1.0, "p10": 0.9, "p90": 1.2, "n": 40}
TIMING = {
    "step_s": MEASURED,
    "save_stall_s": {"median": 20.0, "p10": 18.0, "p90": 40.0, "n": 5},
    "save_end_s": {"median": 20.0, "p10": 18.0, "p90": 40.0, "n": 5},
    "save_bytes": {"median": 4e9, "p10": 4e9, "p90": 4e9, "n": 5},
    "cold_start_s": {"median": 60.0, "p10": 60.0, "p90": 60.0, "n": 1},
    "resumed_start_s": {"median": 90.0, "p10": 80.0, "p90": 99.0, "n": 3},
    "lost_steps": {"median": 17.0, "p10": 2.0, "p90": 30.0, "n": 3},
    "notice_s": None,
    "save_every": {"median": 4000.0, "p10": 4000.0, "p90": 4000.0, "n": 4},
}
USUAL = ["--hours", "20", "--mtbf", "3", "--runs", "40"]
PRICES = ["--spot-price", "0.92", "--on-demand-price", "3.06"]


def a_report(folder, timing):
    path = folder / "report.json"
    content = {
        "schema": 1,
        "spotchaos": "0.2.0",
        "seed": 0,
        "verdict": "held",
        "promise": "bitwise",
        "command": ["python", "train.py"],
        "trials": [],
        "findings": [],
        "notes": [],
        "coverage": {},
        "environment": {},
        "timing": timing,
    }
    path.write_text(json.dumps(content))
    return str(path)


@pytest.fixture
def report(tmp_path):
    return a_report(tmp_path, TIMING)


def cost(*words):
    """Return status and output of the command."""
    done = CliRunner().invoke(main, ["cost", *map(str, words)])
    return done.exit_code, done.output


def test_the_screen_says_what_to_change_and_shows_every_policy(report):
    status, said = cost(report, *USUAL, *PRICES, "--provider", "aws", "--deadline", 40)
    assert status == 0
    assert "Save every" in said
    assert "instead of 4,000" in said
    for policy in ("best interval", "on demand alone", "on notice alone", "as now"):
        assert f"\n  {policy} " in said
    assert "no checkpoint" in said
    assert "a step 1 s (900 ms to 1.2 s, n=40)" in said
    assert "with the quickest and slowest tenth of what was measured" in said
    assert len(said.splitlines()) <= 32
    assert max(map(len, said.splitlines())) <= 104


def test_without_both_prices_hours_are_shown_and_no_dollars(report):
    status, said = cost(report, *USUAL, "--spot-price", "0.9")
    assert status == 0
    assert "no dollars: --spot-price and --on-demand-price are not both given" in said
    assert "$" not in said


def test_the_json_holds_what_the_screen_and_the_page_show(report, tmp_path):
    path, page = tmp_path / "cost.json", tmp_path / "cost.html"
    status, _ = cost(report, *USUAL, *PRICES, "--json", path, "--html", page)
    assert status == 0
    document = json.loads(path.read_text())
    assert (document["schema"], document["kind"]) == (1, "cost")
    assert page.read_text() == render(document)
    row = document["policies"][0]
    causes = sum(row["by_cause"].values())
    assert causes == pytest.approx(row["hours"]["mean"], abs=0.01)
    assert document["interval"]["best"] < document["interval"]["now"] == 4000
    assert row["saving_percent"] > 60


def test_the_page_is_whole_by_itself_and_marks_the_interval_of_today(report, tmp_path):
    page = tmp_path / "cost.html"
    cost(report, *USUAL, *PRICES, "--html", page)
    text = page.read_text()
    assert "http" not in text.replace("http-equiv", "")
    assert "now: every 4,000" in text
    assert "best: every" in text
    assert text.count("<svg") == 3


def test_the_same_command_says_the_same(report):
    assert cost(report, *USUAL, "--seed", 4) == cost(report, *USUAL, "--seed", 4)
    assert cost(report, *USUAL, "--seed", 4) != cost(report, *USUAL, "--seed", 5)


def test_a_trace_that_ends_before_the_work_is_repeated_and_that_is_said(
    report, tmp_path
):
    path = tmp_path / "zone.json"
    path.write_text(
        json.dumps({"metadata": {"gap_seconds": 600}, "data": [1] * 50 + [0] * 9})
    )
    status, said = cost(report, "--hours", 20, "--trace", path, "--runs", 30)
    assert status == 0
    assert "the trace (9.83 h) ends before the work does in up to 100 %" in said


def test_no_capacity_ever_is_said_as_such(report, tmp_path):
    path = tmp_path / "zone.json"
    path.write_text(json.dumps({"metadata": {"gap_seconds": 600}, "data": [1, 0, 2]}))
    status, said = cost(report, "--hours", 2, "--trace", path, "--nodes", 4)
    assert status == 0
    assert "zone never has 4 machines at once: 2 at most" in said
    assert "as now never finishes: there is never enough capacity" in said


def test_a_save_longer_than_the_time_between_interruptions_never_finishes(report):
    status, said = cost(report, "--hours", 20, "--mtbf", 0.01, "--save-stall", "10min")
    assert status == 0
    assert "never finishes: its first save is done" in said
    assert "none stayed longer than" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "how much is trained is not said"),
        (["--hours", "2", "--steps", "9"], "both --steps and --hours are given"),
        (["--hours", "-2"], "--hours is to be more than 0"),
        (["--hours", "nan"], "--hours is to be more than 0"),
        (["--hours", "1e9"], "more than ten years"),
        (["--steps", "0"], "--steps is to be more than 0"),
        (["--hours", "2", "--mtbf", "0"], "--mtbf is to be more than 0"),
        (["--hours", "2", "--mtbf", "inf"], "--mtbf is to be more than 0"),
        (["--hours", "2", "--spot-price", "-1"], "--spot-price cannot be negative"),
        (["--hours", "2", "--on-demand-price", "nan"], "--on-demand-price cannot be"),
        (["--hours", "2", "--mtbf", "1", "--weibull", "1,2"], "more than one of"),
        (["--hours", "2", "--weibull", "1"], "is no shape and scale"),
        (["--hours", "2", "--weibull", "0,2"], "--weibull is to be more than 0"),
        (["--hours", "2", "--queue", "-3"], "--queue cannot be negative"),
        (["--hours", "2", "--queue", "soon"], "is no number of seconds"),
        (["--hours", "2", "--nodes", "0"], "--nodes is to be more than 0"),
        (["--hours", "2", "--runs", "0"], "--runs is to be more than 0"),
        (["--hours", "2", "--provider", "awz"], "unknown provider 'awz'"),
        (["--hours", "2", "--billing", "0"], "--billing is to be more than 0"),
        (["--hours", "2", "--free-first", "-1"], "--free-first is no time"),
        (["--hours", "2", "--trace", "nowhere.json"], "cannot read 'nowhere.json'"),
        (["--hours", "2", "--html", "/nowhere/x.html"], "cannot write"),
        (["--hours", "2", "--step-seconds", "-1"], "the given step_s cannot be"),
        (["--hours", "2", "--", "true"], "a report and a command are given"),
        (["--hours", "2", "--"], "nothing stands after --"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(report, words, said):
    status, output = cost(report, *words)
    assert status == 2
    assert said in output
    assert "Traceback" not in output


@pytest.mark.parametrize("timing", [None, {}])
def test_a_report_that_measured_nothing_is_refused(tmp_path, timing):
    status, output = cost(a_report(tmp_path, timing), "--hours", 2)
    assert status == 2
    assert "measured nothing: it has no time of a step" in output


@pytest.mark.parametrize("timing", ["fast", {"step_s": {"median": "1"}}])
def test_a_report_whose_times_are_damaged_says_so(tmp_path, timing):
    status, output = cost(a_report(tmp_path, timing), "--hours", 2)
    assert status == 2
    assert "is damaged at" in output


def test_a_report_without_a_save_asks_for_one(tmp_path):
    status, output = cost(a_report(tmp_path, {"step_s": MEASURED}), "--hours", 2)
    assert status == 2
    assert "no save was measured: the program made none" in output
    assert "--save-stall" in output


def test_times_can_all_be_given(tmp_path):
    words = ["--step-seconds", 1, "--save-stall", "20s", "--save-every", 600]
    status, output = cost("--hours", 5, "--mtbf", 3, "--runs", 30, *words)
    assert status == 0
    assert "a step 1 s (given)" in output
    assert "no start was measured: it counts as 0 s" in output


def test_neither_a_report_nor_a_command_nor_times_is_said():
    status, output = cost("--hours", 5)
    assert status == 2
    assert "no time of a step was measured" in output


def test_the_command_that_costs_imports_no_torch(report):
    code = (
        "import sys\nfrom spotchaos.cli import main\n"
        f"sys.argv = ['spotchaos', 'cost', {report!r}, *{USUAL!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n"
        "    sys.exit(bool(end.code) or 'torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_what_a_provider_takes_back_in_the_first_hour_is_free_where_it_says_so(
    report, tmp_path
):
    def free_s(*words):
        path = tmp_path / "cost.json"
        cost(report, *USUAL, *PRICES, "--provider", "aws", "--json", path, *words)
        return json.loads(path.read_text())["where"]["billing"]["free_s"]

    assert free_s() == 3600
    assert free_s("--free-first", 0) == 0


@pytest.mark.parametrize("word", ["--", "-", "-x.json", "--json", ""])
@pytest.mark.parametrize("option", ["--json", "--html", "--trace"])
def test_no_option_takes_the_next_option_for_its_file(report, option, word):
    status, output = cost(report, *USUAL, option, word)
    assert status == 2
    assert "which is no name of a file" in output or "nothing stands after" in output
