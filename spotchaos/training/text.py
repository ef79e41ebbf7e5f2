"""Text to train on, found on every machine: sources of Python's own standard library."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

VOCABULARY = 128  # ASCII; anything else becomes '?'
SOURCES = ("this", "textwrap", "argparse")


class Windows(Dataset[Any]):  # type: ignore[misc]  # torch is untyped here
    """Windows of a text; sample i is (characters, the character after each of them).

    Args:
        samples: how many windows.
        width: characters in one.
        skip: windows at the beginning that belong to somebody else.
    """

    def __init__(self, samples: int = 320, width: int = 32, *, skip: int = 0) -> None:
        text = "".join(_source(name) for name in SOURCES)
        wanted = (skip + samples) * width + 1
        while len(text) < wanted:  # a standard library smaller than ours
            text += text
        codes = text[skip * width : wanted].encode("ascii", "replace")
        self._codes = torch.frombuffer(bytearray(codes), dtype=torch.uint8).long()
        self._samples = samples
        self._width = width

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = index * self._width
        window = self._codes[start : start + self._width + 1]
        return window[:-1], window[1:]


def _source(module: str) -> str:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return ""
    return Path(spec.origin).read_text(encoding="utf-8")
