"""The page in a real browser: its script runs, no error is logged, both themes are legible."""

import json
import re
import shutil
import subprocess
from importlib import resources

import pytest

from spotchaos.model import Verdict
from spotchaos.report import html
from spotchaos.report.document import make_document

CSS = resources.files("spotchaos.report").joinpath("templates/report.css").read_text()


@pytest.fixture
def browse(tmp_path):
    """Return a function that opens a page and returns its final DOM and its log."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("no chromium on this machine")

    def open_page(text, anchor="", *options):
        path = tmp_path / "report.html"
        path.write_text(text)
        done = subprocess.run(
            [
                program,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--enable-logging=stderr",
                f"--user-data-dir={tmp_path / 'profile'}",
                *options,
                "--dump-dom",
                f"file://{path}{anchor}",
            ],
            capture_output=True,
            text=True,
            timeout=90,
            check=True,
        )
        said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        return done.stdout, said

    return open_page


@pytest.mark.slow
def test_the_script_runs_under_the_pages_own_policy(browse, document):
    dom, said = browse(html.render(document("violated")), "#trial-2")
    assert said == []
    assert re.search(r"<html[^>]*class=\"scripted\"", dom)
    trial = re.search(r"<details class=\"trial\" id=\"trial-2\"[^>]*>", dom)[0]
    assert " open" in trial


@pytest.mark.slow
def test_hostile_text_runs_nothing(browse, outcomes):
    attack = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    outcome = outcomes.make_outcome(
        Verdict.UNKNOWN,
        trouble=attack,
        hint=attack,
        settings=outcomes.make_settings(command=("python", attack)),
    )
    dom, said = browse(html.render(make_document(outcome)))
    assert said == []
    assert "<title>owned" not in dom
    assert "&lt;script&gt;" in dom


@pytest.mark.slow
def test_the_map_and_the_grace_chart_log_no_error(browse, document):
    report = document("violated")
    moments = [
        {"t_s": 0.0, "what": "start", "step": 0, "attempt": 1},
        {"t_s": 1.0, "what": "signal", "step": 12, "attempt": 1},
        {"t_s": 1.5, "what": "save-end", "step": 13, "attempt": 1},
        {"t_s": 3.0, "what": "reclaim", "step": 15, "attempt": 1},
    ]
    report["trials"][0]["timeline"] = moments
    report["classes"] = [
        {
            "finding": "torn-checkpoint",
            "states": 2,
            "state": "K7",
            "model": "kill",
            "trial": 1,
            "operation": "write last.pt",
            "where": None,
            "message": "half a file",
            "tokens": ["K7"],
        }
    ]
    dom, said = browse(html.render(report), "#states-title")
    assert said == []
    assert "1 grace window; in 1" in dom
    assert 'class="broken"' in dom


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 1200], ids=["phone", "desk"])
def test_the_page_is_no_wider_than_the_screen(browse, document, width):
    probe = (
        "<script>addEventListener('load',()=>{document.title="
        "JSON.stringify([document.documentElement.scrollWidth,innerWidth])})</script>"
    )
    text = html.render(document("violated"))
    # The policy would refuse the measuring script, so this copy has none.
    text = re.sub(r"<meta http-equiv[^>]*>", "", text).replace("</body>", probe)
    dom, _ = browse(text, "", f"--window-size={width},800")
    wide, screen = json.loads(re.search(r"<title>(\[.*?\])</title>", dom)[1])
    assert wide <= screen


def _themes():
    blocks = re.findall(r":root \{([^}]*)\}", CSS)
    light = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{3,6})", blocks[0]))
    dark = {**light, **dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{3,6})", blocks[1]))}
    return {"light": light, "dark": dark}


def _luminance(colour):
    digits = colour[1:]
    if len(digits) == 3:
        digits = "".join(d * 2 for d in digits)
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    red, green, blue = (
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    bright, dim = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    ("ink", "paper"),
    [
        pytest.param(ink, paper, id=f"{ink}-on-{paper}")
        for ink, paper in [
            *((ink, "paper") for ink in ("ink", "soft", "good", "bad", "ask", "link")),
            *(("ink", wash) for wash in ("wash", "good-wash", "bad-wash", "ask-wash")),
            ("soft", "wash"),
            ("good", "good-wash"),
            ("bad", "bad-wash"),
            ("ask", "ask-wash"),
        ]
    ],
)
def test_text_has_the_contrast_that_wcag_asks_for(theme, ink, paper):
    colours = _themes()[theme]
    assert contrast(colours[ink], colours[paper]) >= 4.5
