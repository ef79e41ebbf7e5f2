"""The table of mechanisms is complete, and names only tests that exist."""

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# Reports of each kind in the survey.
KINDS = {
    "A": 18, "B": 16, "C": 7, "D": 16, "E": 15, "F": 32, "G": 6, "H": 12, "I": 22, "J": 11,
    "K": 11, "L": 18, "M": 4, "N": 8, "O": 9, "P": 19, "Q": 13, "R": 10, "S": 9, "T": 3,
}  # fmt: skip


def rows():
    lines = (HERE / "MECHANISMS.md").read_text(encoding="utf-8").splitlines()
    cells = [
        [c.strip() for c in line.strip("|").split("|")] for line in lines if "|" in line
    ]
    return [row for row in cells if re.match(r"[A-T]\d", row[0])]


def test_every_report_stands_in_the_table_once():
    listed = [each for row in rows() for each in row[0].split()]
    expected = [
        f"{kind}{n}" for kind, count in KINDS.items() for n in range(1, count + 1)
    ]
    assert sorted(listed) == sorted(expected)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0].replace(" ", "-"))
def test_what_is_named_exists_or_a_reason_is_given(row):
    names = re.findall(r"(test_\w+)::(\w+)", row[2])
    assert names or row[2].startswith("no: ")
    for module, test in names:
        source = (HERE / f"{module}.py").read_text(encoding="utf-8")
        assert re.search(rf"^(def )?{test}\b", source, re.MULTILINE), test
