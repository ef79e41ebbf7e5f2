"""Scenario files as pytest items: each is a test whose name is its claim."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import spotchaos
from spotchaos.errors import ScenarioError, SpotchaosError
from spotchaos.harness import (
    REFERENCE,
    Report,
    carry_out,
    defaults_of,
    own_command,
    report_folder,
)
from spotchaos.options import make_settings
from spotchaos.scenario import Scenario, read_scenario

SPECIMENS = Path(spotchaos.__file__).parent / "specimens"


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
        except ScenarioError as error:
            raise self.CollectError(str(error)) from None
        name = scenario.summary.replace("::", ":")
        yield ScenarioItem.from_parent(self, name=name, scenario=scenario)


class ScenarioItem(pytest.Item):
    """One scenario, carried out as a campaign."""

    def __init__(self, *, scenario: Scenario, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scenario = scenario
        if scenario.slow:
            self.add_marker(pytest.mark.slow)

    def runtest(self) -> None:
        scenario = self.scenario
        factory: pytest.TempPathFactory = self.config._tmp_path_factory  # type: ignore[attr-defined]  # noqa: SLF001 - items have no fixtures
        private = factory.mktemp("scenario")
        command, folder = self._program(private)
        values = {**defaults_of(self.config), **scenario.options}
        settings = make_settings(values, command=command, folder=folder)
        report = carry_out(settings, report_folder=report_folder(self.config))
        unmet = scenario.expect.unmet(report.outcome)
        if unmet:
            raise UnmetError(unmet, report)

    def _program(self, private: Path) -> tuple[tuple[str, ...], Path]:
        scenario = self.scenario
        if scenario.specimen is not None:
            return (sys.executable, str(specimen_path(scenario.specimen))), private
        if scenario.command is not None:
            return scenario.command, scenario.path.parent
        own = own_command(self.config)
        return own or (REFERENCE, private)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException]) -> str:  # type: ignore[override]
        error = excinfo.value
        if isinstance(error, UnmetError):
            said = "\n".join(f"  {sentence}" for sentence in error.unmet)
            return f"{self.scenario.summary}\n{said}\n\n{error.report.screen}"
        if isinstance(error, SpotchaosError):
            return f"{self.path.name}: {error}"
        return str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, self.scenario.summary


def specimen_path(name: str) -> Path:
    """Return the file of a specimen: a mutant's name, or `mended/NAME`.

    Raises:
        ScenarioError: there is none of that name.
    """
    folder = SPECIMENS if "/" in name else SPECIMENS / "mutants"
    path = folder / f"{name}.py"
    if not path.is_file():
        from spotchaos.errors import closest

        known = [p.stem for p in (SPECIMENS / "mutants").glob("*.py")]
        raise ScenarioError(
            f"there is no specimen {name!r}",
            hint=closest(name, known) or "`spotchaos specimens` lists them",
        )
    return path
