"""The report on a terminal: one line for each phase while it runs, then the screen."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

from spotchaos import __version__
from spotchaos.events import (
    AttemptEnded,
    BaselineDone,
    Event,
    Outcome,
    PhaseStarted,
    Started,
    TrialDone,
)
from spotchaos.model import Note
from spotchaos.report.document import Document, make_document
from spotchaos.report.redact import one_line
from spotchaos.report.screen import (
    REFERENCE_TESTED,
    VERDICT_STYLE,
    Line,
    plain,
    screen,
)

if TYPE_CHECKING:
    from rich.status import Status


class TextReport:
    """Prints progress and the final screen.

    Args:
        out: where to; on a terminal it gets colours and a live line.
        width: columns of the screen; None: 88, or the terminal's if that is less.
    """

    def __init__(self, out: TextIO, *, width: int | None = None) -> None:
        from rich.console import Console

        self._console = Console(file=out, highlight=False, markup=False, emoji=False)
        self._live = self._console.is_terminal
        self._width = width or (min(88, self._console.width) if self._live else 88)
        self._status: Status | None = None
        self._notes: tuple[Note, ...] = ()
        self.document: Document | None = None
        self.done: list[tuple[int, str]] = []  # trials, with their verdicts
        self.phase: str | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self._print_start(event)
        elif isinstance(event, PhaseStarted):
            self.phase = event.name
            plan = f"  {event.plan}" if event.plan else ""
            self._show_live(f"{event.name}{plan}")
        elif isinstance(event, AttemptEnded):
            steps = event.attempt.trace.completed
            self._show_live(
                f"{event.phase}  attempt {event.attempt.number}"
                f" {event.attempt.ended} after {steps} steps"
            )
        elif isinstance(event, BaselineDone):
            self._notes = event.notes
            self._print_baseline(event)
        elif isinstance(event, TrialDone):
            self._print_trial(event)
        elif isinstance(event, Outcome):
            self.phase = None
            self._print_outcome(event)

    def close(self) -> None:
        """Take the live line away; safe to call twice."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def print_lines(self, lines: Iterable[Line]) -> None:
        """Print styled lines above the live one."""
        from rich.text import Text

        for line in lines:
            if not self._live:
                self._console.file.write(plain([line]))
                continue
            text = Text.assemble(*((span, style or "default") for span, style in line))
            self._console.print(text, soft_wrap=True)
        self._console.file.flush()

    def _show_live(self, text: str) -> None:
        if not self._live:
            return
        from rich.text import Text

        shown = Text(one_line(text), no_wrap=True, overflow="ellipsis")
        if self._status is None:
            self._status = self._console.status(shown)
            self._status.start()
        else:
            self._status.update(shown)

    def _print_start(self, event: Started) -> None:
        """Say at once what is run, and where; then what is not protected."""
        settings = event.settings
        if settings.reference_trainer:
            self.print_lines([[(REFERENCE_TESTED, "yellow")]])
        closed = "" if settings.allow_network else "no network, "
        kept = "see below" if event.unprotected else f"{closed}no credentials"
        command = one_line(shlex.join(settings.command))
        folder = one_line(str(settings.folder))
        first = f"spotchaos {__version__}: {command}, in a private copy of {folder} ({kept})"
        self.print_lines([[(first, "")]])
        if event.settings.allow_network:
            self.print_lines([[("network    attempts may reach it", "yellow")]])
        for sentence in event.unprotected:
            line = f"not protected: {one_line(sentence)}"
            self.print_lines([[(line, "yellow")]])

    def _print_baseline(self, event: BaselineDone) -> None:
        baseline = event.baseline
        runs = len(baseline.runs)
        equal = "equal" if baseline.repeatable else "not equal"
        times = {1: "once", 2: f"twice, {equal}"}.get(runs, f"{runs} times, {equal}")
        ranks = f" on {baseline.world_size} ranks" if baseline.world_size > 1 else ""
        seconds = baseline.first.wall_s
        left = baseline.outputs
        done = f"{baseline.horizon} steps"
        if left is not None and left.is_alone:
            done = left.counted
        said = f"baseline   {done}{ranks} in {seconds:.1f} s, {times}"
        self.print_lines([[(said, "")]])
        control = baseline.control
        if control is not None and control.attempts:
            last = control.attempts[-1]
            # It was stopped after a save: who makes all steps once more did not resume.
            over = len(control.attempts) > 1 and (
                0 < baseline.horizon <= last.trace.completed
            )
            then = (
                "does not resume: started over from step 0"
                if over
                else f"stopped cleanly, then {last.ended}"
            )
            self.print_lines([[(f"control    {then}", "")]])

    def _print_trial(self, event: TrialDone) -> None:
        trial, said = event.trial, event.judgement
        verdict = str(said.verdict)
        self.done.append((trial.number, verdict))
        lost = sum(resume.lost_steps for resume in said.resumes)
        found = ", ".join(dict.fromkeys(f.name for f in said.findings))
        again = f"{lost} step{'s' if lost != 1 else ''} done again" if lost else ""
        rest = found or again
        self.print_lines(
            [
                [
                    (f"trial {trial.number:<4} {one_line(trial.plan):<24} ", ""),
                    (f"{verdict:<9}", VERDICT_STYLE[verdict]),
                    (f" {rest}".rstrip(), ""),
                ]
            ]
        )

    def _print_outcome(self, outcome: Outcome) -> None:
        self.close()
        self.document = make_document(outcome, notes=self._notes)
        self.print_lines([[], *screen(self.document, width=self._width)])

    def print_interruption(self) -> None:
        """Say what was done when the user ended the campaign before its outcome."""
        self.close()
        counts = Counter(verdict for _, verdict in self.done)
        said = ", ".join(f"{n} {verdict}" for verdict, n in sorted(counts.items()))
        where = f" in {self.phase}" if self.phase else ""
        done = f"{len(self.done)} trial{'s' if len(self.done) != 1 else ''} done"
        self.print_lines(
            [[], [(f"interrupted{where}; {done}{': ' + said if said else ''}", "")]]
        )
