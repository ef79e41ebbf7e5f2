"""Known findings: read from the file, shown, not counted until their date has passed."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from datetime import date
from pathlib import Path

import jsonschema
import pytest

from spotchaos.config.option_files import read_config, read_known
from spotchaos.config.settings import Known
from spotchaos.errors import UsageError
from spotchaos.model import Verdict
from spotchaos.report import github, html, junit, sarif
from spotchaos.report.document import make_document
from spotchaos.report.screen import plain, screen

_SPEC = importlib.util.spec_from_file_location(
    "gate_outcomes", Path(__file__).parents[1] / "report" / "outcomes.py"
)
outcomes = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(outcomes)

RNG = Known(
    finding="rng-not-restored", reason="PR 12 mends it", until=date(2027, 1, 31)
)
ENTRY = """
[[known]]
finding = "rng-not-restored"
reason = "PR 12 mends it"
until = 2027-01-31
"""


def settings(*known, today=date(2027, 1, 31), **more):
    return outcomes.make_settings(known=known, today=today, **more)


def report(*known, today=date(2027, 1, 31), findings=("rng-not-restored",), **more):
    """Return a report whose one trial has the findings."""
    trial, said = outcomes.violated_pair(1, outcomes.RNG)
    said = dataclasses.replace(
        said,
        findings=tuple(dataclasses.replace(outcomes.RNG, name=n) for n in findings),
        verdict=more.pop("verdict", Verdict.HELD),
    )
    outcome = outcomes.make_outcome(
        said.verdict,
        [(trial, said)],
        settings=settings(*known, today=today, **more),
        holds_up_to="resumes",
    )
    return make_document(outcome)


def test_a_known_finding_does_not_count_on_its_last_day():
    assert not settings(RNG).counts("rng-not-restored")
    assert settings(RNG).counts("order-changed")


def test_a_known_finding_counts_again_the_day_after():
    assert settings(RNG, today=date(2027, 2, 1)).counts("rng-not-restored")


def test_both_files_list_known_findings(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        ENTRY.replace("[[known]]", "[[tool.spotchaos.known]]")
    )
    assert read_known(tmp_path) == (RNG,)
    (tmp_path / "spotchaos.toml").write_text("trials = 3\n" + ENTRY)
    assert read_known(tmp_path) == (RNG,)
    assert read_config(tmp_path) == {"trials": 3}


def test_a_folder_without_a_file_lists_none(tmp_path):
    assert read_known(tmp_path) == ()


@pytest.mark.parametrize(
    ("change", "message", "hint"),
    [
        pytest.param(
            ("rng-not-restored", "rng-not-restord"),
            "a known finding is 'rng-not-restord'",
            "did you mean 'rng-not-restored'?",
            id="near-miss",
        ),
        pytest.param(
            ("reason =", "reson ="),
            "unknown key 'reson' of known finding 1 in spotchaos.toml",
            "did you mean 'reason'?",
            id="key",
        ),
        pytest.param(
            ('reason = "PR 12 mends it"', ""),
            "has no 'reason'",
            "[[known]]",
            id="no-key",
        ),
        pytest.param(("PR 12 mends it", " "), "has no reason", "say why", id="empty"),
        pytest.param(
            ("2027-01-31", '"next year"'),
            "'until' of known finding 1 in spotchaos.toml is 'next year'",
            "write the last day",
            id="date",
        ),
        pytest.param(
            ("rng-not-restored", "not-repeatable"),
            "'not-repeatable' cannot be a known finding",
            "nothing was proved",
            id="proved-nothing",
        ),
        pytest.param(
            ("[[known]]", "[known]"),
            "'known' in spotchaos.toml is no list",
            "[[known]]",
            id="table",
        ),
    ],
)
def test_a_slip_in_an_entry_is_named(tmp_path, change, message, hint):
    (tmp_path / "spotchaos.toml").write_text(ENTRY.replace(*change))
    with pytest.raises(UsageError) as caught:
        read_known(tmp_path)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_a_finding_is_listed_once():
    with pytest.raises(UsageError, match="listed twice"):
        settings(RNG, RNG)


def test_the_report_says_what_is_known_and_fits_its_schema():
    document = report(RNG)
    schema = Path(html.__file__).with_name("schema1.json")
    jsonschema.validate(document, json.loads(schema.read_text()))
    assert document["known"] == [
        {
            "finding": "rng-not-restored",
            "reason": "PR 12 mends it",
            "until": "2027-01-31",
            "expired": False,
            "trials": [1],
        }
    ]
    assert document["findings"][0]["counts"] is False


def test_the_screen_shows_a_known_finding_and_claims_no_more_than_holds():
    text = plain(screen(report(RNG)))
    assert text.startswith("HELD  bitwise, seed 7, 1 trial; holds up to: resumes")
    assert "rng-not-restored  does not count" in text
    assert "is known until 2027-01-31: PR 12 mends it" in text
    assert "bit for bit" not in text


def test_what_counts_comes_before_what_does_not():
    document = report(
        RNG, findings=("rng-not-restored", "order-changed"), verdict=Verdict.VIOLATED
    )
    text = plain(screen(document))
    assert text.index("  order-changed") < text.index("  rng-not-restored")


def test_an_expired_entry_says_that_it_counts_again():
    document = report(RNG, today=date(2027, 2, 1), verdict=Verdict.VIOLATED)
    assert document["findings"][0]["counts"] is True
    said = " ".join(plain(screen(document)).split())
    assert "was known until 2027-01-31 and counts again" in said


def test_an_entry_whose_finding_is_gone_must_be_removed():
    document = report(RNG, findings=())
    said = " ".join(plain(screen(document)).split())
    assert (
        "is listed as known and was not seen: if it is fixed, remove its entry" in said
    )


def test_a_single_shard_does_not_say_that_a_finding_is_gone():
    document = report(RNG, findings=(), shard=(1, 2))
    assert "was not seen" not in plain(screen(document))


def test_github_gets_a_notice_and_sarif_a_suppression():
    document = report(RNG)
    assert github.workflow_commands(document)[0].startswith("::notice ")
    assert "known until 2027-01-31" in github.summary(document)
    result = json.loads(sarif.render(document))["runs"][0]["results"][0]
    assert "PR 12 mends it" in result["suppressions"][0]["justification"]
    assert 'failures="0"' in junit.render(document)
    assert "PR 12 mends it" in html.render(document)


def test_what_fail_on_leaves_out_is_named():
    document = report(fail_on=("order-changed",))
    assert "left out by --fail-on: rng-not-restored" in plain(screen(document))


def test_the_command_reads_the_list_and_the_day(monkeypatch, tmp_path):
    from spotchaos.cli.arguments import read_arguments

    monkeypatch.chdir(tmp_path)
    (tmp_path / "spotchaos.toml").write_text(ENTRY)
    asked, _ = read_arguments("run", {}, ("python", "train.py"))
    assert asked.known == (RNG,)
    assert asked.today is not None
