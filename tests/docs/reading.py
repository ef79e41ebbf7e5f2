"""Reads a tutorial: its marked blocks in order, and the changes that its diffs make."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

_BLOCK = re.compile(
    r"(?:<!-- (?P<mark>file|change|run) -->\n)?```(?P<kind>\w*)\n(?P<text>.*?)```",
    re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """One fenced block; `mark` says what a reader does with it, "shown" nothing."""

    mark: str
    text: str


def blocks_of(path):
    return [
        Block(found["mark"] or "shown", found["text"])
        for found in _BLOCK.finditer((ROOT / path).read_text(encoding="utf-8"))
    ]


def changed(text, diff):
    """Return a file after the change that a diff block shows; it fits exactly once."""
    lines = diff.splitlines()
    old = "".join(line[1:] + "\n" for line in lines if line[:1] in ("", " ", "-"))
    new = "".join(line[1:] + "\n" for line in lines if line[:1] in ("", " ", "+"))
    assert text.count(old) == 1, f"the diff does not fit once:\n{diff}"
    return text.replace(old, new)


def versions_of(path):
    """Return train.py as it stands at each `run` block, in order."""
    text = ""
    found = []
    for block in blocks_of(path):
        if block.mark == "file":
            text = block.text
        elif block.mark == "change":
            text = changed(text, block.text)
        elif block.mark == "run":
            found.append(text)
    return found
