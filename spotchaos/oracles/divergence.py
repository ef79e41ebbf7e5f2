"""Where does an attempt leave its line, if nothing that it started from explains it?

Also the comparison of dumped tensors: which one differs, in how many elements, how far.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from spotchaos.model import Divergence, Finding, Judgement
from spotchaos.oracles.causes import (
    has_cause,
    is_foreign,
    is_restart,
    mixup,
    streams,
    wrong,
)
from spotchaos.oracles.dumps import compare_dumps
from spotchaos.oracles.lineage import Case, ResumedAttempt
from spotchaos.oracles.restored import FINDING_OF
from spotchaos.oracles.views import Difference
from spotchaos.oracles.wording import HINTS, listed, name_of, steps_of
from spotchaos.trace.format import COMPONENTS

# Ranks from which on the order of a ring's additions shows: a+b = b+a.
RING_MATTERS_FROM = 3
# A reordered sum moves the last bits; an element near zero that is the difference of
# large ones moves by more units of its own last place, but not by its leading digits.
FEW_ULP = 1 << 16

_UNKNOWN_CAUSE = (
    "something that is not in the checkpoint decides this step: a counter or cache of the"
    " program's own, an augmentation drawn in a worker, an operation that is not"
    " deterministic"
)

_UNKNOWN_BATCH = (
    "something that is not in the checkpoint makes this batch: a random generator of the"
    " program's own (numpy.random.default_rng, random.Random), an augmentation drawn in a"
    " worker, a copy of the data set in workers that started before it was changed, an"
    " epoch that the data set is told, data that the program makes as it goes"
)

__all__ = ["compare_dumps", "divergence_of", "judge_divergence", "with_measured"]


def judge_divergence(case: Case) -> Iterator[Finding]:
    """Name what parts from the line later, or for no reason that is known."""
    for resumed in case.resumes():
        if resumed.starts_afresh:
            yield from _afresh(resumed)
        elif not has_cause(resumed):
            yield from _unexplained(resumed)
        elif resumed.views and not is_foreign(resumed) and not is_restart(resumed):
            yield from _other_content(resumed)


def divergence_of(resumed: ResumedAttempt) -> Divergence | None:
    """Return the first step, rank and components at which an attempt left its line."""
    found = _first(resumed)
    if found is None or is_restart(resumed) or is_foreign(resumed):
        return None
    rank, first = found
    return Divergence(step=first.step, rank=rank, components=first.components)


def with_measured(
    judgement: Judgement, divergence: Divergence, *, attempt: int
) -> Judgement:
    """Return the judgement with the distance that a replay has measured.

    What was taken for a reordered sum by its pattern is `diverged` if it lies too far
    apart for one.

    Args:
        judgement: of the trial.
        divergence: that of one attempt, with `tensor`, `elements` and `max_ulp`.
        attempt: number of that attempt.
    """
    resumes = [
        replace(r, divergence=divergence) if r.attempt == attempt else r
        for r in judgement.resumes
    ]
    findings = [
        _measured(f, divergence) if f.attempt == attempt else f
        for f in judgement.findings
    ]
    return replace(judgement, resumes=tuple(resumes), findings=tuple(findings))


def _measured(finding: Finding, divergence: Divergence) -> Finding:
    if finding.name != "reduction-order-changed" or divergence.max_ulp is None:
        return finding
    if divergence.max_ulp <= FEW_ULP:
        return finding
    return replace(
        finding,
        name="diverged",
        message=f"{finding.message}, and lie up to {divergence.max_ulp} units in the last"
        " place apart, which is more than another order of additions can do",
        hint=_UNKNOWN_CAUSE,
    )


def _first(resumed: ResumedAttempt) -> tuple[int, Difference] | None:
    found = [
        (rank, first)
        for rank, view in resumed.views.items()
        if (first := next((d for d in view.differences if d.matters), None)) is not None
    ]
    # Of ranks that part at one step, the one in which the cause shows: the others have
    # only its gradients.
    return min(found, key=_earliest, default=None)


def _earliest(found: tuple[int, Difference]) -> tuple[int, int, int]:
    rank, first = found
    known = [COMPONENTS.index(c) for c in first.components if c in COMPONENTS]
    return first.step, min(known, default=len(COMPONENTS)), rank


def _afresh(resumed: ResumedAttempt) -> Iterator[Finding]:
    found = _first(resumed)
    if found is None:
        return
    rank, first = found
    yield Finding(
        "diverged",
        "nothing had been saved, so that the program rightly started at step 0, but it"
        f" is not the run that it was the first time: step {first.step} differs in"
        f" {listed(map(name_of, first.components))}",
        hint="look for what the killed attempt left behind and the new one used: caches,"
        " prepared data, files that are only written when they are missing",
        attempt=resumed.number,
        step=first.step,
        rank=rank,
        component=first.components[0],
    )


def _unexplained(resumed: ResumedAttempt) -> Iterator[Finding]:
    found = _first(resumed)
    if found is None:
        yield from _final(resumed)
        return
    rank, first = found
    if _is_reduction(resumed, first.step):
        yield Finding(
            "reduction-order-changed",
            f"the program resumed at step {resumed.joined} with every component, stream and"
            f" batch as it was, and the gradients of step {first.step} differ on"
            f" {len(resumed.views)} ranks",
            hint=HINTS["reduction"],
            attempt=resumed.number,
            step=first.step,
            rank=rank,
            component="gradients",
        )
        return
    if _is_of_an_unseen_optimizer(resumed, rank, first):
        yield Finding(
            "optimizer-not-restored",
            f"the program resumed at step {resumed.joined} and made its optimizer only at"
            f" step {first.step - 1}, which turned the same weights and gradients into"
            " other weights: the optimizer's state did not come back",
            hint=HINTS["optimizer"],
            attempt=resumed.number,
            step=first.step - 1,
            rank=rank,
            component="optimizer",
        )
        return
    lost = _hidden(first)
    if lost is not None:
        yield Finding(
            FINDING_OF[lost],
            f"{name_of(lost)} came back as of step {resumed.joined}, but differ at step"
            f" {first.step - 1}, {steps_of(first.step - 1 - (resumed.joined or 0))} later:"
            " something that they are computed from was lost",
            hint=HINTS[lost],
            attempt=resumed.number,
            step=first.step,
            rank=rank,
            component=lost,
        )
        return
    yield _diverged(resumed, rank, first)


def _is_of_an_unseen_optimizer(
    resumed: ResumedAttempt, rank: int, first: Difference
) -> bool:
    """Whether the first step after a resume was made otherwise by an optimizer made in it.

    A library may make its optimizers once they first step: what they come back with is
    seen in what they do.
    """
    view = resumed.views[rank]
    there = view.line.states.get(view.joined)
    return (
        first.step == view.joined + 2
        and {"weights", "optimizer"} <= {*first.state}
        and "rates" not in first.state
        and "optimizer" not in view.looked
        and there is not None
        and "optimizer" in there.components
    )


def _diverged(resumed: ResumedAttempt, rank: int, first: Difference) -> Finding:
    lost = resumed.views[rank].streams
    parts = [c for c in first.components if c not in lost] or [*first.components]
    words = listed(map(name_of, parts))
    if lost:
        told = (
            f"step {first.step}, after the resume at step {resumed.joined}, differs in"
            f" {words}, and it cannot be told why: one of {listed(map(name_of, lost))},"
            " which did not come back but, as far as can be seen, did not make it in the"
            " uninterrupted run, or something else that is not in the checkpoint"
        )
    else:
        told = (
            f"everything that is known of step {resumed.joined} was restored, and step"
            f" {first.step} differs in {words}"
        )
    return Finding(
        "diverged",
        told,
        hint=_UNKNOWN_BATCH if "batch" in parts else _UNKNOWN_CAUSE,
        attempt=resumed.number,
        step=first.step,
        rank=rank,
        component=parts[0],
    )


def _hidden(first: Difference) -> str | None:
    """Return the component that parts first, if it is one that has a finding of its own."""
    state = [c for c in first.state if c in FINDING_OF and c != "scheduler"]
    if not state or "weights" in state:
        return None
    return state[0]


def _is_reduction(resumed: ResumedAttempt, step: int) -> bool:
    """Whether only gradients differ, on every rank, right after the resume."""
    if resumed.attempt.trace.world_size < RING_MATTERS_FROM or resumed.joined is None:
        return False
    firsts: Mapping[int, Difference | None] = {
        rank: next((d for d in view.differences if d.matters), None)
        for rank, view in resumed.views.items()
    }
    return step == resumed.joined + 1 and all(
        first is not None
        and first.step == step
        and first.made == ("gradients",)
        and not set(first.state) & FINDING_OF.keys()
        for first in firsts.values()
    )


def _final(resumed: ResumedAttempt) -> Iterator[Finding]:
    """Name what differs only in how the run was left, as after a lost best model."""
    for rank, view in sorted(resumed.views.items()):
        if view.final:
            yield Finding(
                "diverged",
                "every step is the uninterrupted run's, but at the end"
                f" {listed(map(name_of, view.final))} differ",
                hint="what is done after the last step (the best model loaded, averages"
                " swapped in) depends on something that the checkpoint does not hold",
                attempt=resumed.number,
                step=resumed.end,
                rank=rank,
                component=view.final[0],
            )
            return


def _other_content(resumed: ResumedAttempt) -> Iterator[Finding]:
    """Name batches of the right samples with other content, where no stream explains it."""
    for rank, view in sorted(resumed.views.items()):
        seen = mixup(view)
        if seen is None or any(streams(resumed, v) for v in resumed.views.values()):
            continue
        if seen.is_other_order and seen.is_known:
            continue
        if any(wrong(v) for v in resumed.views.values()) and seen.is_other_order:
            continue
        first = next(d for d in view.differences if d.step == seen.step)
        yield _diverged(resumed, rank, first)
        return
