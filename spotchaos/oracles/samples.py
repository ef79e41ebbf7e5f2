"""Was each sample trained on exactly as often as in the uninterrupted run, in its order?

What counts is what was trained on, not what was fetched. Steps that were done again are
lost work, so the ledger follows the surviving course only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from spotchaos.model import Ended, Finding, RankTrace, StepMark
from spotchaos.oracles.causes import (
    Mixup,
    draws_order,
    is_ahead,
    judged,
    mixup,
    streams,
)
from spotchaos.oracles.lineage import Case, ResumedAttempt, epoch_shift
from spotchaos.oracles.wording import HINTS, on_ranks

Sample = tuple[str, str]  # kind of id, id
AttemptController = Mapping[int, Mapping[int, tuple[int | None, StepMark]]]
Tally = dict[int | None, Counter[Sample]]  # epoch -> how often each sample


def judge_samples(case: Case) -> Iterator[Finding]:
    """Name samples repeated and skipped, or an order that changed."""
    for resumed in judged(case):
        if is_ahead(resumed):
            yield from _left_out(case, resumed)
    if {"batch", "samples"} & {*case.baseline.not_compared}:
        return
    for resumed in judged(case):
        if resumed.has_other_ranks_than(case.baseline):
            yield from _on_other_ranks(case, resumed)
            continue
        found = {
            rank: seen
            for rank, view in sorted(resumed.views.items())
            if (seen := mixup(view)) is not None and seen.is_other_order
        }
        if found:
            yield from _judge(case, resumed, found)


def _left_out(case: Case, resumed: ResumedAttempt) -> Iterator[Finding]:
    """Name the steps between the furthest that was trained and where a resume begins."""
    found = ledger(case)
    if found["complete"] and _tally(_course_of_line(case)) and not found["skipped"]:
        return  # They were made up for afterwards.
    first = resumed.reached + 1
    count = sum(
        len(_samples(mark))
        for line in resumed.line.ranks.values()
        for step, mark in line.steps.items()
        if first <= step <= (resumed.joined or 0)
    )
    which = f"step {first} was"
    if resumed.joined != first:
        which = f"steps {first} to {resumed.joined} were"
    yield Finding(
        "samples-skipped",
        f"attempt {resumed.number} began where step {resumed.joined} ends, and nobody had come"
        f" further than step {resumed.reached}: {which} trained by nobody;"
        f" {_counted(count, 'samples-skipped')}",
        hint="what is begun is not done: note a part of the work as done only once it is,"
        " and do again what was begun and not noted",
        attempt=resumed.number,
        step=first,
        component="samples",
    )


def _judge(
    case: Case, resumed: ResumedAttempt, found: Mapping[int, Mixup]
) -> Iterator[Finding]:
    ranks = [*found]
    first = min(found.values(), key=lambda seen: (seen.step, seen.rank))
    if first.begun:
        yield _half_a_step(resumed, first, ranks)
        return
    drawn = any(
        draws_order(view, stream)
        for view in resumed.views.values()
        for stream in streams(resumed, view)
    )
    repeated, skipped = (0, 0) if drawn else _compare(case, resumed)
    names = []
    if first.is_known or first.is_fixed_order:
        # Samples of other steps of the run: what was lost is the position.
        names += ["samples-repeated"] if repeated else []
        names += ["samples-skipped"] if skipped else []
    if not names:
        if not first.is_known and not drawn:
            return  # Samples that the run never saw: no order of its own explains them.
        names = ["order-changed"]
    for name in names:
        count = {"samples-repeated": repeated, "samples-skipped": skipped}.get(name)
        yield Finding(
            name,
            _message(resumed, first, count, name) + on_ranks(ranks, resumed.views),
            hint=HINTS["micro-batches" if first.is_cut_otherwise else "order"],
            attempt=resumed.number,
            step=first.step,
            rank=first.rank,
            component="samples",
        )


def _on_other_ranks(case: Case, resumed: ResumedAttempt) -> Iterator[Finding]:
    """Count over all ranks: no batch of one of them can be compared with another's.

    A rank that does the work of several may put their gradients aside, and then their
    samples are not seen: they are missing only if a step has as many as it ever had.
    """
    before, now = case.baseline.world_size, resumed.attempt.trace.world_size
    repeated, skipped = _compare(case, resumed)
    if _in_first_step(resumed.attempt.trace.ranks) < _in_first_step(
        case.baseline.first.trace.ranks
    ):
        skipped = 0
    counts = {"samples-repeated": repeated, "samples-skipped": skipped}
    for name, count in counts.items():
        if count:
            yield Finding(
                name,
                f"after the resume at step {resumed.joined} the program trained on {now}"
                f" rank{'' if now == 1 else 's'} instead of {before};"
                f" {_counted(count, name)}",
                hint="keep the position in samples of the epoch's whole order, and let"
                " each rank take its share from there on",
                attempt=resumed.number,
                step=(resumed.joined or 0) + 1,
                component="samples",
            )


def _in_first_step(ranks: Mapping[int, RankTrace]) -> int:
    """Count the samples of one step over all ranks."""
    return sum(len(_samples(trace.steps[0])) for trace in ranks.values() if trace.steps)


def _half_a_step(resumed: ResumedAttempt, first: Mixup, ranks: list[int]) -> Finding:
    view = resumed.views[first.rank]
    expected, made = view.step(first.step)
    assert expected is not None
    assert made is not None
    return Finding(
        "samples-skipped",
        f"the first step after the resume at step {view.joined} was made of {made.micro}"
        f" micro-batch{'' if made.micro == 1 else 'es'} instead of {expected.micro}: the"
        f" gradients of {first.begun} samples, accumulated before it was saved, are lost"
        + on_ranks(ranks, resumed.views),
        hint=HINTS["accumulated"],
        attempt=resumed.number,
        step=first.step,
        rank=first.rank,
        component="samples",
    )


def _message(
    resumed: ResumedAttempt, first: Mixup, count: int | None, name: str
) -> str:
    view = resumed.views[first.rank]
    if first.step == view.joined + 1:
        opening = f"after the resume at step {view.joined} the program got"
    else:
        opening = f"step {first.step}, after the resume at step {view.joined}, got"
    if first.is_cut_otherwise:
        expected, made = view.step(first.step)
        assert expected is not None
        assert made is not None
        told = (
            f"step {first.step}, after the resume at step {view.joined}, was made of"
            f" {made.micro} micro-batch{'' if made.micro == 1 else 'es'} instead of"
            f" {expected.micro}"
        )
    elif first.instead is None:
        told = f"{opening} a batch that the uninterrupted run never had"
    elif first.instead == 1:
        told = f"{opening} the batch of step 1: the order starts again at the seed"
    else:
        told = f"{opening} the batch of step {first.instead} instead of {first.step}"
    if count is None:
        return told
    return f"{told}; {_counted(count, name)}"


def _counted(count: int, name: str) -> str:
    what = "trained on again in its epoch" if name == "samples-repeated" else "left out"
    return f"{count} sample{'' if count == 1 else 's'} {what}"


def ledger(case: Case) -> dict[str, Any]:
    """Return how many samples were repeated and skipped, for each epoch and in all.

    Along the surviving course to the end of the run; the epochs are those of the
    baseline, or a single one (null) where none is known.
    """
    expected = _tally(_course_of_line(case))
    found = _tally(case.course)
    if not found:
        return {"repeated": 0, "skipped": 0, "epochs": [], "complete": False}
    complete = case.is_finished
    last = max((e for e in found if e is not None), default=None)
    epochs = []
    for epoch in sorted({*expected, *found}, key=lambda e: (e is not None, e)):
        ended = complete or (epoch is not None and last is not None and epoch < last)
        repeated, skipped = _difference(expected, found, epoch, ended=ended)
        skipped = max(0, skipped - _unknown(expected, found, epoch))
        epochs.append({"epoch": epoch, "repeated": repeated, "skipped": skipped})
    return {
        "repeated": sum(e["repeated"] or 0 for e in epochs),
        "skipped": sum(e["skipped"] or 0 for e in epochs),
        "epochs": epochs,
        "complete": complete,
    }


def _compare(case: Case, resumed: ResumedAttempt) -> tuple[int, int]:
    """Count samples repeated and skipped in the epochs that one attempt trained on."""
    assert resumed.joined is not None
    whole = whole_course(resumed)
    # What lies beyond the horizon is a wrong count of steps: it repeats nothing, but what
    # is trained on there was not left out.
    course = {
        rank: {s: e for s, e in steps.items() if s <= case.horizon}
        for rank, steps in whole.items()
    }
    expected = _tally(_course_of_line(case))
    found = _tally(course)
    in_all = _tally(whole)
    # Who came to an end of its own before the others' last step has ended as well.
    ended = resumed.end >= case.horizon or resumed.attempt.ended is Ended.FINISHED
    if ended and _in_total(expected) == _in_total(in_all):
        return 0, 0
    touched = {
        epoch
        for c in course.values()
        for s, (epoch, _) in c.items()
        if s > resumed.joined
    }
    last = max((e for e in touched if e is not None), default=None)
    # The epoch that was being trained on when the state was saved may be left out.
    left = [view.line.steps.get(resumed.joined + 1) for view in resumed.views.values()]
    touched |= {mark.epoch for mark in left if mark is not None}
    first = min((e for e in touched if e is not None), default=None)
    repeated = skipped = 0
    for epoch in expected:
        if epoch is None or first is None:
            concerns = epoch in touched
        else:
            concerns = first <= epoch and (ended or (last or 0) >= epoch)
        if not concerns:
            continue
        over = ended or (epoch is not None and last is not None and epoch < last)
        more, _ = _difference(expected, found, epoch, ended=over)
        _, less = _difference(expected, in_all, epoch, ended=over)
        repeated, skipped = repeated + more, skipped + less
    return repeated, skipped


def whole_course(resumed: ResumedAttempt) -> AttemptController:
    """Return what an attempt continued, and then did itself, on every rank.

    The number of ranks may have changed: what a rank that is gone trained on before the
    join counts, and so does what a new one trained on after it.
    """
    whole: dict[int, dict[int, tuple[int | None, StepMark]]] = {}
    joined = resumed.joined or 0
    for rank, line in resumed.line.ranks.items():
        before = _numbered(line.steps)
        whole[rank] = {s: entry for s, entry in before.items() if s <= joined}
    shifts = {
        rank: epoch_shift(view.line, view.trace, joined)
        for rank, view in sorted(resumed.views.items())
    }
    usual = next(iter(shifts.values()), None)
    for rank, trace in resumed.attempt.trace.ranks.items():
        shift = shifts.get(rank, usual)
        own = {
            joined + mark.step: (
                None if shift is None or mark.epoch is None else mark.epoch + shift,
                mark,
            )
            for mark in trace.steps
        }
        whole[rank] = {**whole.get(rank, {}), **own}
    return whole


def _in_total(tally: Tally) -> Counter[Sample]:
    """Count how often each sample is trained on in all epochs together."""
    return sum(tally.values(), Counter())


def _difference(
    expected: Tally, found: Tally, epoch: int | None, *, ended: bool
) -> tuple[int, int]:
    """Count what is trained on more often, and less often, than it should be."""
    want, have = expected.get(epoch, Counter()), found.get(epoch, Counter())
    allowed = want
    if epoch == max((e for e in expected if e is not None), default=None):
        # A run of so many steps leaves its last epoch unfinished: what it had not come
        # to there may be trained on once, as in any other epoch.
        for other in (*expected.values(), Counter(dict.fromkeys(have, 1))):
            allowed = allowed | other
    # What no epoch ever had is another sample, or the same one otherwise augmented: it
    # is not counted as repeated.
    known = set().union(*expected.values())
    repeated = sum(n for sample, n in (have - allowed).items() if sample in known)
    return repeated, sum((want - have).values()) if ended else 0


def _unknown(expected: Tally, found: Tally, epoch: int | None) -> int:
    """Count rows that no epoch of the baseline had: each may be one that is missing."""
    known = set().union(*expected.values())
    have = found.get(epoch, Counter())
    return sum(n for s, n in have.items() if s not in known and s[0] != "index")


def _course_of_line(case: Case) -> AttemptController:
    return {rank: _numbered(line.steps) for rank, line in case.line.ranks.items()}


def _numbered(steps: Mapping[int, StepMark]) -> dict[int, tuple[int | None, StepMark]]:
    return {step: (mark.epoch, mark) for step, mark in steps.items()}


def _tally(course: AttemptController) -> Tally:
    tally: Tally = {}
    for steps in course.values():
        for epoch, mark in steps.values():
            tally.setdefault(epoch, Counter()).update(_samples(mark))
    return tally


def _samples(mark: StepMark) -> list[Sample]:
    if mark.samples is not None:
        return [(mark.ids, sample) for sample in mark.samples]
    batch = mark.components.get("samples") or mark.components.get("batch")
    return [("batch", batch)] if batch is not None else []
