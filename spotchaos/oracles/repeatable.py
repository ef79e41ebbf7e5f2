"""Do uninterrupted runs equal one another, and is there anything in them to compare?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spotchaos.model import (
    Attempt,
    Baseline,
    Finding,
    Note,
    RankTrace,
    StateMark,
    StepMark,
)
from spotchaos.oracles.lineage import Case
from spotchaos.oracles.wording import listed, name_of
from spotchaos.trace.format import COMPONENTS

# What a light run has fingerprints of, and what must be equal for it to count.
_OBSERVED = ("weights", "buffers", "optimizer", "averages")


@dataclass(frozen=True, slots=True)
class BaselineFacts:
    """What two uninterrupted runs and a light one tell.

    `finding` is why nothing can be judged, or None.
    """

    baseline: Baseline
    finding: Finding | None
    notes: tuple[Note, ...]

    @property
    def repeatable(self) -> bool:
        return self.baseline.repeatable


@dataclass(frozen=True, slots=True)
class _Parting:
    """One place at which two runs are not equal."""

    step: int
    rank: int
    component: str
    of_state: bool  # the state of `step`, else what `step` consumed or made


def judge_baselines(
    runs: Sequence[Attempt], light: Attempt | None = None
) -> BaselineFacts:
    """Compare uninterrupted runs, component by component and rank by rank.

    Args:
        runs: with full fingerprints, at least one; the first is the one to compare with.
        light: the run that fingerprinted only its beginning, its saves and its end.
    """
    first = runs[0]
    partings = [p for run in runs[1:] for p in _partings(first, run)]
    unequal = {p.component for p in partings}
    not_compared = tuple(
        [c for c in COMPONENTS if c in unequal] + sorted(unequal - {*COMPONENTS})
    )
    differs_at = _differs_at(runs, partings)
    observed = (
        _observer_effect(first, light, not_compared) if light is not None else None
    )
    baseline = Baseline(
        runs=tuple(runs),
        light=light,
        control=None,
        repeatable=differs_at is None and observed is None,
        differs_at=differs_at or observed,
        not_compared=not_compared,
        patterns=(),
        observer_effect=observed is not None,
    )
    finding = _runs_behind(first, differs_at) or _finding(first, differs_at, observed)
    told = [c for c in not_compared if _is_used(first, c)]
    notes = [_not_compared(partings, told)] if told and finding is None else []
    if finding is None:
        notes += _lives_on(runs)
    return BaselineFacts(baseline, finding, tuple(notes))


def _lives_on(runs: Sequence[Attempt]) -> list[Note]:
    """Say what the program leaves running at its own end, whatever is done to it."""
    lived = list(
        dict.fromkeys(
            text.partition(": ")[2] or text for run in runs for text in run.survivors
        )
    )
    if not lived:
        return []
    return [
        Note(
            "lives-on",
            "the program ended by itself, and what it had started lived on and was"
            f" killed with the attempt: {listed(lived[:3])}",
        )
    ]


def judge_first_attempt(case: Case) -> Iterator[Finding]:
    """Name a trial that leaves the baseline before anything was done to it.

    Two equal baselines are weak evidence: a program that trains from uninitialised
    memory is equal by luck now and then.
    """
    resumed = case.links[0]
    stop = _warned_step(resumed.attempt)
    for rank, view in sorted(resumed.views.items()):
        first = next((d for d in view.differences if d.matters), None)
        if first is None or (stop is not None and first.step > stop):
            continue
        yield Finding(
            "not-repeatable",
            f"attempt 1 left the baseline at step {first.step}, before anything was done"
            f" to it, in {listed(map(name_of, first.components))}",
            hint="two baselines were equal by luck: seed everything (--seed-program), and"
            " look for memory that is never initialised and for work in threads",
            attempt=resumed.number,
            step=first.step,
            rank=rank,
            component=first.components[0],
        )
        return


def _warned_step(attempt: Attempt) -> int | None:
    """Return the step after which the program may answer a signal or a notice."""
    if attempt.signalled_step is not None:
        return attempt.signalled_step
    if attempt.notice_at_s is None:
        return None
    return min(
        sum(mark.t_s < attempt.notice_at_s for mark in rank.steps)
        for rank in attempt.trace.ranks.values()
    )


def _runs_behind(first: Attempt, differs_at: str | None) -> Finding | None:
    """Say of a command that ended before what it had started that it did."""
    cut_short = [r for r in first.trace.ranks.values() if not r.said_bye]
    if not first.survivors or (
        first.trace.completed and not (differs_at is not None and cut_short)
    ):
        return None
    lived = first.survivors[0].partition(": ")[2] or first.survivors[0]
    return Finding(
        "not-observed",
        f"the command ended while what it had started still ran: {lived}",
        hint="a run is over when its command is: let it wait for the program (`setsid"
        " --wait`, `wait` in a script, no `&` or nohup at the end), or `exec` it",
    )


def _finding(
    first: Attempt, differs_at: str | None, observed: str | None
) -> Finding | None:
    if first.trace.torch_seen and not first.trace.completed:
        return Finding(
            "not-observed",
            "the program ran to its end with torch, and the probe saw no optimizer step,"
            " no backward, and no batch of a DataLoader",
            hint="was there anything left to train? What changes its weights without"
            " gradients (evolution, boosting) cannot be judged",
        )
    if not first.trace.observed or not first.trace.completed:
        return Finding(
            "not-observed",
            "the program ran to its end, and the probe saw no training step",
            hint="does the command set its own PYTHONPATH, use `python -I`, or train in"
            " another language? The probe needs torch and sitecustomize",
        )
    turns = first.trace.in_turn
    if turns:
        return Finding(
            "not-observed",
            f"the command trains {len(turns)} times, each time in a process of its own,"
            f" one after the other: {turns[0]}, then {turns[1]}"
            + (" and so on" if len(turns) > 2 else ""),
            hint="what a resume joins can be told of one training only: try each by"
            " itself (spotchaos run -- COMMAND, with the command of one of them)",
        )
    if differs_at is not None:
        return Finding(
            "not-repeatable",
            f"two uninterrupted runs differ: {differs_at}",
            hint="seed it: --seed-program 1 seeds torch, NumPy and random from outside;"
            " then look for threads, GPU kernels (--deterministic) and uninitialised"
            " memory",
        )
    if observed is not None:
        return Finding(
            "not-repeatable",
            f"a run that was observed less differs from the others: {observed}",
            hint="either the program repeats only by luck, or being observed changes it;"
            " please report the latter",
        )
    if _has_no_weights(first):
        return Finding(
            "not-observed",
            f"the probe saw {first.trace.completed} batches, and no weights that anything"
            " trains: there is no state that a resume could be compared with",
            hint="a program that computes outputs (inference, embeddings) without training"
            " cannot be judged by the state of its training",
        )
    if _is_vacuous(first):
        if not _is_trained_by_torch(first):
            return Finding(
                "vacuous",
                f"no weight that can be seen from outside changes in"
                f" {first.trace.completed} steps, and neither an optimizer's step nor a"
                " backward was seen",
                hint="a program that computes new weights into tensors of its own"
                " (torch.func, JAX's manner) cannot be judged; one that copies them into"
                " its module's parameters after each step can",
            )
        return Finding(
            "vacuous",
            f"the weights never change in {first.trace.completed} steps, so that every"
            " resume equals every other",
            hint="is the loss connected to the weights, and the learning rate above 0?",
        )
    return None


def _is_trained_by_torch(run: Attempt) -> bool:
    """Tell whether an optimizer or a backward was seen at all."""
    return any(
        not rank.counted
        or rank.counted.get("optimizer")
        or rank.counted.get("backward")
        for rank in run.trace.ranks.values()
    )


def _has_no_weights(run: Attempt) -> bool:
    """Tell whether neither training was seen nor any state with weights in it."""
    return not _is_trained_by_torch(run) and not any(
        "weights" in state.components
        for rank in run.trace.ranks.values()
        for state in (*rank.states.values(), *([rank.finish] if rank.finish else []))
    )


def _is_vacuous(run: Attempt) -> bool:
    for rank in run.trace.ranks.values():
        states = [*rank.states.values(), *([rank.finish] if rank.finish else [])]
        weights = {s.components["weights"] for s in states if "weights" in s.components}
        if len(weights) != 1 or len(states) < 2:
            return False
    return True


def _partings(first: Attempt, second: Attempt) -> Iterator[_Parting]:
    ours, theirs = first.trace.ranks, second.trace.ranks
    for rank in sorted(ours.keys() & theirs.keys()):
        yield from _rank_partings(rank, ours[rank], theirs[rank])


def _rank_partings(rank: int, ours: RankTrace, theirs: RankTrace) -> Iterator[_Parting]:
    other_steps = {mark.step: mark for mark in theirs.steps}
    for step, state in ours.states.items():
        for component in _unequal(state, theirs.states.get(step)):
            yield _Parting(step, rank, component, of_state=True)
    for mark in ours.steps:
        for component in _unequal(mark, other_steps.get(mark.step)):
            yield _Parting(mark.step, rank, component, of_state=False)
    for component in _unequal(ours.finish, theirs.finish):
        yield _Parting(ours.completed, rank, component, of_state=True)


def _unequal(
    ours: StateMark | StepMark | None, theirs: StateMark | StepMark | None
) -> list[str]:
    if ours is None or theirs is None:
        return []
    both = ours.components.keys() & theirs.components.keys()
    return [c for c in sorted(both) if ours.components[c] != theirs.components[c]]


def _differs_at(runs: Sequence[Attempt], partings: Sequence[_Parting]) -> str | None:
    """Say where runs part so that nothing can be compared, or None."""
    lengths = {run.trace.completed for run in runs}
    if len(lengths) > 1:
        counts = " and ".join(str(n) for n in sorted(lengths))
        return f"they take {counts} steps"
    if len({tuple(sorted(run.trace.ranks)) for run in runs}) > 1:
        return "they have other numbers of ranks"
    weights = [p for p in partings if p.component == "weights"]
    if not weights:
        return None
    if any(p.step == 0 for p in weights):
        return "the weights differ before the first step (an unseeded initialisation)"
    # What came first explains the weights; a stream that differs all along does not.
    causes = [p for p in partings if p.component in _CAUSES]
    cause = min(causes, key=lambda p: (_moment(p), _CAUSES.index(p.component), p.rank))
    where = "" if len(runs[0].trace.ranks) == 1 else f" on rank {cause.rank}"
    return f"{_CAUSE_WORDS[cause.component].format(step=cause.step)}{where}"


_CAUSES = (
    "batch",
    "samples",
    "loss",
    "gradients",
    "buffers",
    "optimizer",
    "rates",
    "weights",
)
_CAUSE_WORDS = {
    "batch": "the batch of step {step} differs (an unseeded order, or data that change)",
    "samples": "the samples of step {step} differ (an unseeded order)",
    "loss": "the loss of step {step} differs, on an equal batch (unseeded dropout, or an"
    " operation that is not deterministic)",
    "gradients": "the gradients of step {step} differ, on an equal batch and loss",
    "buffers": "the buffers after step {step} differ",
    "optimizer": "the optimizer's state after step {step} differs",
    "rates": "the learning rates after step {step} differ",
    "weights": "the weights after step {step} differ",
}


def _moment(parting: _Parting) -> tuple[int, bool]:
    """Order places in time: what a step makes comes before the state after it."""
    return (parting.step, parting.of_state)


def _observer_effect(
    first: Attempt, light: Attempt, not_compared: Sequence[str]
) -> str | None:
    """Say where the lightly observed run differs from the first, or None."""
    if first.trace.completed != light.trace.completed:
        return (
            f"it takes {light.trace.completed} steps instead of {first.trace.completed}"
        )
    for rank in sorted(first.trace.ranks.keys() & light.trace.ranks.keys()):
        ours, theirs = first.trace.ranks[rank], light.trace.ranks[rank]
        for step, state in theirs.states.items():
            found = _observed(ours.states.get(step), state, not_compared)
            if found is not None:
                return f"{name_of(found)} of step {step} differ"
        mine = {s.step: s.state for s in ours.saves if not s.is_beside}
        for save in theirs.saves:
            found = _observed(mine.get(save.step), save.state, not_compared)
            if found is not None:
                return f"{name_of(found)} differ at the save of step {save.step}"
        found = _observed(ours.finish, theirs.finish, not_compared)
        if found is not None:
            return f"{name_of(found)} differ at the end"
    return None


def _observed(
    ours: StateMark | None, theirs: StateMark | None, not_compared: Sequence[str]
) -> str | None:
    unequal = set(_unequal(ours, theirs)).difference(not_compared)
    return next((c for c in _OBSERVED if c in unequal), None)


def _is_used(run: Attempt, component: str) -> bool:
    """Tell whether a stream moves at all; one that nobody draws from is not worth a word."""
    if not component.startswith("rng."):
        return True
    return any(
        len({s.components.get(component) for s in rank.states.values()}) > 1
        for rank in run.trace.ranks.values()
    )


def _not_compared(partings: Sequence[_Parting], told: Sequence[str]) -> Note:
    first = min((p for p in partings if p.component in told), key=_moment)
    names = listed(map(name_of, told))
    return Note(
        "component-not-compared",
        f"two uninterrupted runs differ in {names}, first at step {first.step}, so that"
        f" {'it is' if len(told) == 1 else 'they are'} not compared",
    )
