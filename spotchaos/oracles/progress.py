"""Does the program come back, from the newest whole checkpoint, and get to its end?"""

from __future__ import annotations

from collections.abc import Iterator

from spotchaos.model import Attempt, Ended, Finding, ProgramException
from spotchaos.oracles.causes import is_foreign, is_restart
from spotchaos.oracles.faults import is_ended_by_fault
from spotchaos.oracles.lineage import Case, ResumedAttempt, loaded_at_start
from spotchaos.oracles.resume_points import oldest_acceptable
from spotchaos.oracles.wording import ending_of, exception_of, lost, steps_of, where_of
from spotchaos.trace.lookup import STRONG
from spotchaos.trace.tracebacks import FRAME

# How torch.load begins where it meets what `weights_only` does not let in.
REFUSED_BY_TORCH = "Weights only load failed"

# Attempts in a row that end by themselves, none further than the one before.
STUCK_AFTER = 3

_NEWEST = (
    "choose the newest by its step as a number, not by the order of names or by file"
    " times, and move the pointer as soon as a checkpoint is whole"
)

# Since torch 2.4 the ranks meet in the store of torchrun itself, which outlives them.
SHARED_STORE = (
    "ranks that torchrun restarts may find the addresses of those before them in the store"
    " that it shares with them: set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 (pytorch issue"
    " 135712), or let the scheduler start the whole job again"
)


def judge_progress(case: Case) -> Iterator[Finding]:
    """Name resumes that fail, hang, begin in the wrong place or end in the wrong one."""
    for resumed in case.links:
        if resumed.attempt.ended is Ended.HUNG:
            yield _hang(resumed)
        elif resumed.attempt.refused_write is not None and _ended_badly(resumed):
            yield _refused_write(resumed)
        elif resumed.is_resume and _is_to_blame(resumed):
            yield from _failed(case, resumed)
        if resumed.is_after_finish or resumed.is_all_over:
            yield from _retrained(case, resumed)
        elif resumed.is_resume:
            yield from _joined(case, resumed)
    yield from _stuck(case)
    yield from _count(case)


def _is_to_blame(resumed: ResumedAttempt) -> bool:
    """Tell whether an attempt failed, and not for a fault after which the next went on."""
    return resumed.attempt.ended is Ended.FAILED and (
        resumed.is_last or not is_ended_by_fault(resumed.attempt)
    )


def _hang(resumed: ResumedAttempt) -> Finding:
    frames = [m.groupdict() for m in FRAME.finditer(resumed.attempt.stacks)]
    where = (
        {"file": frames[0]["file"], "line": int(frames[0]["line"])} if frames else None
    )
    waits = f"; it waits at {where['file']}:{where['line']}" if where else ""
    done = (
        f"after {steps_of(resumed.trained)}"
        if resumed.trained
        else "before its first step"
    )
    return Finding(
        "hang",
        f"attempt {resumed.number} made no progress {done} and never ended{waits}",
        hint=SHARED_STORE
        if _met_no_peer(resumed)
        else "look at the stacks: a collective that other ranks have left, a lock file or"
        " a queue whose writer is gone; give every wait a bound",
        attempt=resumed.number,
        step=resumed.end,
        where=where,
    )


def _met_no_peer(resumed: ResumedAttempt) -> bool:
    """Tell whether ranks that a launcher restarted did not get as far as a step."""
    size = resumed.attempt.trace.world_size
    return resumed.attempt.is_restart and not resumed.trained and size > 1


def _ended_badly(resumed: ResumedAttempt) -> bool:
    return resumed.attempt.ended in (Ended.FAILED, Ended.EXITED)


def _refused_write(resumed: ResumedAttempt) -> Finding:
    """Say that it was our isolation, and not the program, that made an attempt fail."""
    return Finding(
        "not-reached",
        f"attempt {resumed.number} may not write to {resumed.attempt.refused_write!r} here, and"
        " ended",
        hint="let it write below its folder, or name the place with --durable",
        attempt=resumed.number,
        step=resumed.end,
    )


def _failed(case: Case, resumed: ResumedAttempt) -> Iterator[Finding]:
    refused = case.accept_refusal and resumed.trained == 0
    if refused:
        return
    attempt = resumed.attempt
    exception = exception_of(attempt)
    if resumed.trained:
        when = f"{steps_of(resumed.trained)} after the resume at step {resumed.joined}"
        if resumed.joined is None:
            when = f"{steps_of(resumed.trained)} after it had started"
    else:
        when = "before its first step"
    if _control_failed(case):
        yield Finding(
            "never-resumes",
            f"the program fails when it is started again, also after a clean stop:"
            f" {ending_of(attempt)}",
            hint=_how_to_load(exception),
            attempt=resumed.number,
            step=resumed.end,
            where=where_of(exception),
        )
        return
    yield Finding(
        "resume-failed",
        f"attempt {resumed.number} failed {when}: {ending_of(attempt)}"
        + (
            "; after a clean stop it resumes"
            if case.baseline.control is not None and not resumed.trained
            else ""
        ),
        hint=SHARED_STORE
        if _met_no_peer(resumed)
        else "it must find and load the newest whole checkpoint whatever the kill left"
        " beside it: write to a temporary name and rename, skip what is not whole, fall"
        " back to the one before",
        attempt=resumed.number,
        step=resumed.end,
        where=where_of(exception),
    )


def _how_to_load(exception: ProgramException | None) -> str:
    """Return what to do about a program that never comes back from what it saved."""
    if exception is not None and exception.message.startswith(REFUSED_BY_TORCH):
        return (
            "since torch 2.6 torch.load takes tensors and plain containers alone: save"
            " nothing else (no NumPy values, no whole model), or load the program's own"
            " checkpoints with weights_only=False"
        )
    return (
        "try it by hand: stop it after a save, start it again with the same command, or"
        " give --resume-cmd"
    )


def _control_failed(case: Case) -> bool:
    last = _clean_resume(case)
    return last is not None and last.ended in (Ended.FAILED, Ended.HUNG)


def _clean_resume(case: Case) -> Attempt | None:
    """Return what followed the clean stop; None where there was none."""
    control = case.baseline.control
    if control is None or len(control.attempts) < 2:
        return None
    return control.attempts[-1]


def _how_to_resume(case: Case) -> str:
    """Return what to do about a program that starts over."""
    look = (
        "look where the program searches for checkpoints and what it does when loading"
        " fails: an exception that is swallowed, or a path that depends on the time or"
        " the job, starts over without a word"
    )
    last = _clean_resume(case)
    if last is None or last.trace.completed < case.horizon:
        return look
    return (
        "after a clean stop it starts over as well: if it resumes only when it is told"
        " to, say how with --resume-cmd 'COMMAND TO RESUME'; if not, " + look
    )


def _joined(case: Case, resumed: ResumedAttempt) -> Iterator[Finding]:
    """Judge where an attempt began to train, and how much it had to do again."""
    if is_foreign(resumed):
        yield from _foreign(resumed)
        return
    if not resumed.has_begun:
        return
    if resumed.joined is None:
        return
    oldest = oldest_acceptable(resumed.saved)
    kept = resumed.unwritten & loaded_at_start(case.baseline.first.trace)
    if is_restart(resumed) and kept:
        yield Finding(
            "stale-resume",
            f"attempt {resumed.number} resumed from {min(kept)!r}, which lay in the folder"
            f" before the run, although the checkpoint of step {resumed.newest} was whole;"
            f" {lost(resumed.lost)}",
            hint=_NEWEST,
            attempt=resumed.number,
            step=0,
        )
    elif is_restart(resumed):
        yield Finding(
            "silent-restart",
            f"attempt {resumed.number} started again from step 0 although the checkpoint of"
            f" step {resumed.newest} was there; {lost(resumed.lost)}",
            hint=_how_to_resume(case),
            attempt=resumed.number,
            step=0,
        )
    elif (
        oldest is not None
        and resumed.joined < oldest
        and not _has_part_of(resumed, oldest)
    ):
        yield Finding(
            "stale-resume",
            f"attempt {resumed.number} resumed at step {resumed.joined} although the checkpoint"
            f" of step {resumed.newest} was whole; {lost(resumed.lost)}",
            hint=_NEWEST,
            attempt=resumed.number,
            step=resumed.joined,
        )
    elif _starts_over(resumed) and resumed.previous_end and _saves_nothing(case):
        yield _no_checkpoint(resumed)
    elif case.max_lost_steps is not None and resumed.lost > case.max_lost_steps:
        yield Finding(
            "lost-work",
            f"attempt {resumed.number} had to do {steps_of(resumed.lost)} again, from step"
            f" {resumed.joined} on, and at most {case.max_lost_steps} are allowed",
            hint="save more often, or save when the notice or the signal comes",
            attempt=resumed.number,
            step=resumed.joined,
        )


def _has_part_of(resumed: ResumedAttempt, oldest: int) -> bool:
    """Whether a part of the state is of a step from `oldest` on: it read what is newest."""
    return any(
        min(view.looked[component]) >= oldest
        for view in resumed.views.values()
        for component in view.wrong
        if component in STRONG and view.looked[component]
    )


def _saves_nothing(case: Case) -> bool:
    """Whether no save was seen, nor a resume that there must have been one for."""
    if case.habit.steps:
        return False
    last = _clean_resume(case)
    if last is None or last.ended is not Ended.FINISHED:
        return True
    return last.trace.completed >= case.horizon


def _starts_over(resumed: ResumedAttempt) -> bool:
    """Whether an attempt began at step 0, of which alone there may be a checkpoint."""
    return resumed.joined == 0 and not any(save.step for save in resumed.saved)


def _no_checkpoint(resumed: ResumedAttempt) -> Finding:
    return Finding(
        "no-checkpoint",
        f"attempt {resumed.number} started again from step 0: the program saves nothing"
        f" before its end that it could resume from; {lost(resumed.previous_end)}",
        hint="save model, optimizer, scheduler, random streams and the position in the"
        " data every few minutes, and load the newest at the start",
        attempt=resumed.number,
        step=0,
    )


def _foreign(resumed: ResumedAttempt) -> Iterator[Finding]:
    if not resumed.saved and resumed.newest is None and resumed.previous_end == 0:
        return
    yield Finding(
        "foreign-resume",
        _foreign_words(resumed),
        hint="it loaded a checkpoint of another run, or none at all and a new"
        " initialisation: keep an id of the run in the checkpoint and refuse another's;"
        " look at the folder and the pattern in which it searches",
        attempt=resumed.number,
        step=0,
    )


def _foreign_words(resumed: ResumedAttempt) -> str:
    if resumed.unwritten:
        goes_on = "trains on from" if resumed.trained else "trains nothing, and loaded"
        return (
            f"attempt {resumed.number} {goes_on} {min(resumed.unwritten)!r}, which no attempt of"
            " this run had written"
        )
    return (
        f"attempt {resumed.number} trains on with weights that no step of this run ever had,"
        " and neither optimizer nor random streams are of it"
    )


def _retrained(case: Case, resumed: ResumedAttempt) -> Iterator[Finding]:
    if not resumed.trained:
        return
    attempt = resumed.attempt
    if resumed.joined == 0 and _saves_nothing(case):
        yield _no_checkpoint(resumed)
        return
    if resumed.joined is None:
        said = (
            f"it trained {steps_of(resumed.trained)} on a state of no step of the run"
        )
    elif resumed.joined == 0:
        said = f"it trained all over again from step 0, for {steps_of(resumed.trained)}"
    elif resumed.end > case.horizon:
        said = (
            f"it trained on to step {resumed.end}, beyond the last step {case.horizon}"
        )
    elif _changes_weights(case, resumed):
        said = f"it resumed at step {resumed.joined} and ended with other weights"
    else:
        return
    yield Finding(
        "retrained-after-finish",
        f"started again after the run had {_came_to(resumed)}, {said}",
        hint="save at the end with the last step or epoch done, and compare with the"
        " total before the first step",
        attempt=attempt.number,
        step=resumed.joined,
    )


def _came_to(resumed: ResumedAttempt) -> str:
    return "finished" if resumed.is_after_finish else "done its last step"


def _changes_weights(case: Case, resumed: ResumedAttempt) -> bool:
    if "weights" in case.baseline.not_compared:
        return False
    finished = [k.attempt for k in case.links if k.number < resumed.number]
    before = _final_weights(finished[-1]) if finished else {}
    after = _final_weights(resumed.attempt)
    return any(before[rank] != after[rank] for rank in before.keys() & after.keys())


def _final_weights(attempt: Attempt) -> dict[int, str]:
    return {
        rank: found.finish.components["weights"]
        for rank, found in attempt.trace.ranks.items()
        if found.finish is not None and "weights" in found.finish.components
    }


def _stuck(case: Case) -> Iterator[Finding]:
    """Name attempt after attempt that ends by itself, no further than the one before."""
    stuck = 0
    for resumed in case.links:
        by_itself = resumed.attempt.ended in (Ended.FAILED, Ended.EXITED)
        if resumed.is_resume and by_itself and resumed.attempt.signal is None:
            stuck = stuck + 1 if resumed.end <= resumed.previous_end else 0
        else:
            stuck = 0
        if stuck >= STUCK_AFTER:
            yield Finding(
                "no-progress",
                f"{stuck} attempts in a row ended by themselves, none further than step"
                f" {resumed.end}",
                hint="a checkpoint that cannot be loaded, or a step that always fails,"
                " restarts for ever: bound the attempts, fall back to an older checkpoint",
                attempt=resumed.number,
                step=resumed.end,
            )
            return


def _count(case: Case) -> Iterator[Finding]:
    """Judge at which step the run, left alone, came to its end."""
    resumed = case.last
    attempt = resumed.attempt
    if (
        attempt.ended is not Ended.FINISHED
        or not resumed.is_resume
        or is_foreign(resumed)
    ):
        return
    if resumed.has_nothing_left or resumed.is_all_over:
        return
    if not resumed.trained:
        reached = [resumed.joined or 0, *(save.step for save in resumed.saved)]
        if max(reached) >= case.horizon:
            return
        if not resumed.saved and resumed.previous_end >= case.horizon:
            return  # it saves where nobody saw it, and had come to the end
        end = resumed.newest or 0
        said = f"attempt {resumed.number} ended with status 0 and trained nothing"
    elif resumed.joined is not None and resumed.end != case.horizon:
        end = resumed.end
        said = f"the run resumed at step {resumed.joined} and ended after step {resumed.end}"
    else:
        return
    yield Finding(
        "step-count-wrong",
        f"{said}; the uninterrupted run has {steps_of(case.horizon)}",
        hint="save the epoch and the step that are *done*, start the loop at the next,"
        " and compute the total once, not again from what is left; with early stopping,"
        " save the best value and how long it has lasted",
        attempt=resumed.number,
        step=end,
    )
