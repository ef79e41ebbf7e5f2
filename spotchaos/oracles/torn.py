"""Are the tensors of a resumed state of one step? Looked up one by one.

A thread that writes live tensors while training goes on leaves a checkpoint in which each
is of the step at which its turn came: no component has a value that the run ever had.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from spotchaos.model import Finding, Judgement
from spotchaos.oracles.lineage import Case, ResumedAttempt
from spotchaos.oracles.wording import HINTS, listed, place_of

# What such a checkpoint looks like to who compares whole components.
CONSEQUENCES = frozenset(
    {
        "weights-not-restored",
        "optimizer-not-restored",
        "foreign-resume",
        "mixed-steps",
        "diverged",
    }
)
_LOOKED_UP = ("weights", "optimizer")

Tensors = Mapping[str, str]


def judge_torn(case: Case) -> Iterator[Finding]:
    """Name resumes whose tensors are of different steps; needs `Baseline.tensors`."""
    for resumed in case.resumes():
        saved = {*case.habit.steps, *(save.step for save in resumed.saved), 0}
        for rank, trace in sorted(resumed.attempt.trace.ranks.items()):
            table = case.baseline.tensors.get(rank)
            if table is None or 0 not in trace.tensors:
                continue
            apart = _untied_at(trace.tensors[0], table, saved=saved)
            if apart is not None:
                yield _tie_lost(resumed, rank, *apart)
                break
            found = torn(trace.tensors[0], table, saved=saved)
            if found:
                yield _finding(resumed, rank, found)
                break


def may_be_torn(judgement: Judgement) -> bool:
    """Tell whether a look at single tensors could say more of a resume."""
    return any(
        components.get(name) == "foreign"
        for resume in judgement.resumes
        for components in resume.restored.values()
        for name in _LOOKED_UP
    )


def without_consequences(found: Iterable[Finding]) -> Iterator[Finding]:
    """Leave out what follows from a torn checkpoint, in the attempt that loaded it."""
    found = list(found)
    causes = [f for f in found if f.name == "torn-snapshot" or f.hint == HINTS["tied"]]
    explained = {cause.attempt for cause in causes}
    for finding in found:
        follows = finding.attempt in explained and finding.name in CONSEQUENCES
        if finding in causes or not follows:
            yield finding


def torn(
    tensors: Tensors, table: Mapping[int, Tensors], *, saved: Collection[int]
) -> dict[str, int] | None:
    """Return the step of each tensor, if no one step has them all.

    Args:
        tensors: of a resumed state.
        table: of the uninterrupted run, step by step.
        saved: steps at which the run saves: tensors that are each of one of these come
            from several whole checkpoints, which is another flaw.
    """
    for component in _LOOKED_UP:
        names = [name for name in tensors if name.startswith(f"{component}/")]
        sets = {
            name: {
                step for step, row in table.items() if row.get(name) == tensors[name]
            }
            for name in names
        }
        found = {name: steps for name, steps in sets.items() if steps - {0}}
        # A large tensor may itself be torn; then it is found nowhere.
        if len(found) < 2 or 2 * len(found) < len(names):
            continue
        if set.intersection(*found.values()):
            continue
        if all(steps & set(saved) for steps in found.values()):
            continue
        return {name: min(steps - {0}) for name, steps in found.items()}
    return None


def strays(
    tensors: Tensors, table: Mapping[int, Tensors], *, component: str, step: int
) -> tuple[list[str], int] | None:
    """Return those tensors of a component that are not of a step, and how many there are.

    None if all are, or if none is: what stands still all run long is of every step, and
    was not restored for it.

    Args:
        tensors: of a resumed state; an optimizer that has none is without state.
        table: of the uninterrupted run, step by step.
        component: "weights" or "optimizer".
        step: that of which the rest of the state is.
    """
    there, start = table.get(step, {}), table.get(0, {})
    names = sorted(n for n in {*there, *tensors} if n.startswith(f"{component}/"))
    wrong = [name for name in names if tensors.get(name) != there.get(name)]
    right = [n for n in names if n not in wrong and there.get(n) != start.get(n)]
    return (wrong, len(names)) if wrong and right else None


def untied(tensors: Tensors, row: Tensors) -> list[str]:
    """Return weights that a resumed state has besides all those of a step.

    Two names of one parameter are one tensor: it is two once the tie is lost.

    Args:
        tensors: of a resumed state.
        row: of that step of the uninterrupted run.
    """
    there = {name: d for name, d in row.items() if name.startswith("weights/")}
    if not there or any(tensors.get(name) != d for name, d in there.items()):
        return []
    return sorted(n for n in tensors if n.startswith("weights/") and n not in there)


def _untied_at(
    tensors: Tensors, table: Mapping[int, Tensors], *, saved: Collection[int]
) -> tuple[int, list[str]] | None:
    """Return the saved step whose weights a state has, and some more; None: no such one."""
    for step in sorted({*saved} & table.keys(), reverse=True):
        found = untied(tensors, table[step])
        if found and step:
            return step, found
    return None


def _tie_lost(
    resumed: ResumedAttempt, rank: int, step: int, apart: Sequence[str]
) -> Finding:
    names = listed(place_of(name) for name in apart[:2])
    return Finding(
        "weights-not-restored",
        f"the program resumed at step {step}, but weights that two modules shared before"
        f" are separate now ({names}): the tie was lost, and they are trained apart",
        hint=HINTS["tied"],
        attempt=resumed.number,
        step=step + 1,
        rank=rank,
        component="weights",
    )


def _finding(resumed: ResumedAttempt, rank: int, found: Mapping[str, int]) -> Finding:
    first = min(found, key=lambda name: found[name])
    last = max(found, key=lambda name: found[name])
    return Finding(
        "torn-snapshot",
        f"attempt {resumed.number} loaded a checkpoint whose tensors are of different"
        f" steps: {_spelled(first)} is of step {found[first]}, {_spelled(last)} of step"
        f" {found[last]}",
        hint="copy every tensor at the step boundary, before the next step, and let the"
        " thread write the copies",
        attempt=resumed.number,
        step=resumed.joined,
        rank=rank,
        component=first.partition("/")[0],
    )


def _spelled(name: str) -> str:
    component, _, rest = name.partition("/")
    return f"{rest!r} of the {component}"
