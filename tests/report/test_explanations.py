from importlib import resources

import pytest

from spotchaos.explanations import page
from spotchaos.findings import FINDINGS, NOTES

SECTIONS = (
    "## What happened",
    "## How it arises",
    "## What it costs",
    "## How to mend it",
)
PLACES = ("plain loop", "HF Trainer", "Lightning", "Accelerate", "DCP", "our core")


@pytest.mark.parametrize("name", sorted(FINDINGS))
def test_each_finding_has_a_page_that_says_how_to_mend_it(name):
    text = page(name)
    assert text.startswith(f"# {name}\n\n")
    places = [text.index(section) for section in SECTIONS]
    assert places == sorted(places)
    mending = text[places[-1] :]
    for place in PLACES:
        assert place.lower() in mending.lower(), place


@pytest.mark.parametrize("name", sorted(NOTES))
def test_each_note_has_a_page(name):
    text = page(name)
    assert text.startswith(f"# {name}\n\n")
    assert "This is a note" in text


def test_no_page_is_of_something_that_does_not_exist():
    files = resources.files("spotchaos.explanations").iterdir()
    pages = {f.name.removesuffix(".md") for f in files if f.name.endswith(".md")}
    assert pages == {*FINDINGS, *NOTES}


def test_a_page_opens_with_the_sentence_of_the_table():
    for name, kind in FINDINGS.items():
        first = page(name).split("\n")[2]
        words = set(kind.summary.replace(",", "").split())
        said = set(first.replace(",", "").lower().removesuffix(".").split())
        missing = {w.lower() for w in words} - said
        assert len(missing) <= 3, (name, missing)


@pytest.mark.parametrize("name", ["", "nothing", "../findings", "/etc/passwd", "a/b"])
def test_what_has_no_page_is_refused(name):
    with pytest.raises(KeyError):
        page(name)
