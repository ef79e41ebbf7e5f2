"""Carrying out a campaign for a command: its listeners, its reports, its exit status."""

from __future__ import annotations

import sys
from collections.abc import Callable

from spotchaos.cli.arguments import Outputs
from spotchaos.cli.front import HELD, UNKNOWN, VIOLATED
from spotchaos.ending import ENDING
from spotchaos.events import Event, Listener, Outcome
from spotchaos.model import Verdict
from spotchaos.report.document import Document
from spotchaos.report.formats import check_writable, write_reports
from spotchaos.report.redact import redact
from spotchaos.report.text import TextReport
from spotchaos.settings import Settings

Campaign = Callable[[Settings, Listener], Outcome]

STATUS = {Verdict.HELD: HELD, Verdict.VIOLATED: VIOLATED, Verdict.UNKNOWN: UNKNOWN}


def carry_out(campaign: Campaign, settings: Settings, outputs: Outputs) -> int:
    """Run a campaign, show it, write its reports and return the exit status.

    Raises:
        SpotchaosError: the campaign could not begin, or a report was not written.
    """
    for path in (*outputs.files.values(), outputs.jsonl):
        if path is not None:
            check_writable(path)
    text = TextReport(sys.stdout)
    listeners: list[Listener] = [text]
    if outputs.jsonl is not None:
        from spotchaos.report.jsonl import JsonLines

        change = redact if outputs.redact else None
        listeners.append(JsonLines(outputs.jsonl, redact=change))

    def tell(event: Event) -> None:
        for listener in listeners:
            listener(event)

    try:
        outcome = campaign(settings, tell)
    except KeyboardInterrupt:
        text.print_interruption()
        return UNKNOWN
    finally:
        text.close()
    if text.document is not None:
        with ENDING.completed():
            give_out(text.document, outputs)
    if outcome.interrupted and outcome.verdict is Verdict.HELD:
        return UNKNOWN
    return STATUS[outcome.verdict]


def give_out(document: Document, outputs: Outputs) -> None:
    """Write and print what was asked for besides the screen."""
    if outputs.redact:
        document = redact(document)
    if outputs.github:
        from spotchaos.report.github import annotate

        annotate(document, out=sys.stdout)
    if outputs.issue is not None:
        from spotchaos.report.issue import draft

        print()
        print(draft(document, number=outputs.issue))
    write_reports(document, outputs.files)
