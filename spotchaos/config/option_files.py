"""Options and known findings from a file: `spotchaos.toml`, or `[tool.spotchaos]`."""

from __future__ import annotations

import re
from datetime import date, datetime
from pathlib import Path
from typing import Any

from spotchaos.config.options import BY_NAME, OPTIONS, read_option, unknown_option
from spotchaos.config.settings import Known
from spotchaos.config.untrusted import read_toml
from spotchaos.errors import UsageError, closest

FILES = ("spotchaos.toml", "pyproject.toml")
KNOWN = "known"  # the list of known findings, the one key that is no option
_KEYS_OF_KNOWN = ("finding", "reason", "until")


def read_config(folder: Path) -> dict[str, Any]:
    """Return the values that the files of `folder` give, by option name.

    `spotchaos.toml` wins over `pyproject.toml`; only one of them is read.

    Raises:
        UsageError: a file is no TOML, or has an unknown key or a bad value; the message
            names file and line.
    """
    found = _find_table(folder)
    if found is None:
        return {}
    path, text, table = found
    values = {}
    for key, given in table.items():
        if key == KNOWN:
            continue
        place = f"{path.name}, line {_line_of(key, text, path.name)}"
        option = BY_NAME.get(key)
        if option is None:
            raise unknown_option(key, OPTIONS, place=place)
        values[key] = read_option(option, given, place=place)
        _demand_inside(values[key], path.parent, key=key, place=place)
    return values


def _demand_inside(value: Any, folder: Path, *, key: str, place: str) -> None:
    """Refuse a file of ours outside the folder: a repository may be of anybody."""
    if not isinstance(value, Path):
        return
    if not (folder / value).resolve().is_relative_to(folder.resolve()):
        raise UsageError(
            f"{key!r} in {place} is {str(value)!r}, which lies outside its folder",
            hint=f"name a file below it, or give --{key} on the command line",
        )


def read_known(folder: Path) -> tuple[Known, ...]:
    """Return the known findings that the files of `folder` list.

    Raises:
        UsageError: an entry lacks a key, has an unknown one or a bad value; the message
            names the file.
    """
    found = _find_table(folder)
    if found is None:
        return ()
    path, _, table = found
    entries = table.get(KNOWN, [])
    if not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
        raise UsageError(
            f"'known' in {path.name} is no list of tables", hint=_example(path.name)
        )
    return tuple(
        _read_entry(
            entry, place=f"known finding {number} in {path.name}", file=path.name
        )
        for number, entry in enumerate(entries, 1)
    )


def _read_entry(entry: dict[str, Any], *, place: str, file: str) -> Known:
    for key in entry:
        if key not in _KEYS_OF_KNOWN:
            raise UsageError(
                f"unknown key {key!r} of {place}",
                hint=closest(key, _KEYS_OF_KNOWN) or _example(file),
            )
    for key in _KEYS_OF_KNOWN:
        if key not in entry:
            raise UsageError(f"{place} has no {key!r}", hint=_example(file))
    finding, reason, until = (entry[key] for key in _KEYS_OF_KNOWN)
    if not isinstance(finding, str) or not isinstance(reason, str):
        raise UsageError(
            f"'finding' and 'reason' of {place} are texts", hint=_example(file)
        )
    return Known(finding=finding, reason=reason, until=_day(until, place=place))


def _day(given: Any, *, place: str) -> date:
    if isinstance(given, date) and not isinstance(given, datetime):
        return given
    try:
        return date.fromisoformat(given)
    except (TypeError, ValueError):
        raise UsageError(
            f"'until' of {place} is {given!r}",
            hint="write the last day on which it may stay: until = 2027-01-31",
        ) from None


def _example(file: str) -> str:
    heading = "known" if file == "spotchaos.toml" else "tool.spotchaos.known"
    return (
        f"write [[{heading}]], then finding = 'rng-not-restored', reason = '...',"
        " until = 2027-01-31"
    )


def _find_table(folder: Path) -> tuple[Path, str, dict[str, Any]] | None:
    """Return the file that counts, its text and the table of options in it."""
    for name in FILES:
        path = folder / name
        if not path.is_file():
            continue
        text, table = read_toml(path, error=UsageError)
        if name == "pyproject.toml":
            tool = table.get("tool", {})
            if not isinstance(tool, dict):
                raise UsageError(f"'tool' in {path.name} is no table")
            if "spotchaos" not in tool:
                continue
            table = tool["spotchaos"]
        if not isinstance(table, dict):
            raise UsageError(
                f"tool.spotchaos in {path.name} is no table",
                hint="write [tool.spotchaos] on a line of its own",
            )
        return path, text, table
    return None


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
