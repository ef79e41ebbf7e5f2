"""Carrying out a campaign for a command: its listeners, its reports, its exit status."""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from spotchaos.campaign.ending import ENDING
from spotchaos.campaign.totals import gather
from spotchaos.cli.arguments import Outputs
from spotchaos.cli.front import (
    HELD,
    UNKNOWN,
    VIOLATED,
    print_error,
    say_error,
    status_without,
)
from spotchaos.cli.standard_output import Output
from spotchaos.config.settings import Settings
from spotchaos.errors import HarnessError, ReportError, UsageError
from spotchaos.events import BaselineDone, Event, Listener, Outcome, Started, TrialDone
from spotchaos.model import Verdict, worst
from spotchaos.report.document import Document
from spotchaos.report.formats import check_writable, write_reports
from spotchaos.report.redact import redact
from spotchaos.report.terminal import TextReport

Campaign = Callable[[Settings, Listener], Outcome]

STATUS = {Verdict.HELD: HELD, Verdict.VIOLATED: VIOLATED, Verdict.UNKNOWN: UNKNOWN}


def carry_out(campaign: Campaign, settings: Settings, outputs: Outputs) -> int:
    """Run a campaign, show it, write its reports and return the exit status.

    Whatever ends the campaign, and whatever of its output cannot be written, each
    report that can be written is.

    Raises:
        UsageError: the campaign could not begin.
    """
    check_outputs(outputs)
    text = TextReport(sys.stdout)
    teller = _Teller(text, outputs)
    failed: BaseException | None = None
    try:
        outcome = campaign(settings, teller)
    except UsageError:
        raise
    except KeyboardInterrupt:
        text.print_interruption()
        violated = any(verdict == "violated" for _, verdict in text.done)
        return VIOLATED if violated else UNKNOWN
    except Exception as error:
        failed = error
        outcome = teller.so_far(settings, error)
        teller(outcome)
    finally:
        text.close()
    status = STATUS[outcome.verdict]
    if outcome.interrupted:
        status = status_without(status)
    troubles = list(teller.failures)
    if text.document is not None:
        try:
            with ENDING.completed():
                troubles += give_out(text.document, outputs)
        except ReportError as error:  # no such finding: nothing to draft
            print_error(error.message, error.hint)
    for trouble in troubles:
        print_error(trouble, None)
        status = status_without(status)
    if failed is not None:
        say_error(failed)
    return status


class _Teller:
    """Tells events to listeners; one that fails is not told any more, and is named."""

    def __init__(self, text: TextReport, outputs: Outputs) -> None:
        self._listeners: dict[str, Listener] = {"the screen": text}
        self.failures: list[str] = []
        self._baseline: BaselineDone | None = None
        self._unprotected: tuple[str, ...] = ()
        self._done: list[TrialDone] = []
        if outputs.jsonl is not None:
            from spotchaos.report.jsonl import JsonLines

            change = redact if outputs.redact else None
            name = repr(str(outputs.jsonl))
            self._listeners[name] = JsonLines(outputs.jsonl, redact=change)

    def __call__(self, event: Event) -> None:
        match event:
            case Started(unprotected=unprotected):
                self._unprotected = unprotected
            case BaselineDone():
                self._baseline = event
            case TrialDone():
                self._done.append(event)
        for name, listener in list(self._listeners.items()):
            try:
                listener(event)
            except Exception as error:
                del self._listeners[name]
                self.failures.append(f"could not write {name}: {_said(error)}")
        if not isinstance(event, Started | Outcome):
            self._end_without_a_reader()

    def _end_without_a_reader(self) -> None:
        """End the campaign as Ctrl-C does, once nobody reads the screen any more."""
        out = sys.stdout
        if not (isinstance(out, Output) and out.has_no_reader):
            return
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        _thread.interrupt_main()

    def so_far(self, settings: Settings, error: Exception) -> Outcome:
        """Return what was found before an error that nobody foresaw."""
        done = tuple((event.trial, event.judgement) for event in self._done)
        found = gather((t, f.name) for t, said in done for f in said.findings)
        return Outcome(
            settings=settings,
            verdict=worst([*(said.verdict for _, said in done), Verdict.UNKNOWN]),
            holds_up_to=None,
            baseline=None if self._baseline is None else self._baseline.baseline,
            trials=done,
            findings=tuple(found),
            notes=(),
            coverage={"kill_points": len(done)},
            environment={},
            trouble=f"the campaign could not go on: {_said(error)}",
            unprotected=self._unprotected,
        )


def check_outputs(outputs: Outputs) -> None:
    """Make sure that each report can be written, and into a file of its own.

    Raises:
        UsageError: one cannot.
    """
    named: dict[Path, str] = {}
    given = {**outputs.files, **({"jsonl": outputs.jsonl} if outputs.jsonl else {})}
    for option, path in given.items():
        check_writable(path)
        place = path.resolve()
        first = named.setdefault(place, option)
        if first != option and not place.is_relative_to("/dev"):
            raise UsageError(
                f"--{first} and --{option} name the same file {str(path)!r}",
                hint="give each report a file of its own",
            )


def give_out(document: Document, outputs: Outputs) -> list[str]:
    """Write and print what was asked for besides the screen, the files first.

    Returns:
        A sentence for each thing that could not be written.

    Raises:
        ReportError: a draft of an issue about a finding that is not there; all else is
            written.
    """
    if outputs.redact:
        document = redact(document)
    troubles = write_reports(document, outputs.files)
    if outputs.github:
        from spotchaos.report.github import annotate

        try:
            annotate(document, out=sys.stdout)
        except OSError as error:
            troubles.append(f"could not write the job's summary: {_said(error)}")
    if outputs.issue is not None:
        from spotchaos.report.issue import draft

        text = draft(document, number=outputs.issue)
        print()
        print(text)
    return troubles


def _said(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, HarnessError):
        return error.message
    return f"{type(error).__name__}: {error}"
