"""The tool convicts each flawed program by its name, and acquits each correct one."""

import pytest

from spotchaos.findings import FINDINGS
from spotchaos.harness import SPECIMENS
from spotchaos.harness.groundworks import Groundworks
from spotchaos.harness.specimens import (
    read_table,
    try_program,
    unmet_by_mutant,
    unmet_by_twin,
)

TABLE = read_table()
# Findings without a pair, and why.
WITHOUT: dict[str, str] = {}


# One of each group of judges, for every run of the tests; the rest are slow.
QUICK = {
    "no_checkpoint",
    "optimizer_not_restored",
    "rule_fetches_ahead",
    "stale_resume",
    "vacuous",
}


def _params(rows):
    return [
        pytest.param(
            row, id=row.name, marks=[] if row.name in QUICK else [pytest.mark.slow]
        )
        for row in rows
    ]


@pytest.fixture(scope="module")
def groundworks():
    shared = Groundworks(ready=[SPECIMENS])
    yield shared
    shared.close()


@pytest.mark.parametrize("specimen", _params(s for s in TABLE.values() if s.finding))
def test_a_flawed_program_is_convicted_by_its_name(specimen, groundworks, tmp_path):
    outcome = try_program(
        specimen, specimen.mutant, folder=tmp_path, layer=groundworks.layer
    )
    assert not unmet_by_mutant(specimen, outcome)


@pytest.mark.parametrize("specimen", _params(TABLE.values()))
def test_a_correct_program_is_acquitted(specimen, groundworks, tmp_path):
    outcome = try_program(
        specimen, specimen.mended, folder=tmp_path, layer=groundworks.layer
    )
    assert not unmet_by_twin(specimen, outcome)


def test_every_finding_has_a_specimen():
    shown = {specimen.finding for specimen in TABLE.values()}
    assert {name for name in FINDINGS if name not in shown} == WITHOUT.keys()


def test_every_specimen_is_in_the_table():
    mutants = {path.stem for path in (SPECIMENS / "mutants").glob("*.py")}
    mended = {path.stem for path in (SPECIMENS / "mended").glob("*.py")}
    assert mutants == {s.name for s in TABLE.values() if s.finding}
    assert mended == set(TABLE)


@pytest.mark.parametrize(
    "specimen", [pytest.param(s, id=s.name) for s in TABLE.values() if s.finding]
)
def test_a_mutant_opens_with_its_flaw_and_its_twin_differs_little(specimen):
    mutant, mended = specimen.mutant.read_text(), specimen.mended.read_text()
    assert mutant.startswith('"""One flaw: ')
    assert mended.startswith('"""No flaw: ')
    # Another language, so to speak; and what articles spread, against our core.
    if specimen.name != "not_observed" and not specimen.name.startswith("recipe_"):
        ours, theirs = set(mutant.splitlines()), set(mended.splitlines())
        assert len(ours ^ theirs) <= 26
