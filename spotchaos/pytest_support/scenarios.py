"""Scenario files as pytest items: each is a test whose name is its claim."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spotchaos.config.options import make_settings
from spotchaos.errors import ScenarioError, SpotchaosError, closest
from spotchaos.pytest_support import (
    REFERENCE,
    SPECIMENS,
    Report,
    carry_out,
    defaults_of,
    own_command,
    report_folder,
    session_of,
)
from spotchaos.pytest_support.scenario_file import Scenario, read_scenario

_CLAIMS: pytest.StashKey[dict[str, Path]] = pytest.StashKey()


class UnmetError(Exception):
    """A scenario's expectation was not met; carries the screen."""

    def __init__(self, unmet: list[str], report: Report) -> None:
        super().__init__("; ".join(unmet))
        self.unmet = unmet
        self.report = report


class ScenarioFile(pytest.File):
    """One TOML file; it holds one scenario."""

    def collect(self) -> Iterator[pytest.Item]:
        try:
            scenario = read_scenario(self.path)
            if scenario.specimen is not None:
                specimen_path(scenario.specimen, place=scenario.place("specimen"))
            self._demand_own_claim(scenario)
            _demand_settings(scenario)
        except ScenarioError as error:
            raise self.CollectError(str(error)) from None
        name = claim(scenario.summary)
        yield ScenarioItem.from_parent(self, name=name, scenario=scenario)

    def _demand_own_claim(self, scenario: Scenario) -> None:
        claims = self.config.stash.setdefault(_CLAIMS, {})
        other = claims.setdefault(claim(scenario.summary), self.path)
        if other != self.path:
            raise ScenarioError(
                f"{scenario.place('summary')}: {other.name} makes the same claim",
                hint="say in each summary what only this scenario holds",
            )


class ScenarioItem(pytest.Item):
    """One scenario, carried out as a campaign."""

    def __init__(self, *, scenario: Scenario, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scenario = scenario
        if scenario.slow:
            self.add_marker(pytest.mark.slow)
        if self.config.pluginmanager.hasplugin("timeout"):
            # A campaign bounds each of its phases, and a loaded machine is no failure.
            self.add_marker(pytest.mark.timeout(0))

    def runtest(self) -> None:
        scenario = self.scenario
        command, folder = self._program()
        values = {**defaults_of(self.config), **scenario.options}
        if "resume-cmd" in values:
            values["resume-cmd"] = self._filled(values["resume-cmd"])
        report = carry_out(
            make_settings(
                values,
                command=command,
                folder=folder,
                reference_trainer=command == REFERENCE,
            ),
            layer=session_of(self.config).shared_baselines.layer,
            report_folder=report_folder(self.config),
        )
        unmet = scenario.expect.unmet(report.outcome)
        if unmet:
            raise UnmetError(unmet, report)

    def _program(self) -> tuple[tuple[str, ...], Path]:
        scenario = self.scenario
        empty = session_of(self.config).empty
        if scenario.specimen is not None:
            return (sys.executable, str(specimen_path(scenario.specimen))), empty
        if scenario.command is not None:
            return self._filled(scenario.command), self.config.rootpath
        return own_command(self.config) or (REFERENCE, empty)

    def _filled(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """Put in the interpreter that runs pytest, and the specimen of this scenario."""
        specimen = self.scenario.specimen
        path = "" if specimen is None else str(specimen_path(specimen))
        given = {"{python}": sys.executable, "{specimen}": path}
        return tuple(given.get(word, word) for word in words)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException]) -> str:  # type: ignore[override]
        error = excinfo.value
        if isinstance(error, UnmetError):
            said = "\n".join(f"  {sentence}" for sentence in error.unmet)
            place = self._place_of(error.report)
            return f"{place}: {self.scenario.summary}\n{said}\n\n{error.report.screen}"
        if isinstance(error, SpotchaosError):
            return f"{self.scenario.place_of(error.message)}: {error}"
        return str(super().repr_failure(excinfo))

    def _place_of(self, report: Report) -> str:
        """Return file and line of a plan that was never reached, else of what was expected."""
        not_reached = "not-reached" in report.findings
        is_planned = "kill-at" in self.scenario.lines
        return self.scenario.place(
            "kill-at" if not_reached and is_planned else "expect"
        )

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, self.scenario.summary


def _demand_settings(scenario: Scenario) -> None:
    """Raise ScenarioError for options that no campaign can be made of."""
    try:
        make_settings(scenario.options, command=("true",), folder=Path())
    except SpotchaosError as error:
        place = scenario.place_of(error.message)
        raise ScenarioError(f"{place}: {error.message}", hint=error.hint) from None


def claim(summary: str) -> str:
    """Return a summary as the name of a test, without what pytest reads as syntax."""
    text = summary.replace("::", ":").replace("[", "(").replace("]", ")")
    return re.sub(r"\s+", " ", text).strip()


def specimen_path(name: str, *, place: str = "") -> Path:
    """Return the file of a specimen: a mutant's name, or `mended/NAME`.

    Raises:
        ScenarioError: there is none of that name.
    """
    folder = SPECIMENS if "/" in name else SPECIMENS / "mutants"
    path = folder / f"{name}.py"
    if not path.is_file():
        known = [p.stem for p in (SPECIMENS / "mutants").glob("*.py")]
        known += [f"mended/{p.stem}" for p in (SPECIMENS / "mended").glob("*.py")]
        raise ScenarioError(
            f"{place}: there is no specimen {name!r}".removeprefix(": "),
            hint=closest(name, known) or "`spotchaos specimens` lists them",
        )
    return path
