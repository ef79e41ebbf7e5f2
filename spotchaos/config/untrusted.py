"""Files and words that anybody may have written: read within bounds, checked by type.

What is damaged or hostile is an error that names the place, never a traceback: a report,
a replay token, a configuration, a scenario. Reading costs time and memory in proportion
to a size that is bounded before anything is read.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec

from spotchaos.errors import UsageError, shortened

T = TypeVar("T")

# A table of options or a scenario is written by hand; pyproject.toml by many hands.
MOST_TOML_BYTES = 4 << 20
# Nothing of ours is nested as deeply, and every reader walks by recursion.
MOST_LEVELS = 40
# ... nor counts as far; a longer number cannot even be printed.
MOST_BITS = 128


def read_bounded(path: Path, *, most_bytes: int) -> bytes | None:
    """Return the bytes of a file; None if there are more than `most_bytes`.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:  # a device has no size, so it is not asked for one
        content = file.read(most_bytes + 1)
    return None if len(content) > most_bytes else content


def parse_json(raw: bytes, *, what: str, error: type[UsageError], hint: str) -> Any:
    """Return the value of a JSON text.

    Args:
        raw: the text.
        what: the thing it stands for, for the message.
        error: raised if it is damaged.
        hint: what the reader can do then.

    Raises:
        UsageError: of the class `error`.
    """

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"it holds {constant}, which JSON lacks")

    try:
        value = json.loads(raw.decode("utf-8"), parse_constant=refuse)
    except json.JSONDecodeError as wrong:
        place = f"line {wrong.lineno}, column {wrong.colno}"
        raise error(f"{what} is damaged: it is no JSON at {place}", hint=hint) from None
    except UnicodeDecodeError as wrong:
        raise error(
            f"{what} is damaged: it is no JSON, nor text, at byte {wrong.start}",
            hint=hint,
        ) from None
    except RecursionError:
        raise error(
            f"{what} is damaged: it is no JSON that can be read, too deeply nested",
            hint=hint,
        ) from None
    except ValueError as wrong:  # a number of thousands of digits, or NaN
        said = str(wrong).partition(";")[0]
        raise error(f"{what} is damaged: {said}", hint=hint) from None
    _demand_plain(value, what=what, error=error, hint=hint)
    return value


def check(
    value: Any, kind: type[T], *, what: str, error: type[UsageError], hint: str
) -> T:
    """Return `value` as the type that its reader relies on.

    Raises:
        UsageError: of the class `error`, with the place of the first thing that is
            missing or of another type.
    """
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, ValueError, RecursionError) as wrong:
        # A name with half a character in it fails as it is encoded, which says no place.
        said, _, place = str(wrong).partition(" - at ")
        at = f" at {shortened(place.strip('`'), 80)}" if place else ""
        raise error(
            f"{what} is damaged{at}: {shortened(said, 120)}", hint=hint
        ) from None


def _demand_plain(value: Any, *, what: str, error: type[UsageError], hint: str) -> None:
    level = 0
    layer: list[Any] = [[value]]
    while layer:
        level += 1
        if level > MOST_LEVELS:
            raise error(
                f"{what} is damaged: it is nested more than {MOST_LEVELS} deep",
                hint=hint,
            )
        inside: list[Any] = []
        for each in layer:
            inside += each.values() if isinstance(each, dict) else each
        if any(isinstance(v, int) and v.bit_length() > MOST_BITS for v in inside):
            raise error(
                f"{what} is damaged: a number has more than {MOST_BITS} bits", hint=hint
            )
        layer = [inner for inner in inside if isinstance(inner, dict | list)]


def read_toml(path: Path, *, error: type[UsageError]) -> tuple[str, dict[str, Any]]:
    """Return the text of a TOML file, and its table.

    Raises:
        UsageError: of the class `error`: it cannot be read, is too large, or is no TOML.
    """
    name = shortened(path.name, 60)
    try:
        raw = read_bounded(path, most_bytes=MOST_TOML_BYTES)
    except OSError as wrong:
        raise error(f"cannot read {name}: {wrong.strerror}") from None
    if raw is None:
        raise error(
            f"{name} is damaged: larger than {MOST_TOML_BYTES >> 20} MiB",
            hint="a file of options is written by hand",
        )
    hint = "mend it at the place that is named"
    try:
        text = raw.decode("utf-8")
        table = tomllib.loads(text)
    except RecursionError:
        raise error(f"{name} is damaged: too deeply nested", hint=hint) from None
    except UnicodeDecodeError as wrong:
        raise error(
            f"{name} is no TOML, or damaged: no text at byte {wrong.start}",
            hint=hint,
        ) from None
    except ValueError as wrong:
        said = shortened(str(wrong), 120)
        raise error(f"{name} is no TOML, or damaged: {said}", hint=hint) from None
    _demand_plain(table, what=name, error=error, hint=hint)
    return text, table
