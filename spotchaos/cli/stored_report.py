"""`spotchaos report`: render a stored report again, compare two, or merge shards."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from spotchaos.cli.arguments import (
    Command,
    given_values,
    outputs_of,
    with_options,
)
from spotchaos.cli.front import HELD, VIOLATED, print_error, status_without
from spotchaos.errors import UsageError

EPILOG = """\b
  spotchaos report report.json --html report.html
  spotchaos report before.json after.json
  spotchaos report shard-*.json --json report.json

Two reports are compared; reports of `--shard I/N` are merged into one. With one
report the status is 0. With two, it is 1 if the second has findings that count
and that the first has not, else 0. Merged, it is that of the whole campaign."""


@click.command(cls=Command, options_metavar="[options]", epilog=EPILOG)
@with_options("report")
@click.argument("reports", metavar="REPORT.json...", nargs=-1, required=True)
def command(reports: tuple[str, ...], **given: Any) -> int:
    """Render a report again, compare two, or merge the reports of all shards."""
    outputs = outputs_of(given_values(given))
    from spotchaos.cli.campaigns import STATUS, check_outputs, give_out
    from spotchaos.model import Verdict
    from spotchaos.report.merging import are_shards, merge
    from spotchaos.report.redact import redact
    from spotchaos.report.screen import plain, screen
    from spotchaos.report.stored import compare, comparison_text, read_report

    check_outputs(outputs)
    documents = [read_report(Path(name)) for name in reports]
    if outputs.redact:
        documents = [redact(document) for document in documents]
    merged = are_shards(documents)
    if merged:
        documents = [merge(documents)]
    if len(documents) > 2:
        raise UsageError(
            f"{len(reports)} reports were given, and not all are of `--shard I/N`",
            hint="give one, two to compare, or all shards of one campaign",
        )
    if len(documents) == 2:
        if outputs.files or outputs.github or outputs.issue is not None:
            raise UsageError(
                "a comparison is shown on the screen only",
                hint="give one report to render it in another form",
            )
        difference = compare(*documents)
        sys.stdout.write(comparison_text(difference))
        return VIOLATED if difference.new else HELD
    if outputs.issue is None:
        sys.stdout.write(plain(screen(documents[0])))
    status = STATUS[Verdict(documents[0]["verdict"])] if merged else HELD
    for trouble in give_out(documents[0], outputs):
        print_error(trouble, None)
        status = status_without(status)
    return status
