"""The last fall-back recording, from within Python, where nothing outside may look on."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from spotchaos.errors import HarnessError
from spotchaos.launch.isolation.view import View
from spotchaos.model import Attempt, Ended
from spotchaos.persistence import oplog
from spotchaos.trial.context import TrialContext
from spotchaos.trial.trial import run_attempt

NOT_SEEN = (
    "single writes, but what was written between two ops that Python announces",
    "what compiled code does, but for torch.save (its files count as put in place whole)",
    "other processes than the first that trains",
    "fsync, so that no power loss is explored",
)


def python_recorded_run(
    trial_context: TrialContext, view: View
) -> tuple[Attempt, oplog.OpLog]:
    """Run the program once, with the probe recording what Python announces.

    Raises:
        HarnessError: nothing was recorded, or not to the end.
    """
    told = view.temporary / "ops"
    attempt = run_attempt(trial_context, view, None, orders={"record": str(told)})
    path = view.host(told)
    if not path.exists():
        raise HarnessError(
            "the program's file operations cannot be recorded from within Python",
            hint="install strace, or run where seccomp notification is granted",
        )
    log = oplog.read(path)
    if log.data is not None:
        kept = trial_context.workspace.scratch / f"{view.name}.data"
        log = replace(log, data=Path(shutil.move(log.data, kept)))
    if not log.complete and attempt.ended is Ended.FINISHED:
        raise HarnessError("the recording of file operations broke off")
    return attempt, log


def not_announced() -> str:
    """Return a clause on what such a recording does not show."""
    return "recorded within Python, which does not show " + "; ".join(NOT_SEEN)
