"""The command `spotchaos`: one small file for each subcommand, imported when asked for."""

from __future__ import annotations

import click

from spotchaos import __version__
from spotchaos.cli.front import Front

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("spotchaos.cli.run", "interrupt, resume, compare; the verdict in a screen"),
    "explore": (
        "spotchaos.cli.explore",
        "every state that a crash could leave on disk, each one resumed",
    ),
    "replay": ("spotchaos.cli.replay", "carry out one known plan again"),
    "report": ("spotchaos.cli.stored_report", "render a report again, or compare two"),
    "cost": ("spotchaos.cli.cost", "what training costs on spot machines"),
    "explain": ("spotchaos.cli.explain", "what a finding means and how to mend it"),
    "imds": ("spotchaos.cli.imds", "a metadata server that plays a notice"),
    "s3": ("spotchaos.cli.s3_server", "an S3 that fails as told"),
    "specimens": ("spotchaos.cli.specimen_table", "the flawed and mended programs"),
    "doctor": ("spotchaos.cli.doctor", "what this machine can do"),
}

EPILOG = """\b
  spotchaos run --kill-at random -- python train.py
  spotchaos run --kill-at save-begin:2 --json report.json -- torchrun train.py
  spotchaos explain rng-not-restored

Exit status: 0 held, 1 violated, 2 usage error, 3 unknown."""


@click.group(
    cls=Front,
    commands_at=COMMANDS,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 88},
)
@click.version_option(
    __version__, prog_name="spotchaos", message="%(prog)s %(version)s"
)
def main() -> None:
    """Interrupt a training program, resume it, and compare it with a clean run."""


__all__ = ["COMMANDS", "main"]
