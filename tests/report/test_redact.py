import json
import re

import pytest

from spotchaos.report.issue import draft, prose
from spotchaos.report.redact import MASK, clean, mask_text, one_line, redact

SECRETS = [
    pytest.param("hf_" + "AbCdEfGhIj" * 3, id="hugging-face"),
    pytest.param("ghp_" + "a1B2c3D4e5" * 4, id="github"),
    pytest.param("github_pat_" + "a1B2c3D4e5" * 4, id="github-fine"),
    pytest.param("AKIA" + "ABCDEFGH12345678", id="aws-key"),
    pytest.param("sk-" + "a1B2c3D4e5" * 4, id="api"),
    pytest.param("xoxb-" + "1234567890-abcdef", id="slack"),
    pytest.param("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abcDEF123", id="jwt"),
    pytest.param("AIza" + "a" * 35, id="google"),
]


@pytest.mark.parametrize("secret", SECRETS)
def test_a_token_is_masked_wherever_it_stands(secret):
    assert secret not in mask_text(f"--x={secret} and more")
    assert MASK in mask_text(f"url?k={secret}&b=1")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("password=hunter22", id="password"),
        pytest.param("WANDB_API_KEY: hunter22", id="api-key"),
        pytest.param("Authorization: Bearer hunter22", id="bearer"),
        pytest.param("s3://user:hunter22@host/x", id="url"),
        pytest.param('{"aws_secret_access_key": "hunter22"}', id="json"),
    ],
)
def test_what_a_word_announces_as_secret_is_masked(text):
    assert "hunter22" not in mask_text(text)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("save torch.get_rng_state() with the model", id="hint"),
        pytest.param("the tokenizer was saved at step 12", id="tokenizer"),
        pytest.param(
            "spotchaos replay sc1:eyJwbGFuIjoic3RlcC1lbmQ6MTIifQ", id="replay"
        ),
        pytest.param("python train.py --out {out}", id="command"),
    ],
)
def test_ordinary_words_are_left_alone(text):
    assert mask_text(text) == text


def test_masking_takes_time_in_proportion_to_the_text():
    # A pattern with a quadratic worst case would not come back from this.
    assert len(mask_text("x" * 2_000_000)) == 2_000_000


def test_redacting_removes_paths_values_and_the_hosts_name(monkeypatch, tmp_path):
    import socket

    monkeypatch.chdir(tmp_path)
    environ = {"HOME": "/home/alice", "MY_SECRET": "correcthorse", "PATH": "/usr/bin"}
    host = socket.gethostname()
    said = f"{tmp_path}/out /home/alice/data correcthorse /usr/bin on {host}"
    found = redact({"a": [said]}, environ)["a"][0]
    assert str(tmp_path) not in found
    assert "alice" not in found
    assert "correcthorse" not in found
    assert "/usr/bin" in found
    assert "./out ~/data" in found
    if len(host) > 3 and host != "localhost":
        assert host not in found


def test_a_replay_token_survives_redaction():
    document = {"trials": [{"replay": "sc1:abcdef"}]}
    assert redact(document, {"A_TOKEN": "abcdef"}) == document


def test_cleaning_leaves_no_control_character(nasty):
    text = one_line(nasty).replace("\N{REPLACEMENT CHARACTER}", "")
    assert text.isprintable()
    assert clean("a\nb\tc") == "a\nb\tc"


def test_a_draft_is_about_one_finding_and_can_be_pasted(document, snapshot):
    text = draft(document("violated"), number=1)
    snapshot("issue_rng.md", text)
    assert "spotchaos replay sc1:" in text


def test_a_draft_names_no_path_of_this_machine(outcomes, monkeypatch, tmp_path):
    from spotchaos.model import Verdict
    from spotchaos.report.document import make_document

    monkeypatch.chdir(tmp_path)
    settings = outcomes.make_settings(command=(f"{tmp_path}/bin/python", "train.py"))
    outcome = outcomes.make_outcome(
        Verdict.VIOLATED, [outcomes.violated_pair(1, outcomes.RNG)], settings=settings
    )
    assert str(tmp_path) not in draft(make_document(outcome), number=1)


def test_no_text_ends_a_block_of_the_draft(nasty_document):
    text = draft(nasty_document, number=1)
    fences = [line for line in text.splitlines() if line.startswith("````")]
    assert len(fences) % 2 == 0
    assert fences[::2] == ["````text"] * (len(fences) // 2)
    assert fences[1::2] == ["````"] * (len(fences) // 2)


@pytest.mark.parametrize("number", [0, 3, -1])
def test_a_draft_of_no_finding_lists_those_there_are(document, number):
    from spotchaos.errors import ReportError

    with pytest.raises(ReportError, match="no finding") as caught:
        draft(document("violated"), number=number)
    assert "1 rng-not-restored, 2 order-changed" in caught.value.hint


def test_a_report_is_json_whatever_was_said(nasty_document):
    from spotchaos.report.formats import render

    assert json.loads(render(nasty_document))["verdict"] == "violated"


@pytest.mark.parametrize(
    ("text", "drafted"),
    [
        ("ask @user.", "ask `@user`."),
        ("closes #12, org/repo#1 and GH-7", "closes `#12`, `org/repo#1` and `GH-7`"),
        ("see https://x.example/a", "see `https://x.example/a`"),
        ("see www.x.example or a@b.example", "see `www.x.example` or `a@b.example`"),
        ("<img src=x> [a](b)", "`<img` `src=x>` `[a](b)`"),
        ("in 0123abcdef", "in `0123abcdef`"),
        ("# title", "`#` title"),
        ("- item", "`-` item"),
        ("1. item", "`1`. item"),
        ("a `b` *c*", "a `'b'` `*c*`"),
        ("a\n\n@b", "a `@b`"),
        ("torch.save(x) at step 10", "torch.save(x) at step 10"),
    ],
)
def test_a_word_that_a_forge_would_act_on_is_code(text, drafted):
    assert prose(text) == drafted


def test_a_draft_mentions_nobody_and_links_nothing(nasty_document):
    from markdown_it import MarkdownIt

    text = draft(nasty_document, number=1)
    shown = []
    for token in MarkdownIt("gfm-like", {"linkify": False}).parse(text):
        assert token.type != "html_block"
        for inner in token.children or ():
            assert inner.type in ("text", "code_inline", "softbreak")
            shown += [inner.content] if inner.type == "text" else []
    assert not re.search(r"@\w|#\d|://|www\.|GH-\d", " ".join(shown))


def test_the_line_that_installs_a_release_runs_nothing_else(document):
    changed = {**document("violated"), "spotchaos": "0.1; touch /x"}
    text = draft(changed, number=1)
    assert "pip install 'spotchaos==0.1; touch /x'" in text
