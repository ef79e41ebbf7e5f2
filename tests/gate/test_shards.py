"""One campaign in parts: every plan is in one part, and the reports of all parts are the whole."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

from spotchaos.campaign.scheduling import own_part
from spotchaos.config.plan import Plan
from spotchaos.errors import HarnessError, ReportError
from spotchaos.model import Verdict
from spotchaos.report import html
from spotchaos.report.document import make_document
from spotchaos.report.merging import merge

_SPEC = importlib.util.spec_from_file_location(
    "shard_outcomes", Path(__file__).parents[1] / "report" / "outcomes.py"
)
outcomes = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(outcomes)


def part_of(shard, plans):
    return own_part(outcomes.make_settings(shard=shard), plans)


def test_every_plan_is_in_exactly_one_shard_under_its_own_number():
    plans = [Plan.parse(f"step-end:{n}") for n in range(1, 8)]
    parts = [part_of((n, 3), plans) for n in (1, 2, 3)]
    assert sorted(pair for part in parts for pair in part) == list(enumerate(plans, 1))


def test_a_shard_without_plans_proves_nothing():
    with pytest.raises(HarnessError, match="part 3/3 has none of the 2 plans"):
        part_of((3, 3), [Plan.parse("step-end:1"), Plan.parse("step-end:2")])


def shard(part, of, *pairs, verdict=None, **more):
    found = verdict or max((s.verdict for _, s in pairs), key=lambda v: v.severity)
    outcome = outcomes.make_outcome(
        found,
        list(pairs),
        settings=outcomes.make_settings(shard=(part, of), **more),
        holds_up_to="bitwise" if found is Verdict.HELD else "resumes",
    )
    return make_document(outcome)


@pytest.fixture
def shards():
    return [
        shard(1, 2, outcomes.violated_pair(1, outcomes.RNG), outcomes.held_pair(3)),
        shard(2, 2, outcomes.held_pair(2), outcomes.violated_pair(4, outcomes.RNG)),
    ]


def test_merged_shards_are_the_report_of_the_whole(shards):
    whole = merge(shards)
    schema = Path(html.__file__).with_name("schema1.json")
    jsonschema.validate(whole, json.loads(schema.read_text()))
    assert [t["number"] for t in whole["trials"]] == [1, 2, 3, 4]
    assert whole["verdict"] == "violated"
    assert whole["holds_up_to"] == "resumes"
    assert whole["findings"][0]["trials"] == [1, 4]
    assert whole["coverage"]["kill_points"] == 4
    assert whole["ledger"]["repeated"] == 16
    assert whole["shard"] is None


def test_what_a_budget_left_out_of_any_shard_is_left_out_of_the_whole(shards):
    for number, part in enumerate(shards):
        part["coverage"]["not_run"] = [f"step-end:{number}"]
    assert merge(shards)["coverage"]["not_run"] == ["step-end:0", "step-end:1"]


def test_the_order_of_the_shards_does_not_matter(shards):
    one, other = merge(shards), merge(shards[::-1])
    assert one["trials"] == other["trials"]
    assert one["findings"] == other["findings"]


def test_a_missing_shard_is_never_held():
    whole = merge(
        [shard(1, 3, outcomes.held_pair(1)), shard(3, 3, outcomes.held_pair(3))]
    )
    assert whole["verdict"] == "unknown"
    assert whole["trouble"] == "the report of shard 2/3 is missing"


@pytest.mark.parametrize(
    ("other", "message"),
    [
        pytest.param({"seed": 8}, "different values of 'seed'", id="seed"),
        pytest.param({"command": ("python", "b.py")}, "of 'command'", id="command"),
        pytest.param({"promise": "state"}, "of 'promise'", id="promise"),
    ],
)
def test_shards_of_two_campaigns_do_not_merge(other, message):
    with pytest.raises(ReportError) as caught:
        merge(
            [
                shard(1, 2, outcomes.held_pair(1)),
                shard(2, 2, outcomes.held_pair(2), **other),
            ]
        )
    assert message in caught.value.message


def test_one_shard_twice_is_refused():
    with pytest.raises(ReportError, match="given twice"):
        merge([shard(1, 2, outcomes.held_pair(1))] * 2)


def test_shards_of_programs_with_other_lengths_do_not_merge(shards):
    shards[1]["baseline"]["steps"] = 21
    with pytest.raises(ReportError, match="20 and 21 steps"):
        merge(shards)


def test_the_command_merges_and_ends_with_the_verdict_of_the_whole(
    monkeypatch, tmp_path, shards
):
    from spotchaos.cli import main

    monkeypatch.chdir(tmp_path)
    for number, document in enumerate(shards):
        (tmp_path / f"{number}.json").write_text(json.dumps(document))
    result = CliRunner().invoke(
        main, ["report", "0.json", "1.json", "--json", "whole.json"]
    )
    assert result.exit_code == 1
    assert result.stdout.startswith("VIOLATED  bitwise, seed 7, 2 of 4 trials")
    assert len(json.loads((tmp_path / "whole.json").read_text())["trials"]) == 4


def test_three_reports_that_are_no_shards_are_a_usage_error(monkeypatch, tmp_path):
    from spotchaos.cli import main

    monkeypatch.chdir(tmp_path)
    text = json.dumps(make_document(outcomes.held()))
    for number in range(3):
        (tmp_path / f"{number}.json").write_text(text)
    result = CliRunner().invoke(main, ["report", "0.json", "1.json", "2.json"])
    assert result.exit_code == 2
    assert "3 reports were given, and not all are of `--shard I/N`" in result.stderr
