"""Measures the times of a program by the fewest runs that give them.

One that is left alone, one that is killed and resumed, and with a notice one that hears
of it: each a fresh process, with few fingerprints and no supervisor of file operations.
"""

from __future__ import annotations

from dataclasses import replace

from spotchaos.campaign.baseline import BaselineFailed, Emit, run_lightly
from spotchaos.campaign.grace_search import uses_in
from spotchaos.campaign.measuring import Resumed, bytes_in, timing_of
from spotchaos.clock import Clock, SystemClock
from spotchaos.config.plan import KillPoint, Plan
from spotchaos.config.settings import Settings
from spotchaos.errors import ProgramError
from spotchaos.events import PhaseStarted
from spotchaos.launch.isolation.mechanisms import find_mechanisms
from spotchaos.launch.isolation.program import Program, check_program
from spotchaos.launch.isolation.workspace import Workspace
from spotchaos.model import Ended, Trial
from spotchaos.trace.timing import Measured, Timing
from spotchaos.trial.context import TrialContext, check_asked
from spotchaos.trial.trial import main_rank, run_trial


def measure(settings: Settings, emit: Emit, *, clock: Clock | None = None) -> Timing:
    """Return the times of a program.

    Args:
        settings: the program, and the notice that it is to hear of, if any.
        emit: is told each event.
        clock: for durations.

    Raises:
        ProgramError: it fails by itself, or trains nothing that we see.
        HarnessError: we could not do our part.
    """
    settings = replace(settings, warm=False)
    check_asked(settings)
    program = Program.from_settings(settings)
    check_program(program)
    with Workspace(
        settings.folder, mechanisms=find_mechanisms(), keep=settings.keep
    ) as workspace:
        try:
            trial_context = run_lightly(
                settings, program, workspace, emit, clock=clock or SystemClock()
            )
        except BaselineFailed as failed:
            finding = failed.finding
            raise ProgramError(finding.message, hint=finding.hint) from None
        return _timed(trial_context, emit)


def _timed(trial_context: TrialContext, emit: Emit) -> Timing:
    whole = trial_context.finished_attempt
    assert whole is not None  # or there were no stage
    killed = replace(
        trial_context, settings=replace(trial_context.settings, notice=None)
    )
    point = _after_a_save(trial_context)
    resumed: list[Resumed] = []
    if point is not None:
        resumed = _resumed(_run(killed, point, emit, number=1), whole.trace.completed)
    uses: list[float] = []
    if point is not None and trial_context.settings.notice is not None:
        uses = uses_in([_run(trial_context, point, emit, number=2)])
    return replace(
        timing_of(whole, starts=[whole], resumed=resumed),
        save_bytes=bytes_in(trial_context.finished_view, whole),
        notice_s=Measured.of(uses),
    )


def _run(
    trial_context: TrialContext, point: KillPoint, emit: Emit, *, number: int
) -> Trial:
    plan = Plan((point,))
    emit(PhaseStarted(f"timed run {number}", str(plan)))
    return run_trial(trial_context, plan, number=number)


def _after_a_save(trial_context: TrialContext) -> KillPoint | None:
    """Return a kill point half way between two saves in the middle of the run."""
    whole = trial_context.finished_attempt
    rank = None if whole is None else main_rank(whole)
    if rank is None:
        return None
    saved = sorted({save.of_step for save in rank.saves if save.ended_at_s is not None})
    saved = [step for step in saved if 0 < step < rank.completed]
    if not saved:
        return None
    place = len(saved) // 2
    later = [*saved, rank.completed][place + 1]
    step = max(saved[place] + 1, (saved[place] + later) // 2)
    return KillPoint(site="step-end", occurrence=min(step, rank.completed))


def _resumed(trial: Trial, steps: int) -> list[Resumed]:
    """Return the resume of a trial, by the steps that it had left to make."""
    if len(trial.attempts) < 2 or trial.attempts[1].ended is not Ended.FINISHED:
        return []
    killed, resumed = trial.attempts[:2]
    joined = steps - resumed.trace.completed
    if joined <= 0:
        return []  # it began anew
    return [Resumed(resumed, max(0, killed.trace.completed - joined))]
