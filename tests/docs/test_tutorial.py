"""The tutorial is carried out as a reader does it, and its screens are the real ones."""

import itertools
import os
import re
import shlex
import subprocess
import sys

import pytest

PAGE = "docs/tutorial.md"


def test_every_change_fits_and_every_version_is_a_program(reading):
    versions = reading.versions_of(PAGE)
    assert len(versions) == 4
    for text in versions:
        compile(text, "train.py", "exec")
    assert "os.replace" in versions[-1]
    assert "os.replace" not in versions[-2]
    assert "rng" not in versions[0]


def test_each_command_is_followed_by_its_screen(reading):
    blocks = reading.blocks_of(PAGE)
    for block, after in itertools.pairwise(blocks):
        if block.mark == "run":
            assert after.text.startswith(("HELD", "VIOLATED"))


def test_the_korean_tutorial_has_the_same_blocks(reading):
    assert reading.blocks_of("docs/ko/tutorial.md") == reading.blocks_of(PAGE)


def spotchaos(line, folder, reading):
    """Carry out one line of the tutorial."""
    words = shlex.split(line)
    assert words[0] == "spotchaos"
    environment = {**os.environ, "PYTHONPATH": str(reading.ROOT)}
    environment["PATH"] = f"{os.path.dirname(sys.executable)}:{environment['PATH']}"
    return subprocess.run(
        [sys.executable, "-m", "spotchaos", *words[1:]],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def findings_in(screen):
    return re.findall(r"^  ([a-z-]+)  trials? ", screen, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_tutorial_ends_as_it_says(reading, tmp_path):
    blocks = reading.blocks_of(PAGE)
    program = tmp_path / "train.py"
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        if block.mark == "file":
            program.write_text(block.text)
        elif block.mark == "change":
            program.write_text(reading.changed(program.read_text(), block.text))
        elif block.mark == "run":
            done = spotchaos(block.text, tmp_path, reading)
            first = after.text.splitlines()[0]
            assert first in done.stdout, done.stdout + done.stderr
            assert findings_in(done.stdout) == findings_in(after.text)
            assert done.returncode == (0 if first.startswith("HELD") else 1)
    assert [p.name for p in tmp_path.iterdir()] == ["train.py"]
