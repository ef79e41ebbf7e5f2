"""The table of specimens, and one campaign for each: what was expected, what was found."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spotchaos.campaign.campaign import Layer, run
from spotchaos.config.options import BY_NAME, make_settings, read_option
from spotchaos.errors import ScenarioError, closest
from spotchaos.events import Event, Outcome
from spotchaos.explore.exploration import explore
from spotchaos.model import Finding, Verdict
from spotchaos.pytest_support import SPECIMENS
from spotchaos.pytest_support.scenario_file import Expect

# Three steps after a save in the middle of an epoch: what most flaws show themselves at.
PLAN = "step-end:13"
COMMAND = "{python} {specimen}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Specimen:
    """One row of the table: a mutant and its twin, or a correct program alone."""

    name: str
    finding: str | None = None  # None: a correct program that looks flawed
    verdict: Verdict = Verdict.VIOLATED  # of the mutant
    also: tuple[str, ...] = ()
    twin_also: tuple[str, ...] = ()  # wrong, and known: what is said of the twin
    component: str | None = None
    step: int | None = None
    line: str | None = None  # a part of the source line that the finding points to
    plan: str = PLAN
    explore: bool = False  # instead of a plan: every state that a crash could leave
    ranks: int | None = None
    command: str = COMMAND
    options: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    existing: str | None = (
        None  # "finished", or the command of a run before in the folder
    )
    shown_by: tuple[str, ...] = ()
    fresh: bool = False  # its first run must be a fresh process
    slow: bool = False

    @property
    def mutant(self) -> Path | None:
        return SPECIMENS / "mutants" / f"{self.name}.py" if self.finding else None

    @property
    def mended(self) -> Path:
        return SPECIMENS / "mended" / f"{self.name}.py"

    def expected_of_mutant(self) -> Expect:
        """Return what must come out for the mutant; other findings are checked apart."""
        assert self.finding is not None
        return Expect(verdict=self.verdict, findings=(self.finding,))


def read_table(path: Path = SPECIMENS / "TABLE.toml") -> dict[str, Specimen]:
    """Return the table, by name, in its order.

    Raises:
        ScenarioError: a key is unknown.
    """
    known = [f.replace("_", "-") for f in Specimen.__slots__ if f != "name"]
    table: dict[str, Specimen] = {}
    for name, row in tomllib.loads(path.read_text(encoding="utf-8")).items():
        values: dict[str, Any] = {}
        for key, value in row.items():
            if key not in known:
                raise ScenarioError(
                    f"{path.name}: unknown key {key!r} of {name!r}",
                    hint=closest(key, known),
                )
            values[key.replace("-", "_")] = (
                tuple(value) if isinstance(value, list) else value
            )
        if "verdict" in values:
            values["verdict"] = Verdict(values["verdict"])
        table[name] = Specimen(name=name, **values)
    return table


def try_program(
    specimen: Specimen,
    program: Path,
    *,
    folder: Path,
    layer: Layer | None = None,
    **options: Any,
) -> Outcome:
    """Carry out the campaign of a specimen on one of its programs.

    Args:
        specimen: the row of the table.
        program: the mutant or the twin.
        folder: an empty working folder.
        layer: lays the groundwork, if it is to be shared.
        options: over those of the row, by name with underscores.

    Raises:
        KeyboardInterrupt: Ctrl-C ended it.
    """
    values: dict[str, Any] = {} if specimen.explore else {"kill-at": (specimen.plan,)}
    if specimen.ranks is not None:
        values["ranks"] = specimen.ranks
    given = {
        **specimen.options,
        **{name.replace("_", "-"): value for name, value in options.items()},
    }
    for name, value in given.items():
        if isinstance(value, str):
            value = _filled(value, program)
        values[name] = read_option(BY_NAME[name], value)
    command = tuple(_filled(word, program) for word in specimen.command.split())
    if specimen.existing is not None:
        words = (
            specimen.existing if specimen.existing != "finished" else specimen.command
        )
        earlier = [_filled(word, program) for word in words.split()]
        subprocess.run(earlier, cwd=folder, check=True, capture_output=True)
    settings = make_settings(values, command=command, folder=folder)
    carry_out = explore if specimen.explore and "kill-at" not in values else run
    outcome = carry_out(settings, _ignore, layer=None if specimen.fresh else layer)
    if outcome.interrupted:
        raise KeyboardInterrupt
    return outcome


def unmet_by_mutant(specimen: Specimen, outcome: Outcome) -> list[str]:
    """Return a sentence for everything that is not said of the mutant as it should be."""
    said = specimen.expected_of_mutant().unmet(outcome)
    found = [f for f in all_findings(outcome) if f.name == specimen.finding]
    allowed = {specimen.finding, *specimen.also}
    said += [
        f"did not expect the finding {f.name}: {f.message}"
        for f in all_findings(outcome)
        if f.name not in allowed
    ]
    if specimen.line is not None and found:
        lines = [_line_of(f, specimen.mutant) for f in found]
        if not any(specimen.line in line for line in lines):
            said.append(f"expected the line with {specimen.line!r}, found {lines}")
    for name in ("component", "step"):
        wanted = getattr(specimen, name)
        actual = [getattr(f, name) for f in found]
        if wanted is not None and found and wanted not in actual:
            said.append(f"expected the {name} {wanted!r}, found {actual}")
    return said


def unmet_by_twin(specimen: Specimen, outcome: Outcome) -> list[str]:
    """Return a sentence for everything that is said against a correct program."""
    said = Expect(verdict=Verdict.HELD, notes=specimen.notes).unmet(outcome)
    if outcome.trouble:
        said.append(outcome.trouble)
    return said + [
        f"{f.name}: {f.message}"
        for f in all_findings(outcome)
        if f.name not in specimen.twin_also
    ]


def all_findings(outcome: Outcome) -> Iterator[Finding]:
    """Yield the findings of all trials."""
    for _, judgement in outcome.trials:
        yield from judgement.findings


def _line_of(finding: Finding, program: Path | None) -> str:
    """Return the line of a program to which a finding points; empty if to none."""
    place = finding.where or {}
    if program is None or Path(str(place.get("file"))).name != program.name:
        return ""
    return program.read_text(encoding="utf-8").splitlines()[int(place["line"]) - 1]


def _filled(text: str, program: Path) -> str:
    return text.replace("{specimen}", str(program)).replace("{python}", sys.executable)


def _ignore(event: Event) -> None:
    """The outcome says everything."""
