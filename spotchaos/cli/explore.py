"""`spotchaos explore`: every state that a crash could leave on disk, each one resumed."""

from __future__ import annotations

import importlib
from typing import Any

import click

from spotchaos.cli.arguments import Command, read_arguments, with_options
from spotchaos.config.settings import NOT_YET
from spotchaos.errors import UsageError

EPILOG = """\b
  spotchaos explore -- python train.py
  spotchaos explore --power-loss ext4 --saves 2 -- python train.py

Exit status: 0 held, 1 violated, 2 usage error, 3 unknown."""


@click.command(
    cls=Command,
    options_metavar="[options] --",
    epilog=EPILOG,
    context_settings={"allow_interspersed_args": False},
)
@with_options("explore")
@click.argument("program", metavar="COMMAND [ARG]...", nargs=-1, type=click.UNPROCESSED)
def command(program: tuple[str, ...], **given: Any) -> int:
    """Resume from every state that a crash inside a save could leave on disk."""
    settings, outputs = read_arguments("explore", given, program)
    if "explore" in NOT_YET:
        raise UsageError(
            "this release does not have the command 'explore'",
            hint="`spotchaos run --kill-at save-begin:2` interrupts around a save",
        )
    from spotchaos.cli.campaigns import carry_out

    explore = importlib.import_module("spotchaos.explore.exploration").explore
    return carry_out(explore, settings, outputs)
