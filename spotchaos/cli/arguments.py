"""Options as click shows them, and what was given as settings and outputs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from spotchaos.clock import SystemClock
from spotchaos.config.option_files import read_config, read_known
from spotchaos.config.options import (
    BY_NAME,
    OUTPUT,
    Option,
    make_settings,
    options_of,
    read_option,
)
from spotchaos.config.settings import NOT_YET, Settings
from spotchaos.errors import UsageError

# The reference trainer, in the interpreter that runs us.
REFERENCE = (sys.executable, "-m", "spotchaos.training", "--out", "{out}")
REFERENCE_RANKS = 2
# Whose notices it can be told to watch for.
WATCHED = ("aws", "gcp", "azure", "alibaba")


_DASHES = "spotchaos.dashes"


class Command(click.Command):
    """A command whose help groups the options of the table under their headings."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_DASHES] = "--" in args  # click drops it, and it says something
        return super().parse_args(ctx, args)

    def format_options(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None or isinstance(parameter, click.Argument):
                continue
            option = BY_NAME.get((parameter.name or "").replace("_", "-"))
            heading = option.heading if option is not None else "Also"
            groups.setdefault(heading, []).append(record)
        for heading, records in groups.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def with_options(command: str) -> Callable[[Any], Any]:
    """Give a function every option of the table that `command` takes."""

    def decorate(function: Any) -> Any:
        for option in reversed(options_of(command)):
            function = _click_option(option)(function)
        return function

    return decorate


def _click_option(option: Option) -> Callable[[Any], Any]:
    flag = f"--{option.name}"
    target = option.name.replace("-", "_")
    later = " [not in this release]" if option.name in NOT_YET else ""
    text = option.help + later
    if option.metavar is None:
        return click.option(flag, target, is_flag=True, default=None, help=text)
    return click.option(
        flag,
        target,
        metavar=option.metavar,
        multiple=option.many,
        default=None,
        help=text,
    )


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where the report goes besides the screen."""

    files: Mapping[str, Path]  # format -> file
    jsonl: Path | None = None
    github: bool = False
    issue: int | None = None
    redact: bool = False


def given_values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the options that stand on the command line, by their names."""
    values = {}
    for target, value in given.items():
        name = target.replace("_", "-")
        if name in BY_NAME and value is not None and value != ():
            values[name] = read_option(BY_NAME[name], value)
    return values


def read_arguments(
    command: str, given: Mapping[str, Any], program: tuple[str, ...]
) -> tuple[Settings, Outputs]:
    """Return settings and outputs: the command line wins over the file of the folder.

    Raises:
        UsageError: a value means nothing or cannot be done, or the file is wrong.
    """
    folder = Path.cwd()
    known = {option.name for option in options_of(command)}
    from_file = {k: v for k, v in read_config(folder).items() if k in known}
    values = {**from_file, **given_values(given)}
    is_reference = names_no_program(program)
    if is_reference:
        program = REFERENCE
        # By itself it sees from variables alone where it runs, and Azure sets none.
        provider = str(values.get("notice") or "").partition("-")[0]
        if provider in WATCHED:
            program = (*program, "--watch", provider)
        # Ranks that we start can be forked; a launcher's own children cannot.
        values.setdefault("ranks", REFERENCE_RANKS)
    settings = make_settings(
        values,
        command=program,
        folder=folder,
        reference_trainer=is_reference,
        **listed_findings(folder),
    )
    return settings, outputs_of(values)


def names_no_program(program: tuple[str, ...]) -> bool:
    """Tell whether the command line leaves the program to us.

    Raises:
        UsageError: `--` announces a program, and nothing follows.
    """
    if not program and click.get_current_context().meta.get(_DASHES):
        raise UsageError(
            "nothing follows `--`, so no program is named",
            hint="is the variable that should hold the command empty? Without `--` the"
            " built-in reference trainer is tested",
        )
    return not program


def listed_findings(folder: Path) -> dict[str, Any]:
    """Return the known findings of a folder, and the day by which they are judged."""
    known = read_known(folder)
    return {"known": known, "today": SystemClock().now().date()} if known else {}


def outputs_of(values: Mapping[str, Any]) -> Outputs:
    """Return the outputs among values by option name."""
    out = {n: v for n, v in values.items() if BY_NAME[n].heading == OUTPUT}
    return Outputs(
        files={n: out[n] for n in ("json", "junit", "sarif", "html") if n in out},
        jsonl=out.get("jsonl"),
        github=bool(out.get("github")),
        issue=out.get("issue"),
        redact=bool(out.get("redact")),
    )
