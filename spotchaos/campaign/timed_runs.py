"""Measures the times of a program by the fewest runs that give them.

One that is left alone, one that is killed and resumed, and with a notice one that hears
of it: each a fresh process, with few fingerprints and no supervisor of file operations.
"""

from __future__ import annotations

from dataclasses import replace

from spotchaos.campaign.baseline import BaselineFailed, Tell, run_lightly
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
from spotchaos.trial.context import Stage, check_asked
from spotchaos.trial.trial import main_rank, run_trial


def measure(settings: Settings, tell: Tell, *, clock: Clock | None = None) -> Timing:
    """Return the times of a program.

    Args:
        settings: the program, and the notice that it is to hear of, if any.
        tell: is told each event.
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
            stage = run_lightly(
                settings, program, workspace, tell, clock=clock or SystemClock()
            )
        except BaselineFailed as failed:
            finding = failed.finding
            raise ProgramError(finding.message, hint=finding.hint) from None
        return _timed(stage, tell)


def _timed(stage: Stage, tell: Tell) -> Timing:
    whole = stage.finished_attempt
    assert whole is not None  # or there were no stage
    killed = replace(stage, settings=replace(stage.settings, notice=None))
    point = _after_a_save(stage)
    resumed: list[Resumed] = []
    if point is not None:
        resumed = _resumed(_run(killed, point, tell, number=1), whole.trace.completed)
    uses: list[float] = []
    if point is not None and stage.settings.notice is not None:
        uses = uses_in([_run(stage, point, tell, number=2)])
    return replace(
        timing_of(whole, starts=[whole], resumed=resumed),
        save_bytes=bytes_in(stage.finished_view, whole),
        notice_s=Measured.of(uses),
    )


def _run(stage: Stage, point: KillPoint, tell: Tell, *, number: int) -> Trial:
    plan = Plan((point,))
    tell(PhaseStarted(f"timed run {number}", str(plan)))
    return run_trial(stage, plan, number=number)


def _after_a_save(stage: Stage) -> KillPoint | None:
    """Return a kill point half way between two saves in the middle of the run."""
    whole = stage.finished_attempt
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
