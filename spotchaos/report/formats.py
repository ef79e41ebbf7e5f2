"""The table of formats, and the writing of reports into the files that were asked for."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotchaos.errors import UsageError

Document = Mapping[str, Any]
Render = Callable[[Document], str]


@dataclass(frozen=True, slots=True)
class Format:
    """One way to show a report; `module` has a function `render` of the document."""

    name: str  # as the option is called
    module: str
    summary: str

    @property
    def render(self) -> Render:
        found: Render = importlib.import_module(self.module).render
        return found


FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("json", "spotchaos.report.formats", "the report itself, schema 1"),
        Format("junit", "spotchaos.report.junit", "a test suite for CI systems"),
        Format("sarif", "spotchaos.report.sarif", "results for code scanning"),
        Format("html", "spotchaos.report.html", "one self-contained page"),
    )
}


def render(document: Document) -> str:
    """Return the report as JSON; numbers that JSON lacks become null."""
    return json.dumps(_finite(document), indent=1, ensure_ascii=True) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value)


def check_writable(path: Path) -> None:
    """Make sure that a report can be written, before hours are spent on it.

    Raises:
        UsageError: the folder is not there or refuses, or the path is a folder.
    """
    real = path.resolve()  # of a link that leads nowhere yet, what is made goes again
    existed = real.exists()
    try:
        with real.open("a", encoding="utf-8"):
            pass
        if not existed:
            real.unlink()
    except OSError as error:
        raise UsageError(
            f"cannot write {str(path)!r}: {error.strerror}",
            hint="name a file in a folder that exists and can be written",
        ) from None


def write_reports(document: Document, paths: Mapping[str, Path]) -> list[str]:
    """Write each format that was asked for; one that fails does not spoil the others.

    Returns:
        A sentence for each that could not be written.
    """
    failed: list[str] = []
    for name, path in paths.items():
        try:
            text = FORMATS[name].render(document)
            path.write_text(text, encoding="utf-8", errors="replace")
        except OSError as error:
            failed.append(f"could not write {str(path)!r}: {error.strerror}")
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            failed.append(f"could not make {str(path)!r}: {said}")
    return failed
