"""README and pages are whole: commands, links, navigation, reference, translations."""

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from spotchaos.config.options import BY_NAME, options_of, read_option
from spotchaos.config.plan import MANY, Plan
from spotchaos.findings import FINDINGS, NOTES
from spotchaos.report import formats
from spotchaos.trace.format import SITES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md"))
EVERY = ["README.md", "README.ko.md", *(f"docs/{page}" for page in PAGES)]
MARKS = ("<!-- run-command -->", "<!-- test-command -->")


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def generator():
    path = DOCS / "generate_reference.py"
    spec = importlib.util.spec_from_file_location("generate_reference", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_is_that_of_the_code(generator):
    hint = "python docs/generate_reference.py writes it anew"
    pages = generator.generate()
    there = {p.name: p.read_text() for p in (DOCS / "reference").glob("*.md")}
    assert there == pages, hint


def test_the_reference_has_every_option_site_and_finding(generator):
    pages = generator.generate()
    assert all(f"`--{name}" in pages["options.md"] for name in BY_NAME)
    assert all(f"| `{site}` |" in pages["sites.md"] for site in SITES)
    assert all(f"\n### {n}\n" in pages["findings.md"] for n in (*FINDINGS, *NOTES))


def _navigation(entries):
    for entry in entries:
        (value,) = entry.values()
        if isinstance(value, list):
            yield from _navigation(value)
        else:
            yield value


def test_every_page_is_in_the_navigation_once():
    settings = yaml.safe_load(read("mkdocs.yml"))
    assert sorted(_navigation(settings["nav"])) == PAGES


def test_the_site_builds_with_warnings_as_errors(tmp_path):
    pytest.importorskip("material", reason="the extra `docs` is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "ko" / "tutorial" / "index.html").exists()


@pytest.mark.parametrize("path", EVERY)
def test_every_link_within_the_repository_leads_somewhere(path):
    folder = (ROOT / path).parent
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", read(path)):
        if "://" not in target:
            assert (folder / target).exists(), target


def _commands(path):
    for block in re.findall(r"```(?:sh|bash)\n(.*?)```", read(path), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith(("spotchaos run", "spotchaos explore")):
                yield line


@pytest.mark.parametrize("path", EVERY)
def test_every_command_that_is_shown_can_be_asked_for(path):
    for line in _commands(path):
        words = shlex.split(line, comments=True)
        known = {option.name: option for option in options_of(words[1])}
        words = words[2 : words.index("--")]
        while words:
            option = known[words.pop(0).removeprefix("--")]
            if option.metavar is not None:
                value = read_option(option, words.pop(0))
                if option.name == "kill-at":
                    assert value[0] in MANY or Plan.parse(value[0])


def test_the_readme_opens_with_its_two_commands():
    for path in ("README.md", "README.ko.md"):
        text = read(path)
        blocks = re.findall(r"(<!-- [a-z-]+ -->)\n```sh\n(.*?)\n```", text, re.DOTALL)
        assert tuple(mark for mark, _ in blocks) == MARKS
        assert all("\n" not in command for _, command in blocks)
        first = text.index("```")
        assert text.rindex(MARKS[0], 0, first) < first
    assert re.findall(r"-->\n```sh\n(.*?)\n", read("README.md")) == re.findall(
        r"-->\n```sh\n(.*?)\n", read("README.ko.md")
    )


def test_the_readme_fits_on_three_screens():
    assert len(read("README.md").splitlines()) < 150


def test_the_readme_names_only_findings_formats_and_tables_that_exist():
    text = read("README.md")
    for name in re.findall(r'finding = "([a-z-]+)"', text):
        assert name in FINDINGS
    assert all(f"`--{name}`" in text for name in formats.FORMATS)
    for layer in re.findall(r"`([a-z_]+/)[A-Z]", text):
        assert (ROOT / "spotchaos" / layer).exists() or layer == "scenarios/"


@pytest.mark.parametrize("path", ["README.ko.md", "docs/ko/tutorial.md"])
def test_a_translation_is_in_korean(path):
    prose = re.sub(r"```.*?```", "", read(path), flags=re.DOTALL)
    assert len(re.findall(r"[가-힣]", prose)) > 400


def test_every_file_that_the_architecture_names_is_there():
    names = re.findall(r"`([a-z_/]+\.py|[a-z_]+/)`", read("docs/architecture.md"))
    package = ROOT / "spotchaos"
    files = {path.name for path in package.rglob("*.py")}
    assert names
    lost = [n for n in names if not (package / n).exists() and n not in files]
    assert not lost
