"""Options from a file: `spotchaos.toml`, or `[tool.spotchaos]` of `pyproject.toml`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from spotchaos.errors import UsageError
from spotchaos.options import BY_NAME, OPTIONS, read_option, unknown_option

FILES = ("spotchaos.toml", "pyproject.toml")


def read_config(folder: Path) -> dict[str, Any]:
    """Return the values that the files of `folder` give, by option name.

    `spotchaos.toml` wins over `pyproject.toml`; only one of them is read.

    Raises:
        UsageError: a file is no TOML, or has an unknown key or a bad value; the message
            names file and line.
    """
    for name in FILES:
        path = folder / name
        if not path.is_file():
            continue
        text, table = _load(path)
        if name == "pyproject.toml":
            tool = table.get("tool", {})
            if "spotchaos" not in tool:
                continue
            table = tool["spotchaos"]
        return _read_table(table, path=path, text=text)
    return {}


def _load(path: Path) -> tuple[str, dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
        return text, tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path.name} is no TOML: {error}") from None
    except OSError as error:
        raise UsageError(f"cannot read {path.name}: {error.strerror}") from None


def _read_table(table: Any, *, path: Path, text: str) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise UsageError(
            f"tool.spotchaos in {path.name} is no table",
            hint="write [tool.spotchaos] on a line of its own",
        )
    values = {}
    for key, given in table.items():
        place = f"{path.name}, line {_line_of(key, text, path.name)}"
        option = BY_NAME.get(key)
        if option is None:
            raise unknown_option(key, OPTIONS, place=place)
        values[key] = read_option(option, given, place=place)
    return values


def _line_of(key: str, text: str, file: str) -> int:
    """Find the line of a key; tomllib keeps none."""
    lines = text.splitlines()
    start = 0
    if file == "pyproject.toml":
        for number, line in enumerate(lines):
            if re.match(r"\s*\[\s*tool\s*\.\s*[\"']?spotchaos", line):
                start = number
                break
    pattern = re.compile(
        rf"\s*(\[+[^\]]*\b)?(tool\.spotchaos\.)?[\"']?{re.escape(key)}[\"']?\s*[=.\]]"
    )
    for number, line in enumerate(lines[start:], start=start + 1):
        if pattern.match(line):
            return number
    return start + 1
