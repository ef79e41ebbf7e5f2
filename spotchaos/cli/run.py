"""`spotchaos run`: interrupt, resume, compare; the verdict in one screen."""

from __future__ import annotations

from typing import Any

import click

from spotchaos.cli.arguments import Command, read_arguments, with_options
from spotchaos.config.settings import Settings

EPILOG = """\b
  spotchaos run --kill-at random -- python train.py
  spotchaos run --kill-at step-end:24 --trials 1 -- python train.py --out {out}
  spotchaos run --signal TERM --grace 30 -- torchrun --nproc-per-node 2 train.py

{out} becomes a private folder. With no COMMAND the program is the reference
trainer. Every option can stand in spotchaos.toml, or in [tool.spotchaos] of
pyproject.toml, under the same name.

Exit status: 0 held, 1 violated, 2 usage error, 3 unknown."""


@click.command(
    cls=Command,
    options_metavar="[options] --",
    epilog=EPILOG,
    context_settings={"allow_interspersed_args": False},
)
@with_options("run")
@click.argument("program", metavar="COMMAND [ARG]...", nargs=-1, type=click.UNPROCESSED)
def command(program: tuple[str, ...], **given: Any) -> int:
    """Interrupt a training program, resume it, and compare it with a clean run."""
    settings, outputs = read_arguments("run", given, program)
    from spotchaos.campaign.campaign import run
    from spotchaos.cli.campaigns import carry_out
    from spotchaos.events import Listener, Outcome

    def campaign(settings: Settings, listener: Listener) -> Outcome:
        return run(settings, listener)

    return carry_out(campaign, settings, outputs)
