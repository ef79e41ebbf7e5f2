import io
import json
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import jsonschema
import pytest

from spotchaos.errors import UsageError
from spotchaos.model import Verdict
from spotchaos.report import formats, github, html, junit, sarif
from spotchaos.report.document import make_document
from spotchaos.report.jsonl import JsonLines

HERE = Path(__file__).parent
SARIF = json.loads((HERE / "sarif.json").read_text())
NAMES = ["held", "violated", "unknown"]


@pytest.fixture(scope="module")
def junit_schema():
    xmlschema = pytest.importorskip("xmlschema", reason="validates JUnit files")
    return xmlschema.XMLSchema(str(HERE / "junit.xsd"))


@pytest.mark.parametrize("name", NAMES)
def test_junit_is_valid_and_counts_its_cases(document, junit_schema, name):
    text = junit.render(document(name))
    junit_schema.validate(text)
    suite = ET.fromstring(text).find("testsuite")
    cases = suite.findall("testcase")
    assert int(suite.get("tests")) == len(cases)
    assert int(suite.get("failures")) == len(suite.findall("testcase/failure"))
    assert int(suite.get("errors")) == len(suite.findall("testcase/error"))


def test_junit_fails_a_violated_trial_and_passes_a_held_one(document):
    suite = ET.fromstring(junit.render(document("violated"))).find("testsuite")
    failed = [c.get("name") for c in suite if c.find("failure") is not None]
    assert failed == [f"trial {n} [step-end:12]" for n in (1, 3, 4)]
    assert "train.py:40" in suite.find("testcase/failure").text
    assert "spotchaos replay sc1:" in suite.find("testcase/failure").text


def test_junit_calls_unknown_an_error(document):
    suite = ET.fromstring(junit.render(document("unknown"))).find("testsuite")
    assert suite.find("testcase/error").get("type") == "not-repeatable"


def test_junit_takes_any_text(nasty_document, junit_schema):
    junit_schema.validate(junit.render(nasty_document))


@pytest.mark.parametrize("name", NAMES)
def test_sarif_is_valid(document, name):
    jsonschema.validate(json.loads(sarif.render(document(name))), SARIF)


def test_sarif_points_at_the_programs_own_line_or_at_its_script(document):
    results = json.loads(sarif.render(document("violated")))["runs"][0]["results"]
    places = [r["locations"][0]["physicalLocation"] for r in results]
    assert places[0] == {
        "artifactLocation": {"uri": "train.py"},
        "region": {"startLine": 40},
    }
    assert places[1]["artifactLocation"]["uri"] == "train.py"


def test_sarif_takes_any_text(nasty_document):
    jsonschema.validate(json.loads(sarif.render(nasty_document)), SARIF)


def test_sarif_names_the_same_finding_alike_in_each_run(document):
    first, second = (json.loads(sarif.render(document("violated"))) for _ in range(2))
    prints = [
        [r["partialFingerprints"] for r in log["runs"][0]["results"]]
        for log in (first, second)
    ]
    assert prints[0] == prints[1]
    assert prints[0][0] != prints[0][1]


def test_github_annotates_the_line(document):
    lines = github.workflow_commands(document("violated"))
    assert lines[0].startswith(
        "::error title=spotchaos%3A rng-not-restored,file=train.py,line=40::"
    )
    assert len(lines) == 2


def test_github_says_why_a_verdict_is_unknown(document):
    [line] = github.workflow_commands(document("unknown"))
    assert line.startswith("::warning ")
    assert "differ in the first batch" in line


def test_no_text_can_begin_a_workflow_command(nasty_document):
    lines = github.workflow_commands(nasty_document)
    assert len(lines) == 1
    assert "\n" not in lines[0]
    assert "\r" not in lines[0]
    head = lines[0].split("::")[1]
    assert head.count(",") == 2


def test_no_text_breaks_the_summary(nasty_document):
    text = github.summary(nasty_document)
    rows = [line for line in text.splitlines() if line.startswith("| <code>")]
    assert len(rows) == 1
    assert _columns(rows[0]) == 4
    for raw in ("<script", "<img", "<svg", "\n#", "@everyone", "\x1b"):
        assert raw not in text


def _columns(row):
    """Count the cells of a row as GitHub does: escaped bars do not split."""
    return len(row.replace("\\|", "").strip().strip("|").split("|"))


def test_the_summary_goes_where_github_wants_it(document, monkeypatch, tmp_path):
    path = tmp_path / "summary.md"
    path.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
    out = io.StringIO()
    github.annotate(document("violated"), out=out)
    assert path.read_text().startswith("before\n## ")
    assert out.getvalue().startswith("::error ")


class Tags(HTMLParser):
    """Collects the elements of a page, and fails where they do not nest."""

    EMPTY = frozenset({"meta", "link", "br", "input", "img", "hr"})

    def __init__(self):
        super().__init__()
        self.open = []
        self.found = []
        self.ids = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def parse(text):
    tags = Tags()
    tags.feed(text)
    tags.close()
    assert tags.open == []
    return tags


@pytest.mark.parametrize("name", NAMES)
def test_the_page_is_well_formed_and_stands_alone(document, name):
    tags = parse(html.render(document(name)))
    assert len(tags.ids) == len(set(tags.ids))
    for tag, attributes in tags.found:
        assert tag not in ("iframe", "object", "embed", "base", "form")
        assert "src" not in attributes
        for target in (attributes.get("href"),):
            assert target is None or target.startswith(("#", "data:,", "https://"))
    assert [tag for tag, _ in tags.found].count("script") == 1


def test_the_page_says_the_verdict_before_all_else(document):
    text = html.render(document("violated"))
    body = text[text.index("<body") :]
    assert body.index("VIOLATED") < body.index("rng-not-restored")


def test_the_page_explains_each_finding(document):
    text = html.render(document("violated"))
    assert text.count("What this means, and how to mend it") == 2
    assert "set_rng_state" in text or "get_rng_state" in text


def test_the_page_draws_and_describes_its_drawings(document):
    tags = parse(html.render(document("violated")))
    drawings = [a for tag, a in tags.found if tag == "svg"]
    assert len(drawings) >= 6
    assert all(a.get("role") == "img" and a.get("aria-label") for a in drawings)


def test_the_page_has_a_place_for_each_trial(document):
    tags = parse(html.render(document("violated")))
    assert {f"trial-{n}" for n in (1, 2, 3, 4)} <= set(tags.ids)


def test_no_text_becomes_an_element_or_a_script(nasty_document, document):
    tags = parse(html.render(nasty_document))
    usual = {tag for tag, _ in parse(html.render(document("violated"))).found}
    usual |= {"p", "pre", "details", "summary"}
    found = {tag for tag, _ in tags.found}
    assert found <= usual
    assert [tag for tag, _ in tags.found].count("script") == 1
    for _, attributes in tags.found:
        assert not any(name.startswith("on") for name in attributes)


def test_only_the_pages_own_script_may_run(document):
    import base64
    import hashlib
    import re

    text = html.render(document("violated"))
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text
    assert "default-src 'none'" in text


def test_a_hundred_trials_make_a_page_under_500_kb(outcomes):
    pairs = [
        outcomes.violated_pair(n, outcomes.RNG, outcomes.ORDER) for n in range(1, 101)
    ]
    outcome = outcomes.make_outcome(Verdict.VIOLATED, pairs)
    assert len(html.render(make_document(outcome)).encode()) < 500_000


@pytest.mark.parametrize("name", NAMES)
def test_events_are_lines_of_json_as_they_happen(outcomes, tmp_path, name):
    path = tmp_path / "events.jsonl"
    lines = JsonLines(path)
    told = outcomes.events(getattr(outcomes, name)())
    for count, event in enumerate(told, 1):
        lines(event)
        assert len(path.read_text().splitlines()) == count
    read = [json.loads(line) for line in path.read_text().splitlines()]
    assert read[0]["event"] == "started"
    assert read[-1]["event"] == "outcome"
    assert read[-1]["report"]["verdict"] == name


@pytest.mark.parametrize("name", sorted(formats.FORMATS))
def test_each_format_of_the_table_renders_each_report(document, name):
    for verdict in NAMES:
        assert formats.FORMATS[name].render(document(verdict)).endswith("\n")


def test_a_file_that_cannot_be_written_does_not_spoil_the_others(document, tmp_path):
    bad = tmp_path / "missing" / "report.xml"
    good = tmp_path / "report.json"
    [said] = formats.write_reports(document("held"), {"junit": bad, "json": good})
    assert said.startswith("could not write")
    assert json.loads(good.read_text())["verdict"] == "held"


def test_a_place_that_refuses_is_known_before_the_campaign(tmp_path):
    with pytest.raises(UsageError, match="cannot write"):
        formats.check_writable(tmp_path / "missing" / "report.json")
    kept = tmp_path / "report.json"
    formats.check_writable(kept)
    assert not kept.exists()
    kept.write_text("old")
    formats.check_writable(kept)
    assert kept.read_text() == "old"
