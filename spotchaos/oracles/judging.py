"""One front for all oracles: the record of a trial in, what is said of it out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from spotchaos.findings import FINDINGS, PROMISES, UNKNOWN, breaks
from spotchaos.model import (
    Attempt,
    Baseline,
    Finding,
    Judgement,
    Note,
    Resume,
    Trial,
    Verdict,
)
from spotchaos.oracles.causes import frozen, is_restart
from spotchaos.oracles.divergence import divergence_of, judge_divergence
from spotchaos.oracles.faults import judge_faults, reattribute
from spotchaos.oracles.interruption import judge_interruption, note_interruption
from spotchaos.oracles.leftover_files import judge_leftovers
from spotchaos.oracles.lineage import Case, ResumedAttempt, lay_out
from spotchaos.oracles.progress import judge_progress
from spotchaos.oracles.proving import proves_nothing
from spotchaos.oracles.rank_agreement import judge_ranks
from spotchaos.oracles.repeatable import judge_first_attempt
from spotchaos.oracles.restored import judge_restored, note_restored
from spotchaos.oracles.samples import judge_samples, ledger
from spotchaos.oracles.storage import judge_storage
from spotchaos.oracles.torn import judge_torn, without_consequences
from spotchaos.oracles.views import RankView

Oracle = Callable[[Case], Iterator[Finding]]

# Name -> oracle: a pure function of the record of one trial.
ORACLES: dict[str, Oracle] = {
    "repeatable": judge_first_attempt,
    "interruption": judge_interruption,
    "progress": judge_progress,
    "ranks": judge_ranks,
    "restored": judge_restored,
    "samples": judge_samples,
    "divergence": judge_divergence,
    "storage": judge_storage,
    "faults": judge_faults,
    "leavings": judge_leftovers,
    "torn": judge_torn,
}


_SKIPPED = (
    "after the resume the gradient scaler found gradients infinite that it scales well in"
    " the uninterrupted run, and skipped steps: its state did not come back"
)
# What a skipped iteration changes for all that comes after it.
_AFTER_SKIPPED = (
    "rng-not-restored",
    "rng-disturbed",
    "order-changed",
    "samples-repeated",
    "samples-skipped",
    "step-count-wrong",
    "diverged",
)


def judge(
    trial: Trial,
    baseline: Baseline,
    *,
    promise: str = "bitwise",
    max_lost_steps: int | None = None,
    accept_refusal: bool = False,
    exit_codes: Sequence[int] | None = None,
    resume_after_finish: bool = False,
    counts: Callable[[str], bool] = lambda name: True,
) -> Judgement:
    """Say of one trial what was violated, what restored, and which promise holds.

    Args:
        trial: one plan carried out.
        baseline: the uninterrupted runs; `repeatable`.
        promise: one of `PROMISES`; the verdict is `violated` only for findings that
            break it. Findings that break a stronger one are named all the same.
        max_lost_steps: steps that a resume may do again; None is no bound.
        accept_refusal: a clear error instead of a wrong resume keeps the promise.
        exit_codes: what an attempt stopped by a signal or notice must exit with; None:
            only status 0 with steps missing is judged.
        resume_after_finish: the last attempt was started after the run had finished.
        counts: tells by its name whether a finding decides the verdict.
    """
    case = lay_out(
        trial,
        baseline,
        max_lost_steps=max_lost_steps,
        accept_refusal=accept_refusal,
        exit_codes=exit_codes,
        resume_after_finish=resume_after_finish,
    )
    named = [finding for oracle in ORACLES.values() for finding in oracle(case)]
    found = list(without_consequences(reattribute(named, case)))
    findings = _in_order(_settled(_without_skipped(found, trial)))
    verdict = verdict_of(findings, promise, counts)
    if verdict is Verdict.HELD:
        nothing = proves_nothing(case, resume_after_finish=resume_after_finish)
        if nothing is not None:
            findings, verdict = [*findings, nothing], Verdict.UNKNOWN
    return Judgement(
        verdict=verdict,
        findings=tuple(findings),
        notes=tuple(_notes((*note_restored(case), *note_interruption(case)))),
        resumes=tuple(map(_resume, case.resumes())),
        holds_up_to=strongest_kept(findings),
        ledger=ledger(case),
    )


def _without_skipped(found: Iterable[Finding], trial: Trial) -> Iterator[Finding]:
    """Leave out what follows from steps that a lost gradient scaler skipped.

    A scaler that starts afresh finds its first gradients infinite and skips iterations:
    their draws and samples are gone, and fewer steps are made, whatever was restored.
    """
    found = list(found)
    lost = {f.attempt for f in found if f.name == "scaler-not-restored"}
    skipped = {a.number for a in trial.attempts if a.number in lost and _skips(a)}
    first = min(skipped, key=lambda n: n or 0, default=None)
    for finding in found:
        late = first is not None and (finding.attempt or first) >= first
        if late and finding.name in _AFTER_SKIPPED:
            continue
        if finding.attempt in skipped and finding.name == "scaler-not-restored":
            # By its first step it is no longer as it came back.
            finding = replace(finding, message=_SKIPPED)
        yield finding


def _skips(attempt: Attempt) -> bool:
    """Tell whether a rank made backward passes that reached no step."""
    return any(
        rank.counts.get("backward", 0) > sum(mark.micro for mark in rank.steps) + 1
        for rank in attempt.trace.ranks.values()
    )


def _settled(found: Iterable[Finding]) -> list[Finding]:
    """Keep of each finding the first attempt that shows it: later ones are not new.

    A trial that is not the baseline's run to begin with proves nothing else.
    """
    found = list(found)
    luck = [f for f in found if f.name == "not-repeatable"]
    if luck:
        return luck[:1]
    kept: dict[tuple[str, str | None], Finding] = {}
    for finding in found:
        kept.setdefault((finding.name, finding.component), finding)
    return list(kept.values())


def _in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Put causes first: by attempt, then in the order of the table."""
    order: Mapping[str, int] = {name: index for index, name in enumerate(FINDINGS)}
    return sorted(findings, key=lambda f: (f.attempt or 0, order[f.name]))


def verdict_of(
    findings: Sequence[Finding], promise: str, counts: Callable[[str], bool]
) -> Verdict:
    """Return what findings come to: those that count and break the promise convict."""
    wanted = PROMISES.index(promise)
    known = [f.name for f in findings if f.name not in UNKNOWN]
    broken = [name for name in known if PROMISES.index(breaks(name)) <= wanted]
    # All of what was found counts together: which finding comes of which is not known.
    if any(map(counts, known if broken else ())):
        return Verdict.VIOLATED
    return acquitted(findings)


def acquitted(findings: Iterable[Finding]) -> Verdict:
    """Return the verdict where no finding convicts: unknown, if one says so, or held."""
    is_unknown = any(finding.name in UNKNOWN for finding in findings)
    return Verdict.UNKNOWN if is_unknown else Verdict.HELD


def strongest_kept(findings: Sequence[Finding]) -> str | None:
    """Return the strongest promise that nothing found breaks, or None."""
    if any(f.name in UNKNOWN for f in findings):
        return None
    weakest = min(
        (PROMISES.index(breaks(f.name)) for f in findings), default=len(PROMISES)
    )
    return PROMISES[weakest - 1] if weakest else None


def _notes(notes: Iterable[Note]) -> list[Note]:
    return list(dict.fromkeys(notes))


def _frozen(view: RankView) -> dict[str, int | str]:
    came = frozen(view)
    return {} if came is None else {"frozen": came}


def _resume(resumed: ResumedAttempt) -> Resume:
    newest = resumed.newest
    late = [s.step for s in resumed.saved if not s.is_settled]
    if resumed.joined in late and (newest is None or resumed.joined > newest):
        newest = resumed.joined
    return Resume(
        attempt=resumed.number,
        joined=resumed.joined,
        restored={
            rank: {**view.restored, **_frozen(view)}
            for rank, view in sorted(resumed.views.items())
        },
        newest_resume_point=newest,
        lost_steps=resumed.lost,
        divergence=None if is_restart(resumed) else divergence_of(resumed),
        disturbed={
            rank: dict(view.disturbed)
            for rank, view in sorted(resumed.views.items())
            if view.disturbed
        },
        discarded_steps=resumed.discarded_steps,
    )
