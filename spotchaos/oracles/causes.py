"""What is the cause and what only follows from it, for one resumed attempt.

A lost optimizer makes the next weights differ, a lost stream the next gradients: naming
those too would bury the cause. The first differing column names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spotchaos.model import StepMark
from spotchaos.oracles.drawn import is_drawn, is_within_an_order
from spotchaos.oracles.lineage import Case, ResumedAttempt
from spotchaos.oracles.views import Difference, RankView
from spotchaos.oracles.windows import begun
from spotchaos.trace.lookup import STRONG, RankReference, is_stream

_FORWARD = ("loss", "gradients", "weights", "buffers")


@dataclass(frozen=True, slots=True)
class Mixup:
    """The first step at which a rank was given another batch than its line.

    `instead` is the step of the line whose batch it was given, or None if no step of
    the line has that batch. `is_other_order` is False where the samples are the same in
    the same order and only their content differs, as after a lost augmentation stream.
    `begun` is how many samples the line had trained on for that step when it was saved
    half-way through its micro-batches: their gradients are lost. `is_cut_otherwise`
    where the samples are the right ones, but another number of micro-batches makes the
    step.
    """

    step: int
    rank: int
    instead: int | None
    is_other_order: bool
    is_fixed_order: bool  # each epoch of the line has the same batches
    is_known: bool  # all of its samples occur in the line
    begun: int = 0
    is_cut_otherwise: bool = False


def mixup(view: RankView) -> Mixup | None:
    """Return how the batches of a rank leave their line, or None if they do not."""
    for difference in view.differences:
        if not {"batch", "samples"} & {*difference.made}:
            continue
        return _mixup(view, difference)
    return None


def _mixup(view: RankView, difference: Difference) -> Mixup:
    expected, found = view.step(difference.step)
    assert expected is not None
    assert found is not None
    steps = view.line.steps
    given = _order(found)
    content = found.components.get("batch")
    same = [s for s, mark in steps.items() if mark.components.get("batch") == content]
    if content is None or not same:
        same = [step for step, mark in steps.items() if _order(mark) == given]
    # The first batch of all is what a lost position or seed gives; else the nearest.
    instead = (
        1
        if 1 in same
        else min(same, key=lambda s: abs(s - difference.step), default=None)
    )
    return Mixup(
        step=difference.step,
        rank=view.rank,
        instead=instead,
        is_other_order=_order(expected) != given,
        is_fixed_order=_is_fixed(steps),
        is_known=bool(same) or _knows(steps, found.samples or ()),
        begun=begun(expected, found) if difference.step == view.joined + 1 else 0,
        is_cut_otherwise=_is_cut_otherwise(expected, found),
    )


def _is_cut_otherwise(expected: StepMark, found: StepMark) -> bool:
    """Whether a step begins with the right samples, and ends too early or too late."""
    want, have = tuple(expected.samples or ()), tuple(found.samples or ())
    shorter = min(len(want), len(have))
    return (
        expected.micro != found.micro
        and 0 < shorter < max(len(want), len(have))
        and want[:shorter] == have[:shorter]
    )


def _knows(steps: Mapping[int, StepMark], samples: Sequence[str]) -> bool:
    """Whether all of these samples occur in a line; a line without any knows nothing."""
    known = {sample for mark in steps.values() for sample in mark.samples or ()}
    return not known or known.issuperset(samples)


def _order(mark: StepMark) -> tuple[str, ...]:
    """Return what tells a batch's samples, and not what an augmentation made of them."""
    if mark.samples is not None:
        return (mark.ids, *mark.samples)
    found = mark.components.get("samples") or mark.components.get("batch") or ""
    return ("batch", found)


def _is_fixed(steps: Mapping[int, StepMark]) -> bool:
    """Whether a line has the same batches in each epoch, so that nothing draws them."""
    epochs: dict[int | None, list[tuple[str, ...]]] = {}
    for step in sorted(steps):
        epochs.setdefault(steps[step].epoch, []).append(_order(steps[step]))
    if len(epochs) < 2:
        # No epochs are known: the batches then come round, or they do not.
        batches = next(iter(epochs.values()), [])
        return 2 * len(set(batches)) <= len(batches)
    first, *others = epochs.values()
    return all(other == first[: len(other)] for other in others)


def is_wrong(view: RankView, component: str) -> bool:
    """Whether a component of the state is wrong at the join in a way that matters."""
    if component == "scheduler":
        # Its position may be counted otherwise; what matters are the rates.
        return component in view.wrong and view.first("rates") is not None
    return component in view.wrong


def wrong(view: RankView) -> tuple[str, ...]:
    """Return the components of the state that are wrong at the join, and matter."""
    found = tuple(c for c in view.wrong if is_wrong(view, c))
    if "rates" in found and "optimizer" in found and "scheduler" not in found:
        # Rates live in the optimizer's groups, and come back with them.
        return tuple(c for c in found if c != "rates")
    return found


def reaches(view: RankView, stream: str, *, ranks: int) -> bool:
    """Whether a stream that is wrong at the join reaches anything that matters.

    It does if batches differ that may have been drawn from it, or if, all other inputs
    being equal, something it was read for differs. A stream that does not move in the
    line until then was not read, and has reached nothing.
    """
    if draws_order(view, stream):
        return True
    found = mixup(view)
    if any(c != "scheduler" for c in view.wrong):
        return _reaches_first_loss(view, stream, found)
    first = view.first(*_FORWARD)
    if first is None:
        return False
    if found is not None and found.step <= first.step:
        # Another batch hides what the stream does to the step; one that is read within
        # it in the line (dropout) matters all the same.
        at_join = found.is_other_order and found.step == view.joined + 1
        return at_join and _moves(view.line, stream, view.joined, view.joined + 1)
    if ranks > 1 and first.components == ("gradients",):
        # The loss of this rank is equal, so that its forward pass drew equal numbers.
        return False
    return _moves(view.line, stream, view.joined, first.step)


def draws_order(view: RankView, stream: str) -> bool:
    """Whether the batches of a rank may be other ones because of this stream."""
    found = mixup(view)
    if found is None or (found.is_other_order and found.is_fixed_order):
        return False
    if stream not in view.streams:
        return False
    if found.step > view.joined + 1:
        return _moves(view.line, stream, view.joined, found.step - 1)
    drawn = is_drawn(view.line, stream, found.step, is_order=found.is_other_order)
    if drawn is None:
        # What was drawn before the first state is the same if it begins alike again; and
        # a batch of that order shows that the order is the same.
        return (
            found.instead is None
            and stream not in view.disturbed
            and view.restored.get(stream) != "fresh"
        )
    if not drawn:
        return False
    # An order that another seed draws has no batch of the line: it is the place in it
    # that was lost, unless the stream is back at that place or at the start.
    if stream not in view.disturbed:
        if found.instead == 1 and _begins_again(view, stream, found):
            return False
        if found.instead in (None, 1):
            return True
        if not found.is_other_order:
            return bool(view.looked[stream])
        return _is_back(view, stream, found.instead)
    if not found.is_other_order:
        return True
    # A stream that was moved draws another order only where one is drawn: as an epoch
    # begins, or in each step. Else it was moved because the program drew one again.
    return found.instead is None and (
        _begins_epoch(view)
        or _moves(view.line, stream, view.joined - 1, view.joined + 1)
    )


def _begins_again(view: RankView, stream: str, found: Mixup) -> bool:
    """Whether a generator of an iterator's own began again with it, within an order.

    Its state would draw the next order; what was lost is the place in this one.
    """
    return (
        stream == "rng.own"
        and found.is_other_order
        and view.restored.get(stream) == "fresh"
        and is_within_an_order(view.line, view.joined)
    )


def _is_back(view: RankView, stream: str, step: int) -> bool:
    """Whether a stream has a value that it had in the epoch of `step` in the line."""
    steps = view.line.steps
    epochs = {steps[s + 1].epoch for s in view.looked[stream] if s + 1 in steps}
    return steps[step].epoch in epochs


def _begins_epoch(view: RankView) -> bool:
    """Whether the step after the join is the first of its epoch in the line."""
    before = view.line.steps.get(view.joined)
    after = view.line.steps.get(view.joined + 1)
    return before is None or after is None or before.epoch != after.epoch


def _reaches_first_loss(view: RankView, stream: str, found: Mixup | None) -> bool:
    """Whether the first loss differs although the weights it was made with do not."""
    step = view.joined + 1
    if {"weights", "buffers"} & {*view.wrong} or (
        found is not None and found.step == step
    ):
        return False
    first = view.first("loss")
    return (
        first is not None
        and first.step == step
        and _moves(view.line, stream, view.joined, step)
    )


def _moves(line: RankReference, stream: str, earlier: int, later: int) -> bool:
    """Whether a stream was read in the line between two of its states."""
    states = [line.states.get(step) for step in range(earlier, later + 1)]
    values = {s.components.get(stream) for s in states if s is not None}
    return len(values) != 1 or None in states


def may_matter(view: RankView, stream: str) -> bool:
    """Whether a stream that is no known cause may have done something all the same.

    What the line reads it for after the join is hidden by what differs already; and a
    batch that nothing explains may have been made by anything.
    """
    if not any(d.matters for d in view.differences):
        return False
    found = mixup(view)
    if found is not None and not found.is_other_order:
        return True
    return _moves(view.line, stream, view.joined, max(view.line.states, default=0))


def frozen(view: RankView) -> int | str | None:
    """Return where weights came from that nothing trains, if they are wrong and matter.

    A teacher or a target network matters where the first loss is another one. Of copies
    of weights that are wrong themselves nothing more is said.
    """
    first = view.first("loss", "gradients")
    if first is None or first.step != view.joined + 1:
        return None
    return None if {"weights", "averages"} & {*view.wrong} else view.frozen


def streams(resumed: ResumedAttempt, view: RankView) -> tuple[str, ...]:
    """Return the random streams whose loss matters."""
    ranks = resumed.attempt.trace.world_size
    return tuple(s for s in view.streams if reaches(view, s, ranks=ranks))


def is_foreign(resumed: ResumedAttempt) -> bool:
    """Whether an attempt goes on from a checkpoint of another run."""
    if resumed.join.disagrees:
        return False
    if resumed.unwritten and (
        is_ahead(resumed) or not (resumed.trained or resumed.joined)
    ):
        return True
    if not resumed.has_begun or not resumed.trained:
        return False
    if resumed.joined is None:
        return True
    return bool(resumed.views) and all(
        _is_foreign(view) for view in resumed.views.values()
    )


def is_ahead(resumed: ResumedAttempt) -> bool:
    """Whether an attempt begins with what only steps have that nobody had come to."""
    joined = resumed.joined
    if joined is None or joined <= resumed.reached or not resumed.views:
        return False
    return all(
        any(
            component in STRONG and steps and min(steps) > resumed.reached
            for component, steps in view.looked.items()
        )
        for view in resumed.views.values()
    )


def _is_foreign(view: RankView) -> bool:
    if view.restored.get("weights") != "foreign" or "weights" in view.dtypes:
        return False
    # A run of the same length has the same rates; its moments and streams are its own.
    telling = [c for c in view.looked if c in STRONG or is_stream(c)]
    return not any(
        view.joined in view.looked[c] and 0 not in view.looked[c] for c in telling
    )


def has_cause(resumed: ResumedAttempt) -> bool:
    """Whether anything wrong at the join, or with the data, explains a divergence."""
    if resumed.joined is None or is_foreign(resumed) or is_restart(resumed):
        return True
    return any(
        wrong(view) or streams(resumed, view) or mixup(view) or frozen(view) is not None
        for view in resumed.views.values()
    )


def is_restart(resumed: ResumedAttempt) -> bool:
    """Whether an attempt wrongly began at step 0 although a checkpoint was there."""
    return (
        resumed.is_resume
        and not resumed.is_all_over
        and resumed.joined == 0
        and any(s.is_settled and s.step for s in resumed.saved)
    )


def judged(case: Case) -> list[ResumedAttempt]:
    """Return the resumed attempts whose state and data can be compared at all."""
    return [
        resumed
        for resumed in case.resumes()
        if resumed.views
        and not resumed.join.disagrees
        and not resumed.starts_afresh
        and not is_restart(resumed)
        and not is_foreign(resumed)
        and not resumed.is_all_over
        and not resumed.has_nothing_left
    ]
