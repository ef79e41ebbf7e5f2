"""Did all ranks resume from one step, and did they notice when one of them was gone?"""

from __future__ import annotations

from collections.abc import Iterator

from spotchaos.model import Attempt, Ended, Finding
from spotchaos.oracles.lineage import Case, ResumedAttempt
from spotchaos.oracles.wording import listed, steps_of, waits_in

# What a launcher can pass on to its ranks before it ends.
_CATCHABLE = frozenset({"TERM", "INT", "HUP", "USR1", "USR2"})
# Who may be told alone, and has to tell the others.
_MESSENGERS = frozenset({"leader", "launcher"})
# What asks a program to stop; after USR1 many save and train on.
_STOPS = frozenset({"TERM", "INT", "HUP"})
# Ranks may take so long to notice that their launcher has gone.
BEHIND_S = 1.0
_BY_ITSELF = frozenset({Ended.FINISHED, Ended.EXITED, Ended.FAILED})


def judge_ranks(case: Case) -> Iterator[Finding]:
    """Name ranks that resume apart, that wait for ever, and processes that live on."""
    for resumed in case.links:
        if resumed.attempt.stuck:
            yield _peer_hang(resumed)
        yield from _orphans(case, resumed)
    for resumed in case.resumes():
        if not resumed.join.disagrees:
            continue
        joined = [
            (r, s) for r, s in sorted(resumed.join.ranks.items()) if s is not None
        ]
        words = listed(f"rank {rank} at step {step}" for rank, step in joined)
        yield Finding(
            "ranks-disagree",
            f"in attempt {resumed.number} the ranks resumed from different steps: {words}",
            hint="let rank 0 choose the checkpoint and broadcast its step, and let every"
            " rank load that one",
            attempt=resumed.number,
            step=min(step for _, step in joined),
            rank=joined[0][0],
        )


def _peer_hang(resumed: ResumedAttempt) -> Finding:
    attempt = resumed.attempt
    waits = waits_in(attempt.stacks)
    said = listed(f"{who} at {file}:{line}" for who, file, line in waits)
    where = {"file": waits[0][1], "line": waits[0][2]} if waits else None
    return Finding(
        "peer-hang",
        f"a rank was gone after step {attempt.signalled_step}, and the others neither"
        " trained on nor ended until the grace window did"
        + (f"; they waited: {said}" if said else ""),
        hint="give every wait for another rank a bound (the timeout of the process group,"
        " of the store, of a barrier), and exit with an error when it passes",
        attempt=resumed.number,
        step=resumed.end,
        where=where,
    )


def _orphans(case: Case, resumed: ResumedAttempt) -> Iterator[Finding]:
    """Name processes that outlived the end; those that always do are a habit."""
    found: list[str] = []
    if resumed.attempt.ended in _BY_ITSELF:
        usual = {name for run in case.baseline.runs for name in _survivors(run)}
        found = [name for name in _survivors(resumed.attempt) if name not in usual]
    said = f"lived on: {listed(found[:3])}"
    if not found:
        steps = trained_behind(resumed.attempt)
        if not steps:
            return
        said = (
            f"its ranks, which SIG{resumed.attempt.signal} to their {resumed.attempt.target} did"
            f" not reach, trained on for {steps_of(steps)}"
        )
    yield Finding(
        "orphans",
        f"attempt {resumed.number} was over, and {said}",
        hint="let children die with their parent (daemon=True and join, a pipe whose"
        " end they notice, PR_SET_PDEATHSIG), and a shell `exec` the program or pass"
        " signals on; a start on the same machine meets them",
        attempt=resumed.number,
        step=resumed.end,
    )


def trained_behind(attempt: Attempt) -> int:
    """Return how many steps ranks did without who alone was told to stop, and had.

    Only of a signal that can be passed on, to the process that started the ranks: where
    that is killed, or everybody is told, such steps say nothing of the program. The
    first of them may have been under way: a signal that was passed on waits for its end.
    The machine may have gone before anybody asked who lived on.
    """
    if attempt.signal not in _CATCHABLE:
        return 0
    if attempt.target not in _MESSENGERS and not went_past_ranks(attempt):
        return 0
    if attempt.over_at_s is None:
        return 0
    late_s = attempt.over_at_s + BEHIND_S / attempt.undelayed_share
    late = (
        sum(mark.t_s > late_s for mark in rank.steps)
        for rank in attempt.trace.ranks.values()
    )
    return max(0, max(late, default=0) - 1)


def was_not_passed_on(attempt: Attempt) -> bool:
    """Tell whether a signal to stop came to processes none of which trains.

    What its ranks do after it is what they would have done, unless it is passed on.
    """
    return attempt.signal in _STOPS and went_past_ranks(attempt)


def went_past_ranks(attempt: Attempt) -> bool:
    """Tell whether a signal was to reach a program, and reached none of its ranks."""
    return not attempt.notified_rank and attempt.target in {*_MESSENGERS, "group"}


def _survivors(attempt: Attempt) -> list[str]:
    """Return the command lines of what outlived an attempt, without their pids."""
    return [text.partition(": ")[2] or text for text in attempt.survivors]
