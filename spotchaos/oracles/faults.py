"""What a fault of the disk or of a store did to a run, in place of what it looks like."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise

from spotchaos.findings import FINDINGS
from spotchaos.model import Attempt, Ended, Finding, Injected
from spotchaos.oracles.lineage import Case, ResumedAttempt, has_succeeded
from spotchaos.oracles.resume_points import last_written, unsaved
from spotchaos.oracles.wording import ending_of
from spotchaos.trace.format import FILE_SITES

# What a resume looks like whose old checkpoint was destroyed by an error.
_LOST = frozenset(
    {
        "resume-failed",
        "silent-restart",
        "stale-resume",
        "foreign-resume",
        "retrained-after-finish",
    }
)
# What a resume looks like whose newest checkpoint never reached the store.
_NOT_STORED = _LOST | {"lost-work", "no-checkpoint"}
# What a resume looks like that loaded damaged bytes.
_DAMAGED_GROUPS = frozenset({"state", "divergence"})

_BESIDE = (
    "write beside the old checkpoint, and replace it only once the new one is whole and"
    " closed; delete nothing before that"
)
_SHORT = (
    "a write may take less than it is given, and says how much: write on until nothing is"
    " left, and replace the old checkpoint only then"
)


def judge_faults(case: Case) -> Iterator[Finding]:
    """Name a run that said that it is done, and whose last save an error had struck.

    No scheduler starts a program again that ended with status 0, so that the next start,
    which shows what is missing, comes in trials only.
    """
    for resumed, following in pairwise(case.links):
        attempt = resumed.attempt
        injected = [s for s in attempt.injected if s.times and s.kind == "error"]
        if not injected or not has_succeeded(attempt, resumed.end, case.horizon):
            continue
        if _cannot_start(resumed, following):
            yield Finding(
                "error-destroyed-checkpoint",
                f"{injected[0].fault!r} struck {injected[0].path!r}, attempt {resumed.number}"
                f" ended with status 0 all the same, and the next start failed:"
                f" {ending_of(following.attempt)}",
                hint=_BESIDE,
                attempt=following.number,
                step=resumed.end,
            )
            continue
        lost = _lost_save(case, resumed, following)
        if lost is not None:
            yield Finding(
                "save-lost",
                f"{injected[0].fault!r} struck {injected[0].path!r}, attempt {resumed.number}"
                f" ended with status 0 at step {resumed.end} all the same, and {lost}",
                hint="ask every save how it went, the last one too, before the program"
                " ends (`future.result()`, the thread's own exception), and end with"
                " another status than 0 if one failed",
                attempt=resumed.number,
                step=resumed.end,
            )


def _cannot_start(resumed: ResumedAttempt, following: ResumedAttempt) -> bool:
    """Whether what the struck last save left behind cannot be loaded."""
    own = [save for save in following.saved if save.attempt == resumed.number]
    if not own or following.trained or following.attempt.ended is not Ended.FAILED:
        return False
    return not max(own, key=lambda save: save.begun_at_s).is_whole


def _lost_save(
    case: Case, resumed: ResumedAttempt, following: ResumedAttempt
) -> str | None:
    """Say what is missing of the last save of an attempt that was done; None: nothing."""
    own = [save for save in following.saved if save.attempt == resumed.number]
    joined = following.joined
    if own and joined is not None and following.has_begun:
        last = max(own, key=lambda save: save.begun_at_s)
        # One that began all over again has lost the checkpoints before as well.
        is_destroyed = not joined and _had_another(resumed)
        if not last.is_whole and joined < last.step and not is_destroyed:
            return (
                f"its last checkpoint, of step {last.step}, is not there: the next start"
                f" went on from step {joined}"
            )
    ran = case.baseline.first.trace
    missing = last_written(ran, case.horizon) - last_written(
        resumed.attempt.trace, case.horizon - (resumed.joined or 0)
    )
    return f"{min(missing)!r} was never written" if missing else None


def reattribute(found: Iterable[Finding], case: Case) -> Iterator[Finding]:
    """Name the fault where a resume went wrong because of it.

    Args:
        found: by the other oracles.
        case: the trial, laid out.
    """
    before = {resumed.number: earlier for earlier, resumed in pairwise(case.links)}
    for finding in found:
        resumed = before.get(finding.attempt or 0)
        if (
            resumed is not None
            and finding.name in _NOT_STORED
            and _went_on(resumed.attempt)
        ):
            yield _upload_lost(finding, resumed)
            continue
        if resumed is not None and finding.name in _LOST and _broke_off_a_save(resumed):
            joined = {one.number: one.joined for one in case.links}
            if (joined.get(finding.attempt or 0) or 0) >= _whole_before(resumed) > 0:
                continue  # what was broken off is no checkpoint that it should have taken
            yield replace(
                finding,
                name="error-destroyed-checkpoint",
                message=f"SIG{resumed.attempt.signal} broke off a save of attempt"
                f" {resumed.number}, and the checkpoint before it is lost as well:"
                f" {finding.message}",
                hint=_BESIDE,
            )
            continue
        injected = None if resumed is None else _fault_of(resumed.attempt)
        if resumed is None or injected is None:
            yield finding
        elif injected.kind == "damage" and _is_damage(finding):
            yield _silent_damage(finding, injected)
        elif (
            injected.kind == "error" and finding.name in _LOST and _had_another(resumed)
        ):
            yield replace(
                finding,
                name="error-destroyed-checkpoint",
                message=f"{injected.fault!r} struck {injected.path!r} while attempt"
                f" {resumed.number} saved, and the checkpoint before it is lost as well:"
                f" {finding.message}",
                hint=_SHORT if injected.fault.startswith("short-write") else _BESIDE,
            )
        else:
            yield finding


def is_ended_by_fault(attempt: Attempt) -> bool:
    """Tell whether an attempt failed once its disk or its store had refused something.

    To end with an error and be started again is a right answer to such a fault, whether
    it struck a save or a resume.
    """
    return attempt.ended is Ended.FAILED and any(
        one.times and one.kind in ("error", "store") for one in attempt.injected
    )


def _broke_off_a_save(resumed: ResumedAttempt) -> bool:
    """Whether a signal became an error within a save, after a save that was whole.

    Python raises for Ctrl-C where it is; a handler may for others. Who is ended by a
    signal's default action, or by a reclaim, is killed and meets no error.
    """
    attempt = resumed.attempt
    site = (attempt.kill_point or "").partition(":")[0]
    has_raised = attempt.signal == "INT" or (
        attempt.signal not in (None, "KILL") and (attempt.exit_code or 0) > 0
    )
    if (
        not has_raised
        or attempt.ended is Ended.RECLAIMED
        or site not in (*FILE_SITES, "save-begin")
    ):
        return False
    saves = [save for rank in attempt.trace.ranks.values() for save in rank.saves]
    broken = [
        save
        for save in saves
        if save.step == attempt.signalled_step == attempt.trace.completed
    ]
    return bool(broken) and (len(saves) > len(broken) or bool(resumed.saved))


def _whole_before(resumed: ResumedAttempt) -> int:
    """Return the step of the newest save before the one that a signal broke off."""
    attempt, began = resumed.attempt, resumed.joined or 0
    steps = [
        began + save.of_step
        for rank in attempt.trace.ranks.values()
        for save in rank.saves
        if save.step < (attempt.signalled_step or 0)
    ]
    steps += [save.step for save in resumed.saved]
    return max(steps, default=0)


def _went_on(attempt: Attempt) -> bool:
    """Whether an upload was refused for good, and the program trained on."""
    return attempt.ended is Ended.RECLAIMED and bool(unsaved(attempt))


def _upload_lost(finding: Finding, resumed: ResumedAttempt) -> Finding:
    refused = unsaved(resumed.attempt)[0]
    return replace(
        finding,
        name="upload-lost",
        message=f"{refused.fault} struck {refused.operation} of {refused.path!r},"
        f" attempt {resumed.number} went on as if it were stored, and the machine took the"
        f" only copy: {finding.message}",
        hint="an upload that fails is a failed save: try again a bounded number of times,"
        " then exit with an error",
    )


def _fault_of(attempt: Attempt) -> Injected | None:
    injected = [
        s for s in attempt.injected if s.times and s.kind in ("error", "damage")
    ]
    return injected[0] if injected else None


def _is_damage(finding: Finding) -> bool:
    return (
        FINDINGS[finding.name].group in _DAMAGED_GROUPS
        or finding.name == "foreign-resume"
    )


def _silent_damage(finding: Finding, injected: Injected) -> Finding:
    return Finding(
        "silent-damage",
        f"{injected.fault!r} damaged {injected.path!r}, and attempt {finding.attempt} trained"
        f" on with what it loaded: {finding.message}",
        hint="store a digest of each checkpoint beside it, compare before loading, and"
        " fall back to the one before",
        attempt=finding.attempt,
        step=finding.step,
        where=finding.where,
    )


def _had_another(resumed: ResumedAttempt) -> bool:
    """Whether a checkpoint was whole before the fault struck."""
    at_s = min(
        s.at_s for s in resumed.attempt.injected if s.times and s.at_s is not None
    )
    earlier = [
        save
        for rank in resumed.attempt.trace.ranks.values()
        for save in rank.saves
        if save.ended_at_s is not None and save.ended_at_s < at_s
    ]
    return bool(earlier or resumed.saved)
