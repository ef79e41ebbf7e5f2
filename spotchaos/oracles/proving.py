"""Does a trial prove anything? Where nothing happened to the program, it does not."""

from __future__ import annotations

from spotchaos.model import Ended, Finding
from spotchaos.oracles.interruption import has_heard, has_reacted
from spotchaos.oracles.lineage import Case, ResumedAttempt
from spotchaos.oracles.rank_agreement import went_past_ranks


def proves_nothing(case: Case, *, resume_after_finish: bool) -> Finding | None:
    """Return why a trial with no finding is not `held`; None: it is.

    Every plan comes through here. Either a machine or a process was taken away or stood
    still, or a fault struck, or a warning was heard, or an attempt ended otherwise than
    the uninterrupted run does, or advice came that is to change nothing, or a start after
    the finish was asked for. A start that follows an attempt to which nothing of this
    happened is no resume.

    Args:
        case: the trial, laid out.
        resume_after_finish: the plan asks for a start after the finish.
    """
    last = case.links[-1]
    if resume_after_finish and last.number > 1 and last.is_after_finish:
        return None
    if any(_was_disturbed(case, resumed) for resumed in case.links):
        return None
    return Finding(
        "not-reached",
        "nothing was interrupted, no fault struck and no resume happened: the program ran"
        f" to its end as it does when it is left alone ({case.trial.plan!r})",
        hint="interrupt it earlier (`--kill-at 50%`), or at a site that it comes to",
        attempt=case.links[0].number,
        step=case.links[0].end,
    )


def _was_disturbed(case: Case, resumed: ResumedAttempt) -> bool:
    """Tell whether anything happened to an attempt that it can have noticed."""
    attempt, notice = resumed.attempt, resumed.attempt.notice
    if attempt.ended is Ended.RECLAIMED or attempt.is_restart:
        return True
    if any(one.times for one in attempt.injected):
        return True
    if notice is not None and notice.paused:
        return True
    if notice is not None and not notice.reclaimed:
        # To train on is right. After mere advice that is all that is asked for.
        is_advice = not notice.story.endswith("withdrawn")
        return has_heard(attempt) or (is_advice and attempt.notice_at_s is not None)
    if attempt.signal is None and attempt.notice_at_s is None:
        return False
    if attempt.exit_code != 0 or resumed.joined is None or resumed.end < case.horizon:
        return True
    if attempt.signal in ("KILL", "STOP"):
        return not went_past_ranks(attempt)
    return has_reacted(case, resumed)
