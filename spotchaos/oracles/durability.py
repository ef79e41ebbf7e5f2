"""What a crash state means: which of the durability findings a resume from it shows.

The judgement of a resume says what went wrong (it failed, it started again, it holds
other weights). The file op at which the state was cut says why: the old checkpoint was
deleted first, the pointer ran ahead, the bytes were torn or never synced.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from spotchaos.model import Attempt, Ended, Finding, Judgement
from spotchaos.oracles.wording import ending_of, exception_of

# The resume went on, and failed at a save; or a lock of the killed one held it up.
BLOCKED = "leftover-blocks-save"
# What a judgement can say of a resume that got nothing, or too little, from the disk.
_LOST = ("silent-restart", "stale-resume", "lost-work", "ranks-disagree")
_FAILED = ("resume-failed", "hang")
_WRONG = (
    "weights-not-restored",
    "buffers-not-restored",
    "optimizer-not-restored",
    "foreign-resume",
    "diverged",
    "dtype-changed",
)
# What follows where only the position in the data is of another step.
_OF_POSITION = (
    "samples-repeated",
    "samples-skipped",
    "step-count-wrong",
    "order-changed",
)


@dataclass(frozen=True, slots=True)
class Cut:
    """The file op at which a crash state was cut, as far as it is known.

    Attributes:
        kind: of the first op that makes a resume go wrong: `write`, `rename`, ...
        path: what it was made on.
        to: where a rename went.
        where: `file:line` of the program.
        is_power_loss: the state lost bytes or names that had been written.
        is_pointer: the path is no checkpoint but names one.
        is_removal: it took away a name that the resume needed.
        is_emptying: it took the bytes away that a checkpoint had.
        is_leftover: it made what is in the way of a resume until it is deleted.
        is_one_of_several: what it made is whole, and lacks what a later op brings.
        is_end: the state is the one that the run leaves when it has come to its end.
        later_ops: how many ops later the crash came.
    """

    kind: str | None
    path: str | None = None
    to: str | None = None
    where: str | None = None
    is_power_loss: bool = False
    is_pointer: bool = False
    is_removal: bool = False
    is_emptying: bool = False
    is_leftover: bool = False
    is_one_of_several: bool = False
    is_end: bool = False
    later_ops: int = 0


def durability(
    judgement: Judgement,
    resumed: Attempt,
    cut: Cut,
    *,
    always: Collection[str] = (),
) -> Finding | None:
    """Name what a resume from one crash state shows; None if it held.

    Args:
        judgement: of the trial whose last attempt resumed from the state.
        resumed: that attempt.
        cut: the op that made the difference.
        always: findings that a resume after a clean stop shows as well; the crash is
            not to blame for them, and they keep their names.
    """
    if not judgement.findings:
        return None
    new = [f for f in judgement.findings if f.name not in always]
    if not new:
        return judgement.findings[0]
    first = new[0]
    names = [finding.name for finding in new]
    name = _name(names, resumed, cut)
    if name == "silent-damage" and _is_of_data(judgement, first):
        name = None
    is_of_two = "mixed-steps" in names or _goes_on_elsewhere(judgement, new, resumed)
    if name is None and is_of_two:
        name = "mixed-steps"
    if is_of_two:
        cut = replace(cut, is_one_of_several=False)
    where = place_of(cut.where)
    if cut.is_end and first.name in _FAILED and not resumed.trace.completed:
        return replace(first, message=_after_the_end(resumed), hint=_AT_THE_END)
    if name is None:
        return replace(first, where=first.where or where)
    return replace(
        first,
        name=name,
        message=_message(name, resumed, cut),
        hint=_hint(name, cut),
        where=where or first.where,
    )


def _is_of_data(judgement: Judgement, first: Finding) -> bool:
    """Tell whether the state is whole, and what it is trained on is another.

    As after a preparation of data that a kill interrupted and the next start took for
    done, or did twice.
    """
    if first.name != "diverged" or not judgement.resumes:
        return False
    last = judgement.resumes[-1]
    is_data = first.component in ("batch", "samples")
    return is_data and all(
        components.get(name, last.joined) == last.joined
        for components in last.restored.values()
        for name in ("weights", "buffers", "optimizer", "averages")
    )


def _hint(name: str, cut: Cut) -> str:
    if name == "unsynced-checkpoint" and cut.kind == "mkdir":
        return "fsync the folder above a new one too, once: its name stands there"
    return HINTS[name]


def _goes_on_elsewhere(
    judgement: Judgement, new: Sequence[Finding], resumed: Attempt
) -> bool:
    """Tell whether the program counts from another saved step than its state is of.

    That is what a position, kept in a file of its own, looks like that is of another
    save than the weights: no component is wrong, but the data and the count of steps.
    """
    names = {finding.name for finding in new}
    if names.isdisjoint(_OF_POSITION):
        return False
    for resume in judgement.resumes[-1:]:
        if "step-count-wrong" in names and resume.joined and resumed.trace.completed:
            return True  # after a clean stop it counts right
        for components in resume.restored.values():
            steps = {step for step in components.values() if isinstance(step, int)}
            if len(steps) > 1 and 0 not in steps:
                return True
    return False


def _name(names: Sequence[str], resumed: Attempt, cut: Cut) -> str | None:
    failed = any(name in _FAILED for name in names)
    if "mixed-steps" in names:
        return "mixed-steps"
    if failed and (resumed.trace.completed > 0 or cut.is_leftover):
        return BLOCKED
    if failed or any(name in _LOST for name in names):
        if cut.is_power_loss:
            return "unsynced-checkpoint"
        if cut.is_removal or cut.kind in ("unlink", "rmdir"):
            return "deleted-before-saved"
        if cut.is_pointer:
            return "pointer-ahead"
        return "torn-checkpoint" if failed or cut.is_emptying else None
    if any(name in _WRONG for name in names):
        return "mixed-steps" if cut.is_one_of_several else "silent-damage"
    return None


def _after_the_end(resumed: Attempt) -> str:
    how = _how_it_fails(resumed) or "the resume fails"
    return f"killed after the last save, with nothing left to train, {how}"


def _how_it_fails(resumed: Attempt) -> str | None:
    exception = exception_of(resumed)
    if exception is not None:
        return f"the resume fails with {exception.type}: {exception.message[:120]}"
    if resumed.ended is Ended.FAILED:
        return f"the resume fails with {ending_of(resumed)[:160]}"
    return "the resume never ends" if resumed.ended is Ended.HUNG else None


def _message(name: str, resumed: Attempt, cut: Cut) -> str:
    what = "the resume starts again or goes back further than it must"
    failure = _how_it_fails(resumed)
    if failure is not None:
        what = failure
    elif name == "mixed-steps" and cut.is_one_of_several:
        what = "the resume goes on from a part of what is saved, without a word"
    elif name == "mixed-steps":
        what = "the resume goes on from parts of different saves without a word"
    elif name == "silent-damage":
        what = "the resume goes on from damaged state without a word"
    op = f"{cut.kind} {cut.path!r}" if cut.kind else "the save"
    if cut.to:
        op += f" to {cut.to!r}"
    when = "after a power loss" if cut.is_power_loss else f"killed at {op}"
    if cut.later_ops:
        plural = "" if cut.later_ops == 1 else "s"
        when = f"killed {cut.later_ops} operation{plural} after {op}"
    return f"{when}, {what}"


def place_of(where: str | None) -> dict[str, object] | None:
    """Return `file:line` as findings have it; None if it is not known."""
    file, _, line = (where or "").rpartition(":")
    if not file or not line.isdecimal():
        return None
    return {"file": file, "line": int(line)}


_AT_THE_END = (
    "let a start with nothing left to train end well: what the loop sets (the last loss, a"
    " pool, a writer) is not there then"
)
HINTS = {
    "torn-checkpoint": "write beside the checkpoint and rename over it, or write a"
    " manifest last and let the resume take the newest checkpoint that is whole",
    "unsynced-checkpoint": "fsync the file before the rename, and the folder after it",
    "deleted-before-saved": "delete the old checkpoint only once the new one is whole"
    " and named; replace a pointer by a rename instead of unlink and create",
    "pointer-ahead": "move the pointer only once the checkpoint that it names is whole",
    "silent-damage": "keep a checksum of each checkpoint and verify it on resume",
    "mixed-steps": "save each step into a folder of its own, and commit it last",
    BLOCKED: "let a start or a save replace what a killed one left behind",
}
