"""From what a trial left to findings: pure, as every oracle is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from spotchaos.config.settings import Settings
from spotchaos.findings import FINDINGS
from spotchaos.model import (
    Attempt,
    Baseline,
    Ended,
    Finding,
    Judgement,
    Note,
    OutputDifference,
    OutputsFound,
    Trial,
    Verdict,
)
from spotchaos.oracles.judging import strongest_kept, verdict_of
from spotchaos.oracles.wording import ending_of, exception_of, listed, where_of
from spotchaos.outputs.objects import object_differences

_BY_ITSELF = frozenset({Ended.FINISHED, Ended.EXITED, Ended.FAILED})
_NAMES = {
    "torn": "outputs-torn",
    "missing": "outputs-missing",
    "repeated": "outputs-repeated",
    "differ": "outputs-differ",
    "foreign": "outputs-foreign",
    "leftover": "leftovers",
}
_HINTS = {
    "outputs-torn": "write each file beside its place, and rename it when it is whole; cut"
    " a line that is not whole off before appending (truncate to the last newline)",
    "outputs-missing": "let a resume find out from the outputs themselves what is done, and"
    " count as done only what is whole",
    "outputs-repeated": "give each record a key, and skip those that are there; or save how"
    " many bytes of the output are valid, and truncate to them on a resume",
    "outputs-differ": "what a record is made of must not hang on where a resume began:"
    " seed by the record's key, and restore what is carried from record to record",
    "outputs-foreign": "name outputs after the input they are of, and clear what another"
    " run left, or refuse to go on from it",
    "marked-before-written": "write and flush the record first, then move the cursor, the"
    " marker or the acknowledgement",
    "leftovers": "sweep what a killed attempt left when the program starts, or write to one"
    " name that the next attempt overwrites",
}


def judge_outputs(
    trial: Trial, baseline: Baseline, settings: Settings, *, resume_after_finish: bool
) -> Judgement:
    """Say of one trial of a program that trains nothing what was violated.

    Args:
        trial: one plan carried out.
        baseline: the uninterrupted runs, with what they left.
        settings: the promise, and what may be lost.
        resume_after_finish: the plan asks for a start after the finish.
    """
    assert baseline.outputs is not None  # or the program is judged by its training
    found = [
        *_not_reached(trial),
        *_by_attempts(trial, baseline, settings),
        *output_findings(trial, baseline.outputs, settings),
    ]
    if not found and not resume_after_finish and not _was_disturbed(trial):
        found = [
            Finding(
                "not-reached",
                "nothing was interrupted, no fault struck and no resume happened: the"
                f" program ran to its end as it does when left alone ({trial.plan!r})",
                hint="interrupt it earlier (`--kill-at 50%`), or at a site it comes to",
                attempt=1,
            )
        ]
    notes = list(_notes(trial, baseline.outputs))
    order = {name: index for index, name in enumerate(FINDINGS)}
    kept = {f.name: f for f in reversed(found)}.values()
    findings = tuple(sorted(kept, key=lambda f: (f.attempt or 0, order[f.name])))
    holds = strongest_kept(findings)
    return Judgement(
        verdict_of(findings, settings.promise, settings.counts),
        findings,
        tuple(notes),
        (),
        holds,
    )


def with_outputs(
    judgement: Judgement, trial: Trial, found: OutputsFound, settings: Settings
) -> Judgement:
    """Add to the judgement of a training what is amiss with its outputs."""
    if judgement.verdict is Verdict.UNKNOWN:
        return judgement
    more = tuple(output_findings(trial, found, settings))
    findings = (*judgement.findings, *more)
    return replace(
        judgement,
        verdict=verdict_of(findings, settings.promise, settings.counts),
        findings=findings,
        holds_up_to=strongest_kept(findings),
        notes=(*judgement.notes, *_notes(trial, found)),
    )


def output_findings(
    trial: Trial, found: OutputsFound, settings: Settings
) -> Iterator[Finding]:
    """Name what is amiss with the outputs at the end of a trial."""
    last = trial.attempts[-1]
    if last.ended not in (Ended.FINISHED, Ended.EXITED) or last.outputs is None:
        return
    stopped = last.ended is Ended.EXITED
    differences = [
        *(last.outputs.differences or ()),
        *object_differences(found, last.stored),
    ]
    for one in () if stopped else differences:
        name = _NAMES.get(one.kind)
        if name == "leftovers" and not last.outputs.files.get(one.path, (0, 0))[0]:
            continue
        if name is None:
            continue
        message = _message(one)
        mark = found.ahead.get(one.group)
        if name == "outputs-missing" and mark is not None:
            name = "marked-before-written"
            message += f": {mark!r} tells of it before it is written"
        yield Finding(
            name,
            f"after attempt {last.number}, {message}",
            hint=_HINTS[name],
            attempt=last.number,
            component=one.path,
        )
    again = work_again(trial, found)
    bound = settings.max_lost_work
    if again is not None and bound is not None and again > bound:
        yield Finding(
            "work-repeated",
            f"{again} of {found.written} records were written again, and"
            f" --max-lost-work allows {bound}",
            hint="save how far the work is more often, or let a resume skip what is there",
            attempt=last.number,
        )


def work_again(trial: Trial, found: OutputsFound) -> int | None:
    """Return how many records were written more often than by an uninterrupted run.

    None where nobody counted.
    """
    counts = [a.outputs.written if a.outputs else None for a in trial.attempts]
    if found.written is None or any(count is None for count in counts):
        return None
    return max(0, sum(count or 0 for count in counts) - found.written)


def _message(one: OutputDifference) -> str:
    many = f"{one.count} records" if one.count > 1 else "a record"
    place = f"{one.record} of {one.path}" if one.record else one.path
    detail = f" ({one.detail})" if one.detail else ""
    first = ", the first" if one.count > 1 else ""
    if one.kind == "missing":
        return f"{many} of the uninterrupted run {_is(one)} missing{first}: {place}{detail}"
    if one.kind == "repeated":
        return f"{many} {_is(one)} there more than once{first}: {place}{detail}"
    if one.kind == "foreign":
        return (
            f"{many} {_is(one)} there that no uninterrupted run leaves{first}: {place}"
        )
    if one.kind == "torn":
        return f"{place} is not whole{detail}"
    if one.kind == "leftover":
        return f"{one.path} is still there, which was to become an output"
    what = (
        f": {one.field} is {one.got} instead of {one.wanted}" if one.field else detail
    )
    return f"{many} {_has(one)} another value{first}: {place}{what}"


def _is(one: OutputDifference) -> str:
    return "are" if one.count > 1 else "is"


def _has(one: OutputDifference) -> str:
    return "have" if one.count > 1 else "has"


def _not_reached(trial: Trial) -> Iterator[Finding]:
    if trial.dropped:
        return
    for attempt in trial.attempts:
        failed = attempt.number > 1 and attempt.ended in (Ended.FAILED, Ended.HUNG)
        if not attempt.reached and not failed:
            yield Finding(
                "not-reached",
                f"attempt {attempt.number} ended before it reached its kill point in"
                f" {trial.plan!r}",
                hint="name an earlier one: `--json` says how many records are written",
                attempt=attempt.number,
            )


def _was_disturbed(trial: Trial) -> bool:
    """Tell whether anything happened to an attempt; how it reacted is judged elsewhere."""
    return any(
        attempt.ended in (Ended.RECLAIMED, Ended.EXITED, Ended.FAILED)
        or attempt.is_restart
        or attempt.signal is not None
        or attempt.notice_at_s is not None
        or any(one.times for one in attempt.injected)
        for attempt in trial.attempts
    )


def _by_attempts(
    trial: Trial, baseline: Baseline, settings: Settings
) -> Iterator[Finding]:
    """Name attempts that end badly, or do not heed what they are told."""
    last = trial.attempts[-1]
    for attempt in trial.attempts:
        number = attempt.number
        if attempt.refused_write is not None and attempt.ended is Ended.FAILED:
            yield Finding(
                "not-reached",
                f"attempt {number} may not write to {attempt.refused_write!r} here",
                hint="let it write below its folder, or name the place with --durable",
                attempt=number,
            )
        elif attempt.ended is Ended.HUNG:
            yield Finding(
                "hang",
                f"attempt {number} never ended, and its outputs are not complete",
                hint="give every wait a bound: a lock, a lease or a queue whose holder is"
                " gone",
                attempt=number,
            )
        elif attempt.ended is Ended.FAILED and number > 1 and attempt is last:
            if not settings.accept_refusal:
                yield _resume_failed(attempt)
        elif attempt.ended is Ended.FAILED and number == 1:
            yield Finding(
                "not-repeatable",
                f"attempt 1 failed by itself with {ending_of(attempt)}",
                attempt=number,
            )
        yield from _orphans(attempt, baseline)
        yield from _reaction(attempt)


def _resume_failed(attempt: Attempt) -> Finding:
    exception = exception_of(attempt)
    said = ending_of(attempt)
    if exception is not None:
        said = f"{exception.type}: {exception.message[:160]}"
    return Finding(
        "resume-failed",
        f"after the interruption, attempt {attempt.number} failed with {said}",
        hint="let a start go on from whatever a killed one left: half a file, a lock, a"
        " row that is claimed",
        attempt=attempt.number,
        where=where_of(exception),
    )


def _orphans(attempt: Attempt, baseline: Baseline) -> Iterator[Finding]:
    if attempt.ended not in _BY_ITSELF:
        return

    def names(one: Attempt) -> list[str]:
        return [s.partition(": ")[2] or s for s in one.survivors]

    usual = {name for run in baseline.runs for name in names(run)}
    found = [name for name in names(attempt) if name not in usual]
    if found:
        yield Finding(
            "orphans",
            f"attempt {attempt.number} was over, and lived on: {listed(found[:3])}",
            hint="let children die with their parent, and a shell `exec` the program or"
            " pass signals on",
            attempt=attempt.number,
        )


def _reaction(attempt: Attempt) -> Iterator[Finding]:
    """Judge what came after a signal or notice: did it stop, or go on as if none came?"""
    is_signal = attempt.signal not in (None, "KILL", "STOP")
    warned_s = attempt.notice_at_s
    if is_signal and attempt.sent:
        warned_s = attempt.sent[0].at_s
    if warned_s is None or (attempt.notice and not attempt.notice.reclaimed):
        return
    seen = attempt.outputs
    if seen is None:
        return
    if attempt.ended is Ended.EXITED and attempt.exit_code == 0:
        left = [d for d in seen.differences or () if d.kind in ("missing", "torn")]
        if left:
            yield Finding(
                "exit-code",
                f"stopped by {attempt.signal or 'a notice'}, attempt {attempt.number}"
                f" exited with 0, and {_message(left[0])}",
                hint="0 tells the scheduler that the work is done: exit with 143 (or what"
                " your scheduler requeues) after a signal",
                attempt=attempt.number,
            )
        elif not (attempt.notice and attempt.notice.asked_after):
            yield Finding(
                "not-reached",
                f"attempt {attempt.number} had done all its work before the deadline:"
                " nothing was taken from it",
                hint="name an earlier kill point, or give less --grace",
                attempt=attempt.number,
            )
    newest_s = max((ns for _, ns in seen.files.values()), default=0) / 1e9
    if attempt.ended is Ended.RECLAIMED and newest_s < warned_s:
        name = "signal-ignored" if is_signal else "notice-ignored"
        what = f"SIG{attempt.signal}" if is_signal else "a notice"
        yield Finding(
            name,
            f"{what} came, and attempt {attempt.number} worked on to the deadline without"
            " writing an output",
            hint="finish or give back the record at work, write what is done, and exit",
            attempt=attempt.number,
        )


def _notes(trial: Trial, found: OutputsFound) -> Iterator[Note]:
    again = work_again(trial, found)
    if again:
        yield Note("work-again", f"{again} of {found.written} records written again")
    last = trial.attempts[-1].outputs
    besides = [d for d in (last and last.differences) or () if d.kind == "besides"]
    if besides:
        names = listed(repr(d.path) for d in besides[:3])
        yield Note("outputs-besides", f"the resumed run left {names} as well")
