"""EXPECTED.toml says something checkable of every program in scenarios/programs."""

import ast
import tomllib
from pathlib import Path

import pytest

from spotchaos.config.plan import KillPoint
from spotchaos.findings import FINDINGS, NOTES

FOLDER = Path(__file__).parents[2] / "scenarios" / "programs"
EXPECTED = tomllib.loads((FOLDER / "EXPECTED.toml").read_text())
PROGRAMS, STEPS = EXPECTED["programs"], EXPECTED["steps"]
SOURCES = sorted(FOLDER.glob("*.py"))
COUNTERS = sorted((FOLDER / "steps").glob("*.py"))


def docstring(source):
    return ast.get_docstring(ast.parse(source.read_text()))


def imported(source):
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_every_program_has_an_entry_and_every_entry_a_program():
    assert {s.stem for s in SOURCES} == set(PROGRAMS)
    others = {"module", "console_script"}
    assert {s.stem for s in COUNTERS} == set(STEPS) - others


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: s.stem)
def test_a_docstring_is_one_line_that_names_the_expected_verdict(source):
    text = docstring(source)
    assert "\n" not in text
    assert f"expected verdict: {PROGRAMS[source.stem]['verdict']}" in text.lower()


@pytest.mark.parametrize("source", COUNTERS, ids=lambda s: s.stem)
def test_a_docstring_names_the_real_count_of_steps(source):
    assert f"{STEPS[source.stem]['real-steps']} real steps" in docstring(source)


def test_no_program_knows_of_the_tool():
    for source in FOLDER.rglob("*.py"):
        assert not [n for n in imported(source) if n.split(".")[0] == "spotchaos"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_entry_uses_the_words_of_the_contract(name):
    entry = PROGRAMS[name]
    named = [*entry.get("findings", []), *entry.get("any-of", [])]
    assert set(named) | set(entry.get("also", [])) <= set(FINDINGS)
    assert set(entry.get("notes", [])) <= set(NOTES)
    assert bool(named) == (entry["verdict"] == "violated")
    assert (FOLDER / entry["command"][-1]).is_file()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_kill_point_lies_after_the_step_that_the_resume_goes_on_from(name):
    entry = PROGRAMS[name]
    point = KillPoint.parse(entry["kill-at"])
    assert point.site == "step-end"
    assert entry["joins"] < point.occurrence < entry["steps"]
