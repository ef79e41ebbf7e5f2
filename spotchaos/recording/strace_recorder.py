"""The fall-back recording, by strace, where no listener for file ops can be installed."""

from __future__ import annotations

from dataclasses import replace

from spotchaos.launch.isolation.view import View
from spotchaos.launch.supervisor import strace
from spotchaos.model import Attempt
from spotchaos.persistence import oplog
from spotchaos.trial.context import TrialContext
from spotchaos.trial.trial import run_attempt


def strace_run(trial_context: TrialContext, view: View) -> tuple[Attempt, oplog.OpLog]:
    """Run the program once under strace, and read what it did to its folders.

    Raises:
        HarnessError: a write was longer than strace was told to show.
    """
    trace = view.temporary / "strace"
    empty = trial_context.workspace.scratch / "empty"
    empty.mkdir(exist_ok=True)
    folder = trial_context.program.folder
    # The folder for output is new and empty in every view; it lies in none of ours.
    start = strace.scan([str(folder), str(empty)])
    command = tuple(strace.command(trial_context.program.command, trace))
    program = replace(trial_context.program, command=command)
    attempt = run_attempt(
        replace(trial_context, program=program, zygote=None), view, None
    )
    log = strace.parse(
        view.host(trace),
        [str(view.runs_in), str(view.out)],
        start=start,
        cwd=str(view.runs_in),
    )
    # strace counts from the epoch, traces in CLOCK_MONOTONIC.
    began_s = trial_context.clock.monotonic() - trial_context.clock.now().timestamp()
    header = {**log.header, "began_s": began_s}
    attempt = replace(attempt, command=trial_context.program.command)
    return attempt, replace(log, header=header)


def not_seen() -> str:
    """Return a clause on what such a recording does not show."""
    return "recorded by strace, which does not show " + "; ".join(strace.NOT_SEEN)
