"""Scenario files: one sentence, a program, what happens to it, and what must come out.

A scenario is data. It is read here, carried out by the campaign, and collected by the
pytest plugin; an unknown key is an error at its file and line, never a silent pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spotchaos.config.options import BY_NAME, OPTIONS, read_option
from spotchaos.config.untrusted import read_toml
from spotchaos.errors import ScenarioError, UsageError, closest
from spotchaos.events import Outcome
from spotchaos.findings import FINDINGS, NOTES, PROMISES
from spotchaos.model import Verdict
from spotchaos.trace.format import COMPONENTS

OWN_KEYS = ("summary", "command", "specimen", "slow", "expect")
EXPECT_KEYS = (
    "verdict",
    "findings",
    "any-of",
    "none-of",
    "notes",
    "restored",
    "promise",
)


@dataclass(frozen=True, slots=True)
class Expect:
    """What must come out; an empty field expects nothing."""

    verdict: Verdict | None = None
    findings: tuple[str, ...] = ()  # all of them
    any_of: tuple[str, ...] = ()
    none_of: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    restored: Mapping[str, int | str] = field(default_factory=dict)
    promise: str | None = None  # the strongest that holds

    def unmet(self, outcome: Outcome) -> list[str]:
        """Return a sentence for each expectation that the outcome does not meet."""
        found = {name for name, _ in outcome.findings}
        noted = {name for name, _ in outcome.notes}
        said = []
        if self.verdict is None and outcome.verdict is Verdict.UNKNOWN:
            # A run that proved nothing meets no expectation that does not say so.
            said.append(f"nothing was proved: {outcome.trouble or ', '.join(found)}")
        elif self.verdict is not None and outcome.verdict is not self.verdict:
            said.append(
                f"expected the verdict {self.verdict}, found {outcome.verdict}"
                + (f" ({', '.join(sorted(found))})" if found else "")
            )
        said += [f"expected the finding {n}" for n in self.findings if n not in found]
        if self.any_of and not found & set(self.any_of):
            said.append(f"expected one of the findings {', '.join(self.any_of)}")
        said += [f"did not expect the finding {n}" for n in self.none_of if n in found]
        said += [f"expected the note {n}" for n in self.notes if n not in noted]
        if self.promise is not None and outcome.holds_up_to != self.promise:
            said.append(
                f"expected it to hold up to {self.promise!r}, it holds up to"
                f" {outcome.holds_up_to!r}"
            )
        return said + self._unmet_restored(outcome)

    def _unmet_restored(self, outcome: Outcome) -> list[str]:
        if not self.restored:
            return []
        resumes = [r for _, judgement in outcome.trials for r in judgement.resumes]
        if not resumes:
            return ["expected a resume, there was none"]
        first = resumes[0].restored
        actual = first[min(first)] if first else {}
        return [
            f"expected {name} restored from {wanted!r}, found {actual.get(name)!r}"
            for name, wanted in self.restored.items()
            if actual.get(name) != wanted
        ]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One file: the claim, the program, the options and the expectation."""

    path: Path
    summary: str
    command: tuple[str, ...] | None
    specimen: str | None
    options: Mapping[str, Any]
    expect: Expect
    slow: bool = False
    lines: Mapping[str, int] = field(default_factory=dict)  # key -> its line

    def place(self, key: str) -> str:
        """Return file and line of a key; its first line, if it is not there."""
        return f"{self.path.name}, line {self.lines.get(key, 1)}"

    def place_of(self, message: str) -> str:
        """Return file and line of the key that an error's message is about."""
        named = [key for key in self.lines if f"--{key} " in message]
        quoted = [key for key in self.lines if _mentions(message, self.options, key)]
        return self.place(next(iter([*named, *quoted, "command"])))


def _mentions(message: str, options: Mapping[str, Any], key: str) -> bool:
    value = options.get(key)
    values = value if isinstance(value, tuple | list) else (value,)
    return any(isinstance(v, str) and f"'{v}'" in message for v in values)


def read_scenario(path: Path) -> Scenario:
    """Read one scenario file.

    Raises:
        ScenarioError: it is no TOML, has an unknown key or value, or expects what
            cannot be; the message names file and line.
    """
    text, table = read_toml(path, error=ScenarioError)
    return _Reader(path, text).scenario(table)


class _Reader:
    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._lines = text.splitlines()

    def scenario(self, table: Mapping[str, Any]) -> Scenario:
        known = (*OWN_KEYS, *(option.name for option in OPTIONS))
        options = {}
        for key, value in table.items():
            if key not in known:
                raise self._error(key, f"unknown key {key!r}", closest(key, known))
            if key in BY_NAME and key not in OWN_KEYS:
                options[key] = self._option(key, value)
        summary = table.get("summary")
        if not isinstance(summary, str) or not summary.strip():
            raise self._error("summary", "no summary", "say in one sentence what holds")
        command, specimen = table.get("command"), table.get("specimen")
        if command is not None and specimen is not None:
            raise self._error(
                "specimen", "both a command and a specimen", "name one program"
            )
        return Scenario(
            path=self._path,
            summary=summary.strip(),
            command=self._words("command", command),
            specimen=self._text("specimen", specimen),
            options=options,
            expect=self._expect(table.get("expect")),
            slow=self._flag("slow", table.get("slow", False)),
            lines={key: self._line(key) for key in table},
        )

    def _option(self, key: str, value: Any) -> Any:
        try:
            return read_option(BY_NAME[key], value, place=self._place(key))
        except UsageError as error:
            raise ScenarioError(error.message, hint=error.hint) from None

    def _expect(self, table: Any) -> Expect:
        if not isinstance(table, dict) or not table:
            raise self._error(
                "expect", "no [expect] table", 'write [expect] and verdict = "held"'
            )
        for key in table:
            if key not in EXPECT_KEYS:
                hint = closest(key, EXPECT_KEYS)
                raise self._error(key, f"unknown key {key!r} in [expect]", hint)
        expect = Expect(
            verdict=self._verdict(table.get("verdict")),
            findings=self._names("findings", table, FINDINGS),
            any_of=self._names("any-of", table, FINDINGS),
            none_of=self._names("none-of", table, FINDINGS),
            notes=self._names("notes", table, NOTES),
            restored=self._restored(table.get("restored", {})),
            promise=self._one("promise", table.get("promise"), PROMISES),
        )
        both = set(expect.findings) & set(expect.none_of)
        if both:
            raise self._error("none-of", f"{min(both)!r} is both wanted and excluded")
        if expect.verdict is Verdict.HELD and (expect.findings or expect.any_of):
            raise self._error(
                "findings", "a run that held has no findings", "expect another verdict"
            )
        return expect

    def _verdict(self, value: Any) -> Verdict | None:
        text = self._one("verdict", value, tuple(Verdict))
        return None if text is None else Verdict(text)

    def _one(self, key: str, value: Any, known: Iterable[str]) -> str | None:
        if value is None:
            return None
        if not isinstance(value, str) or value not in tuple(known):
            hint = closest(str(value), known) or f"choose one of {', '.join(known)}"
            raise self._error(key, f"{key} is {value!r}", hint)
        return str(value)

    def _names(
        self, key: str, table: Mapping[str, Any], known: Mapping[str, Any]
    ) -> tuple[str, ...]:
        value = table.get(key, [])
        if not isinstance(value, list):
            raise self._error(key, f"{key} is no list", f'write {key} = ["..."]')
        for name in value:
            self._one(key, name, tuple(known))
        return tuple(value)

    def _restored(self, value: Any) -> dict[str, int | str]:
        if not isinstance(value, dict):
            raise self._error("restored", "restored is no table")
        for name, step in value.items():
            self._one("restored", name, COMPONENTS)
            whole = isinstance(step, int) and not isinstance(step, bool)
            if not whole and step not in ("fresh", "foreign"):
                raise self._error(
                    "restored",
                    f"{name} restored from {step!r}",
                    "give a step, 'fresh' or 'foreign'",
                )
        return dict(value)

    def _words(self, key: str, value: Any) -> tuple[str, ...] | None:
        if value is None:
            return None
        given = value
        if isinstance(value, str):
            import shlex  # rarely needed: most scenarios name no program

            try:
                value = shlex.split(value)
            except ValueError:  # a quotation that has no end
                value = None
        if (
            not isinstance(value, list)
            or not all(isinstance(word, str) and "\0" not in word for word in value)
            or not (value and value[0].strip())
        ):
            raise self._error(key, f"{key} is {given!r}", "give words, as in a shell")
        return tuple(value)

    def _text(self, key: str, value: Any) -> str | None:
        if value is not None and not isinstance(value, str):
            raise self._error(key, f"{key} is {value!r}", "give a name")
        return value

    def _flag(self, key: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise self._error(key, f"{key} is {value!r}", "write true or false")
        return value

    def _line(self, key: str) -> int:
        pattern = re.compile(rf'\s*\[?\s*"?{re.escape(key)}"?\s*[=\].]')
        found = (n for n, line in enumerate(self._lines, 1) if pattern.match(line))
        return next(found, 1)

    def _place(self, key: str) -> str:
        return f"{self._path.name}, line {self._line(key)}"

    def _error(self, key: str, what: str, hint: str | None = None) -> ScenarioError:
        return ScenarioError(f"{self._place(key)}: {what}", hint=hint)
