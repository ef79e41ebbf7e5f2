"""The outcomes of `outcomes.py`, snapshots, and strings that want to do harm."""

import importlib.util
import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent
_SPEC = importlib.util.spec_from_file_location("report_outcomes", HERE / "outcomes.py")
_MODULE = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_MODULE)


@pytest.fixture(scope="session")
def outcomes():
    return _MODULE


@pytest.fixture(scope="session")
def document():
    """Return a function that builds the report of a named outcome."""
    from spotchaos.report.document import make_document

    def build(name):
        notes = (_MODULE.HIDDEN,) if name == "violated" else ()
        return make_document(getattr(_MODULE, name)(), notes=notes)

    return build


@pytest.fixture
def snapshot():
    """Compare a text with its snapshot; UPDATE_SNAPSHOTS=1 writes it anew."""

    def check(name, text):
        path = HERE / "snapshots" / name
        if os.environ.get("UPDATE_SNAPSHOTS"):
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8")

    return check


NASTY = [
    pytest.param("<script>alert(1)</script>", id="script"),
    pytest.param('"><img src=x onerror=alert(1)>', id="attribute"),
    pytest.param("</script><svg onload=alert(1)>", id="end-of-script"),
    pytest.param("{{ 7 * 7 }}{% raw %}", id="template"),
    pytest.param("]]><!DOCTYPE x [<!ENTITY e SYSTEM 'file:///etc/passwd'>]>", id="xml"),
    pytest.param("line\n::error file=x::owned", id="workflow-command"),
    pytest.param("a | b | `c` <b>d</b> [e](javascript:alert(1))", id="markdown"),
    pytest.param("```\n# title\n````", id="fence"),
    pytest.param("@everyone closes #1", id="mention"),
    pytest.param("\x1b[2J\x1b[31mred\x1b]0;title\x07\x00\x08\x7f\x9b", id="terminal"),
    pytest.param("abc\u202edef\u2066ghi\u200b", id="bidi"),
    pytest.param("lone \ud800 surrogate", id="surrogate"),
    pytest.param("[bold red]markup[/bold red] [link=file:///]x[/]", id="rich-markup"),
    pytest.param("x" * 5000, id="long"),
]


@pytest.fixture(params=NASTY)
def nasty(request):
    return request.param


@pytest.fixture
def nasty_document(outcomes, nasty):
    """Return a report that says the nasty string wherever the program can say anything."""
    import dataclasses

    from spotchaos.model import Finding, Judgement, Note, Verdict
    from spotchaos.report.document import make_document

    finding = Finding(
        "diverged",
        nasty,
        hint=nasty,
        attempt=2,
        step=11,
        rank=0,
        component=nasty,
        where={"file": nasty, "line": 3},
    )
    trial, _ = outcomes.violated_pair(1)
    trial = dataclasses.replace(
        trial,
        plan=nasty,
        attempts=tuple(
            dataclasses.replace(a, kill_point=nasty, output_tail=nasty)
            for a in trial.attempts
        ),
    )
    resume = outcomes.make_resume(
        restored={nasty: "fresh"},
        divergence=dataclasses.replace(outcomes.PARTED, tensor=nasty),
    )
    said = Judgement(
        Verdict.VIOLATED,
        (finding,),
        (Note("observer", nasty),),
        (resume,),
        None,
    )
    outcome = outcomes.make_outcome(
        Verdict.VIOLATED,
        [(trial, said)],
        settings=outcomes.make_settings(command=("python", nasty)),
        unprotected=(nasty,),
        trouble=nasty,
        hint=nasty,
        notes=(("observer", (1,)),),
        environment={"python": nasty, "mechanisms": {"overlay": nasty}},
    )
    return make_document(outcome, notes=(Note("existing-hidden", nasty),))
