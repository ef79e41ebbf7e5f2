"""The front of the command: loads a subcommand when it is asked for, prints each error.

Exit statuses are those of the interface. A traceback never reaches the reader: an
exception that nobody foresaw goes into a file, which one sentence names.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from spotchaos.campaign.ending import interruptible
from spotchaos.cli.standard_output import guarded
from spotchaos.errors import (
    HarnessError,
    SpotchaosError,
    UsageError,
    closest,
    shortened,
)

HELD, VIOLATED, USAGE, UNKNOWN = 0, 1, 2, 3


class Front(click.Group):
    """A group of commands that are imported by name.

    Args:
        commands_at: command -> (module, one line of help). The module's `command` is
            the click command.
    """

    def __init__(
        self, *args: Any, commands_at: dict[str, tuple[str, str]], **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._commands_at = commands_at

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._commands_at)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self._commands_at.get(cmd_name)
        if entry is None:
            return None
        try:
            module = importlib.import_module(entry[0])
        except ModuleNotFoundError as missing:
            if missing.name != entry[0]:
                raise
            raise UsageError(
                f"this release does not have the command {cmd_name!r}",
                hint="`spotchaos --help` lists the others",
            ) from None
        found: click.Command = module.command
        return found

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(n, h) for n, (_, h) in self._commands_at.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self._commands_at:
            near = closest(name, self._commands_at)
            raise UsageError(
                f"unknown command {name!r}",
                hint=near or "`spotchaos --help` lists the commands",
            )
        return super().resolve_command(ctx, args)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: FBT001, FBT002 - click's own signature
        windows_expand_args: bool = True,  # noqa: FBT001, FBT002
        **extra: Any,
    ) -> NoReturn:
        """Run the command and exit with its status; never let an exception out."""
        with guarded() as (out, _), interruptible():
            status = self._status(args, prog_name or "spotchaos", **extra)
            out.flush()
            if out.error is not None:
                status = status_without(status)
                if not out.has_no_reader:
                    print_error(f"cannot write the screen: {out.error.strerror}", None)
            elif out.is_closed:
                print_error("standard output is closed, and nothing is shown", None)
        sys.exit(status)

    def _status(self, args: Sequence[str] | None, prog_name: str, **extra: Any) -> int:
        try:
            status = super().main(
                args=args, prog_name=prog_name, standalone_mode=False, **extra
            )
        except SystemExit:  # click's own, for a broken pipe of whatever kind
            return UNKNOWN
        except (Exception, KeyboardInterrupt) as error:
            return say_error(error)
        return status if isinstance(status, int) else HELD


def status_without(status: int) -> int:
    """Return a status after something that was asked for could not be written.

    It is not `held` any more; a violation that is known stays one.
    """
    return UNKNOWN if status == HELD else status


def say_error(error: BaseException) -> int:
    """Print what was raised as a sentence, and return its exit status."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        print(error.format_message(), file=sys.stderr)
        return USAGE
    if isinstance(error, click.Abort | KeyboardInterrupt):
        print_error("interrupted; nothing is left running", None)
        return UNKNOWN
    if isinstance(error, click.ClickException):
        print_error(*_sentence(error))
        return USAGE
    if isinstance(error, UsageError):
        print_error(*error.shown)
        return USAGE
    if isinstance(error, SpotchaosError):
        print_error(error.message, error.hint)
        return UNKNOWN
    if isinstance(error, FileNotFoundError) and not _is_in_a_folder():
        print_error("the working folder is gone", "cd to a folder that is there")
        return USAGE
    print_error(*_unforeseen(error))
    return UNKNOWN


def _is_in_a_folder() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True


def print_error(message: str, hint: str | None) -> None:
    """Print a sentence and its hint on standard error."""
    print(f"spotchaos: {_printable(message)}", file=sys.stderr)
    if hint:
        print(f"Hint: {_printable(hint)}", file=sys.stderr)


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


def _sentence(error: click.ClickException) -> tuple[str, str | None]:
    """Say click's errors in the house's words: lower case, no full stop, a hint."""
    ctx: click.Context | None = getattr(error, "ctx", None)
    where = "spotchaos" if ctx is None else ctx.command_path
    help_hint = f"`{where} --help` lists every option"
    if isinstance(error, click.NoSuchOption):
        known = [] if ctx is None else _option_names(ctx.command)
        near = closest(error.option_name, [*(error.possibilities or ()), *known])
        return f"unknown option {shortened(error.option_name, 80)!r}", near or help_hint
    message = shortened(error.format_message().strip().removesuffix("."), 300)
    return message[:1].lower() + message[1:], help_hint


def _option_names(command: click.Command) -> list[str]:
    return [name for parameter in command.params for name in parameter.opts]


def _unforeseen(error: BaseException) -> tuple[str, str | None]:
    if isinstance(error, OSError) and error.strerror:
        place = f" {error.filename!r}" if error.filename else ""
        wrapped = HarnessError(f"the system refused{place}: {error.strerror}")
        summary = wrapped.message
    else:
        said = shortened(str(error), 200)
        summary = f"an internal error: {type(error).__name__}: {said}"
    try:
        handle, path = tempfile.mkstemp(prefix="spotchaos-", suffix=".traceback")
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
            traceback.print_exception(error, file=file)
    except OSError:
        return summary, None
    return summary, f"the traceback is in {path}; please report it"
