"""What tests use: plans carried out on a command or a callable, and a report object.

This package is the plugin's other half, imported only once a test asks for it.
"""

from __future__ import annotations

import inspect
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from spotchaos.campaign.campaign import Layer, run
from spotchaos.campaign.ending import ENDING, interruptible
from spotchaos.config.options import (
    BY_NAME,
    OPTIONS,
    make_settings,
    read_option,
    unknown_option,
)
from spotchaos.config.settings import Settings
from spotchaos.errors import UsageError
from spotchaos.events import Event, Outcome
from spotchaos.model import Finding, Verdict
from spotchaos.pytest_support.shared_baselines import SharedBaselines
from spotchaos.report.document import make_document
from spotchaos.report.formats import render
from spotchaos.report.screen import plain, screen

# One rank; `ranks` starts more of them, as torchrun would. An epoch has 14 steps then,
# and seven with two ranks.
REFERENCE = (
    *(sys.executable, "-m", "spotchaos.training", "--out", "{out}"),
    *("--ranks", "1", "--steps", "24", "--samples", "112"),
)
CALLING = Path(__file__).parent / "calling.py"
SPECIMENS = Path(__file__).parent.parent / "specimens"


@dataclass(slots=True)
class Session:
    """What all campaigns of one pytest session share.

    `empty` is the working folder of programs of ours, which read nothing from it. A run
    writes into a view of its own, so that it stays empty.
    """

    shared_baselines: SharedBaselines
    empty: Path


_SESSION: pytest.StashKey[Session] = pytest.StashKey()


def session_of(config: pytest.Config) -> Session:
    """Return the session's shared part, made at the first call; pytest closes it."""
    if _SESSION not in config.stash:
        factory: pytest.TempPathFactory = config._tmp_path_factory  # type: ignore[attr-defined]  # noqa: SLF001 - scenario items have no fixtures
        session = Session(
            SharedBaselines(
                ready=[SPECIMENS], ready_modules=["spotchaos.training"], vouches=True
            ),
            factory.mktemp("empty", numbered=True),
        )
        config.stash[_SESSION] = session
        config.add_cleanup(session.shared_baselines.close)
    return config.stash[_SESSION]


@dataclass(frozen=True)
class Report:
    """What a campaign found, as a test asks for it."""

    outcome: Outcome
    screen: str

    @property
    def verdict(self) -> Verdict:
        return self.outcome.verdict

    @property
    def findings(self) -> tuple[str, ...]:
        """Names of findings, the first cause first."""
        return tuple(name for name, _ in self.outcome.findings)

    @property
    def restored(self) -> Mapping[str, int | str]:
        """What the first resume of the first trial restored, on its lowest rank."""
        return first_restored(self.outcome)

    def of(self, name: str) -> tuple[Finding, ...]:
        """Return the findings of one name, with step, rank, component and place."""
        return tuple(
            finding
            for _, judgement in self.outcome.trials
            for finding in judgement.findings
            if finding.name == name
        )

    def held(self) -> bool:
        """Assert that the promise held; the screen is the message if it did not."""
        if self.verdict is not Verdict.HELD:
            pytest.fail(self.screen, pytrace=False)
        return True


class Harness:
    """Carries out plans on a program; the fixture `spotchaos`.

    Args:
        config: pytest's, for the options `--spotchaos-...`.
        folder: the working folder of programs that name none.
        options: from the marker `interrupted`, by option name with underscores.
    """

    def __init__(
        self, config: pytest.Config, *, folder: Path, options: Mapping[str, Any]
    ) -> None:
        self._config = config
        self._folder = folder
        self._options = dict(options)

    def run(
        self,
        program: Sequence[str] | str | Callable[[], object] | None = None,
        *,
        folder: Path | None = None,
        **options: Any,
    ) -> Report:
        """Carry out a campaign.

        Args:
            program: a command line, or a function without arguments at the top of its
                module; None: what `--spotchaos-command` says, else the reference.
            folder: the working folder; a private one if None.
            options: options of `spotchaos run` with underscores, such as
                `kill_at="step-end:7"` or `ranks=2`.

        Raises:
            UsageError: an option is unknown or means nothing.
        """
        command, default_folder = self.command_of(program)
        values = defaults_of(self._config)
        for name, value in {**self._options, **options}.items():
            key = name.replace("_", "-")
            if key not in BY_NAME:
                raise unknown_option(key, OPTIONS, place="the options of a test")
            values[key] = read_option(BY_NAME[key], _plain(value))
        settings = make_settings(
            values,
            command=command,
            folder=folder or default_folder or self._folder,
            reference_trainer=command == REFERENCE,
        )
        return carry_out(
            settings,
            layer=session_of(self._config).shared_baselines.layer,
            report_folder=report_folder(self._config),
        )

    def command_of(
        self, program: Sequence[str] | str | Callable[[], object] | None
    ) -> tuple[tuple[str, ...], Path | None]:
        """Return the command line of a program, and its folder if it has one."""
        if program is None:
            reference = REFERENCE, session_of(self._config).empty
            return own_command(self._config) or reference
        if callable(program):
            return _calling(program), None
        if isinstance(program, str):
            return tuple(shlex.split(program)), None
        return tuple(str(word) for word in program), None


def carry_out(
    settings: Settings,
    *,
    layer: Layer | None = None,
    report_folder: Path | None = None,
) -> Report:
    """Run a campaign quietly and return its report; write its JSON if asked.

    Raises:
        KeyboardInterrupt: Ctrl-C ended it; pytest ends the session then.
    """

    def ignore(event: Event) -> None:
        """A test shows the screen only when it fails."""

    # Only while it runs: the session's other tests may send themselves signals.
    with interruptible():
        outcome = run(settings, ignore, layer=layer)
    if outcome.interrupted or ENDING.pop():
        raise KeyboardInterrupt
    document = make_document(outcome)
    if report_folder is not None:
        _write(report_folder, render(document))
    return Report(outcome, plain(screen(document)))


def first_restored(outcome: Outcome) -> Mapping[str, int | str]:
    """Return what the first resume of the first trial restored, on its lowest rank."""
    for _, judgement in outcome.trials:
        for resume in judgement.resumes:
            if resume.restored:
                return resume.restored[min(resume.restored)]
    return {}


def _write(folder: Path, text: str) -> None:
    """Write a report under the next free number; workers of xdist share the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    number = len(list(folder.glob("*.json")))
    while True:
        number += 1
        try:
            with (folder / f"{number:03d}.json").open("x", encoding="utf-8") as file:
                file.write(text)
            return
        except FileExistsError:
            continue


def own_command(config: pytest.Config) -> tuple[tuple[str, ...], Path] | None:
    """Return the user's own program and its folder, if the option names one."""
    text = config.getoption("--spotchaos-command")
    if not text:
        return None
    return tuple(shlex.split(text)), Path(config.invocation_params.dir)


def defaults_of(config: pytest.Config) -> dict[str, Any]:
    """Return the values that pytest's options set, by option name."""
    values: dict[str, Any] = {}
    for option in ("trials", "seed", "promise"):
        given = config.getoption(f"--spotchaos-{option}")
        if given is not None:
            values[option] = read_option(BY_NAME[option], given)
    resume = config.getoption("--spotchaos-resume-command")
    if resume:
        values["resume-cmd"] = read_option(BY_NAME["resume-cmd"], resume)
    return values


def report_folder(config: pytest.Config) -> Path | None:
    """Return the folder for JSON reports, if the option names one."""
    given = config.getoption("--spotchaos-report")
    return None if given is None else Path(given)


def _plain(value: Any) -> Any:
    """Return kill points and plans as text, alone or in a list."""
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value if isinstance(value, bool | int | float | str) else str(value)


def file_and_name(function: Callable[[], object]) -> tuple[str, str]:
    """Return where another process finds a function: its file, and its name there.

    Raises:
        UsageError: it is not at the top of its module.
    """
    name = function.__qualname__
    if "<" in name or "." in name:
        raise UsageError(
            f"cannot run {name!r} in a process of its own",
            hint="move the function to the top of its module",
        )
    file = inspect.getsourcefile(function)
    assert file is not None
    return file, name


def _calling(function: Callable[[], object]) -> tuple[str, ...]:
    return (sys.executable, str(CALLING), *file_and_name(function))
