"""Classes of crash states: what the states of one share, and how its simplest is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from spotchaos.findings import PROMISES
from spotchaos.model import Attempt, Finding, Judgement, Trial, Verdict
from spotchaos.oracles.durability import Cut, place_of
from spotchaos.oracles.wording import exception_of
from spotchaos.persistence import oplog
from spotchaos.persistence.crash_states import CrashState
from spotchaos.persistence.history import History, Layout
from spotchaos.persistence.materialise import Materialiser
from spotchaos.persistence.models import KILL
from spotchaos.persistence.tokens import StateToken
from spotchaos.recording.recorded_run import Recorded

# Of a class's tokens, and of the differences on disk, so many are shown.
MOST_TOKENS, MOST_DIFFERENCES = 20, 12


@dataclass(frozen=True, slots=True)
class Case:
    """One crash state to resume from, and the recording that it is of."""

    record: Recorded
    writer: Materialiser
    state: CrashState


@dataclass(frozen=True, slots=True)
class Resumed:
    """A resume from one crash state; those that are equal went the same way."""

    attempt: Attempt = field(compare=False)
    went: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one state."""

    token: StateToken  # of the equal states, the one whose crash shows most
    verdict: Verdict
    trial: Trial
    judgement: Judgement
    finding: Finding | None  # the one that says it best
    cut: Cut
    was_run: bool

    @property
    def kind(self) -> tuple[object, ...]:
        """What the states of one class share."""
        place = None if self.finding is None else _place_of(self.trial.attempts[-1])
        name = None if self.finding is None else self.finding.name
        return name, place, self.cut.kind, self.cut.is_power_loss


def groups(cases: Sequence[Case], results: Mapping[int, Result]) -> list[list[int]]:
    """Return the numbers of failing states, class by class, simplest first.

    A power loss that leaves what a kill leaves as well is no news, and is left out.
    """
    found: dict[tuple[object, ...], list[int]] = {}
    killed: set[str] = set()
    # States of a kill come first: a power loss that leaves the same is no news.
    for number, result in sorted(
        results.items(), key=lambda one: one[1].token.simplicity
    ):
        if result.finding is None:
            continue
        case = cases[number]
        key = case.record.history.key(case.state.layout)
        if result.token.letter == KILL.letter:
            killed.add(key)
        elif key in killed:
            continue
        found.setdefault(result.kind, []).append(number)

    def simplest(numbers: list[int]) -> tuple[int, object]:
        return min(simplicity(cases[n], results[n]) for n in numbers)

    return sorted(found.values(), key=simplest)


def without_no_checkpoint(results: Mapping[int, Result]) -> dict[int, Result]:
    """Return the results that say of a program that it never saves, where it does.

    One resume that went on proves it, although nobody saw a save; where it began at step
    0, nothing may have been saved yet.
    """
    if not any(r.joined for one in results.values() for r in one.judgement.resumes):
        return {}
    return {
        number: replace(
            one,
            verdict=Verdict.HELD,
            finding=None,
            judgement=replace(one.judgement, verdict=Verdict.HELD, findings=()),
        )
        for number, one in results.items()
        if one.finding is not None and one.finding.name == "no-checkpoint"
    }


def simplicity(case: Case, result: Result) -> tuple[int, object]:
    """Return a key that sorts the simplest state first: no resume, then fewest cuts."""
    return len(case.record.earlier), result.token.simplicity


def class_entry(
    cases: Sequence[Case],
    results: Mapping[int, Result],
    members: Sequence[int],
    *,
    shown: Result,
    trial: int,
    confirmed: bool,
) -> dict[str, Any]:
    """Return what a report says of one class.

    Args:
        cases: all states.
        results: what came of them.
        members: numbers of the states of the class; the first is its simplest.
        shown: the result that is shown for all.
        trial: the number of the trial that shows it.
        confirmed: a fresh process showed the finding as well.
    """
    finding = shown.finding or results[members[0]].finding
    assert finding is not None  # it is what makes the class
    return {
        "finding": finding.name,
        "severity": "power loss" if shown.cut.is_power_loss else "kill",
        "states": len(members),
        "state": str(shown.token),
        "model": shown.token.model.name,
        "during_resume": bool(cases[members[0]].record.earlier),
        "confirmed": confirmed,
        "trial": trial,
        "operation": _operation(shown.cut),
        "where": place_of(shown.cut.where),
        "message": finding.message,
        "hint": finding.hint,
        "on_disk": difference(cases, results, members[0]),
        "tokens": [str(results[n].token) for n in members[:MOST_TOKENS]],
    }


def difference(
    cases: Sequence[Case], results: Mapping[int, Result], number: int
) -> list[str]:
    """Return what is on disk against the nearest earlier kill state that works."""
    case = cases[number]
    near: CrashState | None = None
    for other, result in results.items():
        candidate = cases[other]
        token = candidate.state.token
        if (
            result.verdict is Verdict.HELD
            and candidate.record is case.record
            and token.letter == "K"
            and not token.early
            and token.number <= case.state.token.number
            and (near is None or token.number >= near.token.number)
        ):
            near = candidate.state
    if near is None:
        return []
    lines = [f"against {near.token}, which works:"]
    ours, theirs = case.state.layout, near.layout
    history = case.record.history
    for path in sorted(set(ours.things) | set(theirs.things)):
        mine = _described(history, ours, path)
        its = _described(history, theirs, path)
        if mine != its:
            lines.append(f"{path.partition('/')[2]}: {mine} (works with: {its})")
    if len(lines) == 1:
        return [f"the same as {near.token} leaves, at which less had been saved"]
    return lines[:MOST_DIFFERENCES]


def plan_of(record: Recorded, token: StateToken) -> str:
    """Return what a token of this state carries out: real kills where they can be."""
    plan = record.plan_of(token)
    if plan is not None:
        return plan
    return f"{oplog.digest(record.history.log)}/{token}"


def went(attempt: Attempt) -> tuple[object, ...]:
    """Return how an attempt went, as far as equal states must lead to it."""
    ranks = tuple(
        (
            number,
            rank.completed,
            None if rank.exception is None else rank.exception.type,
            None if rank.finish is None else rank.finish.components.get("weights"),
        )
        for number, rank in sorted(attempt.trace.ranks.items())
    )
    return attempt.ended, attempt.exit_code, ranks


def _place_of(attempt: Attempt) -> tuple[str, str | None, int | None] | None:
    """Return type and place of the exception that ended an attempt."""
    exception = exception_of(attempt)
    if exception is None:
        return None
    return exception.type, exception.file, exception.line


def strength(judgement: Judgement) -> int:
    """Return how strong a promise a resume keeps; -1: none."""
    return (
        -1 if judgement.holds_up_to is None else PROMISES.index(judgement.holds_up_to)
    )


def _operation(cut: Cut) -> str | None:
    if cut.kind is None:
        return None
    return f"{cut.kind} {cut.path or ''}" + (f" -> {cut.to}" if cut.to else "")


def _described(history: History, layout: Layout, path: str) -> str:
    thing = layout.things.get(path)
    if thing is None:
        return "not there"
    if thing.content is not None:
        digest = history.digest(thing.content)[:6]
        return f"{thing.content.size} bytes ({digest})"
    return f"{thing.kind} to {thing.target}" if thing.target else str(thing.kind)
