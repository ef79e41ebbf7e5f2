"""Whatever a file or a word of anybody's holds, it is read, or refused in a sentence."""

import base64
import json
import re
from pathlib import Path

import pytest

from spotchaos.campaign import baseline_cache as cache
from spotchaos.cli.imds_script import script
from spotchaos.config import replay_token as token
from spotchaos.config.option_files import read_config, read_known
from spotchaos.config.options import BY_NAME, make_settings
from spotchaos.config.settings import Settings
from spotchaos.errors import UsageError
from spotchaos.persistence.tokens import in_recording
from spotchaos.pytest_support.scenario_file import read_scenario
from spotchaos.report import formats
from spotchaos.report.github import summary, workflow_commands
from spotchaos.report.issue import draft
from spotchaos.report.merging import merge
from spotchaos.report.screen import plain, screen
from spotchaos.report.stored import compare, comparison_text, read_report
from tests.report import outcomes

BASE = Settings(command=("python", "t.py"), folder=Path("/srv"))
# What a terminal would act on, but the ends of lines.
_MOVES = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def refused(read, *args, **more):
    """Return whether it was refused; whatever is said is a short, printable sentence."""
    try:
        read(*args, **more)
    except UsageError as error:
        told = [words or "" for words in error.shown]
    else:
        return False
    assert max(map(len, told)) < 400
    assert not _MOVES.search("".join(told))
    return True


TABLE = b"""trials = 3
kill-at = ["step-end:3", "save-begin:2,step-end:1"]
promise = "state"
seed = 7
timeout = "2min"
signal = "TERM"
grace = "3steps"
exit-code = [143, -15]
resume-cmd = ["python", "r.py"]
fault = ["enospc:2"]
to = "rank:0,1"
deterministic = true
json = "report.json"
shard = "1/2"
time-scale = 2.5
slow-rank = "1:0.2"
fail-on = ["hang"]

[[known]]
finding = "rng-not-restored"
reason = "it is being mended"
until = 2027-01-31
"""
SCENARIO = b"""summary = "A run comes back"
command = ["python", "train.py"]
kill-at = ["step-end:3"]
notice = "gcp"
grace = 30
ranks = 2
slow = false

[expect]
verdict = "violated"
findings = ["rng-not-restored"]
none-of = ["hang"]
promise = "state"
restored = {weights = 21, optimizer = "fresh"}
"""
PHASES = b"""summary = "two notices"
provider = "aws"
phases = ["5s aws-rebalance", "20s aws grace 60s", "80s 503:1+ for 10s"]
time-scale = 10
"""


def test_any_damage_to_a_token_is_told_in_a_sentence(damaged, retyped, mutations):
    settings = Settings(
        command=("python",),
        folder=Path("/srv"),
        signal="TERM",
        seed=9,
        fault=("enospc:2",),
        ranks=2,
        exit_code=(143,),
        slow_rank=(1, 0.5),
        grace_s=3.0,
    )
    word = token.make_token("step-end:3,save-begin:1", settings)
    content = token.decode(word)
    hits = 0
    for seed in mutations:
        changed = (
            damaged(word.encode(), seed).decode("utf-8", "replace"),
            token.PREFIX
            + base64.urlsafe_b64encode(
                damaged(json.dumps(content).encode(), seed)
            ).decode(),
            token.encode(retyped(content, seed)),
        )[seed % 3]
        hits += refused(token.settings_of, changed, BASE)
        refused(in_recording, changed)
    assert hits > len(mutations) // 3


def test_any_damage_to_a_report_is_told_in_a_sentence(
    damaged, retyped, mutations, tmp_path
):
    from spotchaos.report.document import make_document

    good = [
        json.loads(formats.render(make_document(getattr(outcomes, name)())))
        for name in ("violated", "held", "unknown")
    ]
    path = tmp_path / "r.json"
    hits = 0
    for seed in mutations:
        document = good[seed % 3]
        if seed % 2:
            text = json.dumps(retyped(document, seed)).encode()
        else:
            text = damaged(json.dumps(document).encode(), seed)
        path.write_bytes(text)
        hits += refused(_show_all, path, good[0])
    assert hits > len(mutations) // 3


def _show_all(path, other):
    """Show a report in every way there is; nothing that is read may break one."""
    document = read_report(path)
    shown = [plain(screen(document)), comparison_text(compare(other, document))]
    comparison_text(compare(document, other))
    for name in formats.FORMATS:
        text = formats.FORMATS[name].render(document)
        assert text.encode("utf-8", "replace")
    summary(document)
    workflow_commands(document)
    if document["findings"]:
        shown.append(draft(document, number=1))
    refused(merge, [{**document, "shard": "1/2"}, {**other, "shard": "2/2"}])
    for text in shown:
        assert not _MOVES.search(text)


@pytest.mark.parametrize("name", ["spotchaos.toml", "pyproject.toml"])
def test_any_damage_to_options_in_a_file_is_told_in_a_sentence(
    damaged, mutations, tmp_path, name
):
    good = TABLE
    if name == "pyproject.toml":
        good = b"[project]\nname = 'x'\n[tool.spotchaos]\n" + TABLE.replace(
            b"[[known]]", b"[[tool.spotchaos.known]]"
        )

    def read():
        values = read_config(tmp_path)
        fitting = {k: v for k, v in values.items() if k in BY_NAME}
        make_settings(
            fitting, command=("x",), folder=tmp_path, known=read_known(tmp_path)
        )

    (tmp_path / name).write_bytes(good)
    read()
    hits = 0
    for seed in mutations:
        (tmp_path / name).write_bytes(damaged(good, seed))
        hits += refused(read)
    assert hits > len(mutations) // 3


def test_any_damage_to_a_scenario_is_told_in_a_sentence(damaged, mutations, tmp_path):
    path = tmp_path / "one.toml"

    def read():
        scenario = read_scenario(path)
        make_settings(scenario.options, command=("x",), folder=tmp_path)

    path.write_bytes(SCENARIO)
    read()
    hits = 0
    for seed in mutations:
        path.write_bytes(damaged(SCENARIO, seed))
        hits += refused(read)
    assert hits > len(mutations) // 3


def test_any_damage_to_phases_is_told_in_a_sentence(damaged, mutations, tmp_path):
    path = tmp_path / "phases.toml"
    path.write_bytes(PHASES)
    assert len(script(path).cues) == 3
    hits = 0
    for seed in mutations:
        path.write_bytes(damaged(PHASES, seed))
        hits += refused(script, path)
    assert hits > len(mutations) // 3


def test_damaged_groundwork_is_never_unpickled(damaged, mutations, tmp_path):
    path = tmp_path / "x.pickle"
    entry = cache.Entry(frozenset(), {}, {"x": 1}, ())
    cache._write(path, cache.packed(entry))
    good = path.read_bytes()
    assert cache._read(path) == entry
    for seed in mutations:
        content = damaged(good, seed)
        path.write_bytes(content)
        assert cache._read(path) == (entry if content == good else None)


@pytest.mark.parametrize(
    "word",
    [
        "sc1:" + "A" * (1 << 20),
        "sc1:" + base64.urlsafe_b64encode(b"[" * 40_000).decode(),
        "sc1:" + base64.urlsafe_b64encode(b'{"plan":"step-end:' + b"9" * 5000 + b'"}').decode(),
        token.encode({"plan": ",".join(["step-end:1"] * 2000)}),
        token.encode({"plan": "step-end:1", "ranks": 10**9}),
        token.encode({"plan": "step-end:1", "signal": 9}),
        token.encode({"plan": "step-end:1", "to": "rank:²"}),
        token.encode({"plan": "\x1b[2J"}),
        token.encode({"plan": "step-end:1", "\x1b[2J" * 100: 1}),
    ],
    ids=["long", "deep", "digits", "points", "ranks", "type", "superscript", "escape", "name"],
)  # fmt: skip
def test_a_hostile_token_is_refused(word):
    assert refused(token.settings_of, word, BASE)


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/urandom"])
def test_a_device_without_an_end_is_read_within_bounds(path, monkeypatch):
    from spotchaos.report import stored

    monkeypatch.setattr(stored, "MOST_BYTES", 1 << 20)
    assert refused(read_report, Path(path))
