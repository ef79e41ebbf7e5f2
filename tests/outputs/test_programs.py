"""Programs of the kinds that spot machines run, right and flawed, under plans of chance.

Each flaw is one piece of a correct program in other words.
"""

import sys
from pathlib import Path

import pytest

from spotchaos.campaign.campaign import run
from spotchaos.config.options import BY_NAME, make_settings, read_option
from spotchaos.model import Verdict

PROGRAMS = Path(__file__).parent / "programs"
NEEDS = {"shards": "pyarrow"}
OPTIONS = {"objects": {"durable": "s3://results"}}

FLAWS = [
    (
        "queue",
        "no-lease",
        [
            (
                "state = 'open' or (state = 'busy' and lease_until < :now)",
                "state = 'open'",
            ),
            ("""{"waits": 1}""", """{"waits": 0}"""),
        ],
        "outputs-missing",
    ),
    ("queue", "waits-for-ever", [(" < :now)", " < :now - 1e9)")], "hang"),
    (
        "memmap",
        "counter-first",
        [
            ('    write("progress", str(at + BATCH))\n', ""),
            ("    # before\n", '    write("progress", str(at + BATCH))\n'),
        ],
        "marked-before-written",
    ),
    (
        "memmap",
        "one-too-far",
        [("start = int(file.read())", "start = int(file.read()) + BATCH")],
        "outputs-missing",
    ),
    (
        "shards",
        "in-place",
        [
            ('path + ".tmp")\n', "path)\n"),
            ('    os.replace(path + ".tmp", path)\n', ""),
        ],
        "outputs-torn",
    ),
    (
        "shards",
        "marker-first",
        [("# begin\n", 'open("ds/_SUCCESS", "w").close()\n')],
        "outputs-missing",
    ),
    ("objects", "total", [('"square": number**2', '"total": total')], "outputs-differ"),
    (
        "pool",
        "no-cut",
        [("        file.truncate(len(whole) + 1 if whole else 0)\n", "")],
        "outputs-torn",
    ),
    ("pool", "no-skip", [("if n not in done", "")], "outputs-repeated"),
    (
        "tidy",
        "state-first",
        [
            ('    write(f"results/{number}.json", result)\n', ""),
            (
                '    write("state.json", state)\n',
                '    write("state.json", state)\n    write(f"results/{number}.json", result)\n',
            ),
        ],
        "marked-before-written",
    ),
    (
        "tidy",
        "carried",
        [("number / 3", "(carried := carried + number)")],
        "outputs-differ",
    ),
]


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """Carry out six plans of chance on a program; return the outcome."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def drawn(name, source):
        if name in NEEDS:
            pytest.importorskip(NEEDS[name], reason=f"{name} needs {NEEDS[name]}")
        folder = tmp_path / "work"
        folder.mkdir()
        (folder / "program.py").write_text(source)
        options = {"kill-at": ["random"], "trials": 6, **OPTIONS.get(name, {})}
        values = {n: read_option(BY_NAME[n], value) for n, value in options.items()}
        if name == "queue":
            values["timeout"] = 20.0
        command = (sys.executable, "program.py")
        settings = make_settings(values, command=command, folder=folder)
        return run(settings, lambda event: None)

    return drawn


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(p.stem for p in PROGRAMS.glob("*.py")))
def test_a_correct_program_is_held(name, drawn):
    outcome = drawn(name, (PROGRAMS / f"{name}.py").read_text())
    assert outcome.verdict is Verdict.HELD, outcome.trouble
    assert not outcome.findings


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changes", "finding"),
    [pytest.param(n, c, f, id=f"{n}-{flaw}") for n, flaw, c, f in FLAWS],
)
def test_a_flawed_one_is_convicted_by_the_fitting_name(name, changes, finding, drawn):
    source = (PROGRAMS / f"{name}.py").read_text()
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    outcome = drawn(name, source)
    assert outcome.verdict is Verdict.VIOLATED, outcome.trouble
    assert finding in [found for found, _ in outcome.findings]
