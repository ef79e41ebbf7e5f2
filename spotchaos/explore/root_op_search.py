"""Which op a run of failing crash states began with: it is what the program did wrong.

A pointer that is moved too early fails every resume until the checkpoint that it names
is whole. The state says at which op the program was killed; the op to be mended is the
one after which resumes went wrong, and the op that put them right again says why.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from spotchaos.explore.crash_classes import Case, Result
from spotchaos.model import Verdict
from spotchaos.oracles import acquitted
from spotchaos.oracles.durability import BLOCKED, Cut, durability
from spotchaos.persistence.crash_states import CrashState, build
from spotchaos.persistence.history import History
from spotchaos.persistence.models import KILL
from spotchaos.persistence.oplog import FileOp
from spotchaos.persistence.tokens import StateToken
from spotchaos.recording.recorded_run import (
    Recorded,
    cut_of,
    deciding,
    is_done,
    leads_to_checkpoint,
    says_little,
)

# How many ops are looked at on either side of a state.
FURTHEST = 5000
# Places in one recording that are looked into further; more: the points lie far apart.
MOST_STARTS = 4


def trace_back(
    cases: Sequence[Case],
    results: Mapping[int, Result],
    *,
    always: Collection[str],
    counts: Callable[[str], bool],
) -> dict[int, Result]:
    """Return the results whose kill is not at fault, named by the op that is.

    Args:
        cases: all states.
        results: what came of them, by number.
        always: findings that a clean stop shows as well.
        counts: tells of a finding whether it counts.
    """
    outcomes: dict[int, _Outcomes] = {}
    found: dict[int, Result] = {}
    for number, result in results.items():
        token, record = result.token, cases[number].record
        if not _is_of_a_kill(result):
            continue
        known = outcomes.get(id(record))
        if known is None:
            known = outcomes[id(record)] = _Outcomes(record, cases, results)
        cut = known.cut(token)
        if cut is None:
            continue
        attempt = result.trial.attempts[-1]
        finding = durability(result.judgement, attempt, cut, always=always)
        if finding is not None:
            verdict = Verdict.VIOLATED
            if not counts(finding.name):
                verdict = acquitted(result.judgement.findings)
            found[number] = replace(result, verdict=verdict, finding=finding, cut=cut)
    return found


def before_failures(cases: Sequence[Case], results: Mapping[int, Result]) -> list[Case]:
    """Return states just before those that fail with nobody knowing since when.

    Where a save is seen to begin only after its first ops, a failure that these caused
    began before the first crash point.
    """
    wanted: list[Case] = []
    for record in {id(case.record): case.record for case in cases}.values():
        known = _Outcomes(record, cases, results)
        starts = {
            start
            for n, result in results.items()
            if cases[n].record is record and _is_of_a_kill(result)
            if (start := known.unknown_before(result.token.number)) is not None
        }
        writer = next(case.writer for case in cases if case.record is record)
        for number in sorted(starts)[:MOST_STARTS]:
            token = _killed(number)
            state = CrashState(token, build(record.history, token))
            wanted.append(Case(record, writer, state))
    return wanted


def _is_of_a_kill(result: Result) -> bool:
    """Tell whether a kill of everything left a state from which a resume failed."""
    token = result.token
    is_kill = token.letter == KILL.letter and not token.early
    return is_kill and result.finding is not None


class _Outcomes:
    """What came of a kill before each op of one recording."""

    def __init__(
        self, record: Recorded, cases: Sequence[Case], results: Mapping[int, Result]
    ) -> None:
        self._record = record
        self._history = record.history
        self._results = {
            record.history.key(cases[n].state.layout): result
            for n, result in results.items()
            if cases[n].record is record
            and result.token.letter == KILL.letter
            and result.verdict is not Verdict.UNKNOWN
        }
        self._known: dict[int, Result | None] = {}

    def cut(self, token: StateToken) -> Cut | None:
        """Return the op after which resumes failed up to this state, if it is known."""
        if self.fails(token.number) is not True:
            return None  # the write that was cut is itself at fault
        first = self._follow(token.number, -1)
        if first is None:
            return None
        began = _killed(first)
        op = deciding(self._history, began)
        if op is None:
            return None
        last = self._follow(token.number, 1)
        mending = None if last is None else deciding(self._history, _killed(last + 1))
        is_whole = mending is not None and is_done(self._history, op)
        return replace(
            cut_of(self._record, began),
            later_ops=token.number - first,
            is_pointer=_runs_ahead(self._history, op, mending),
            is_removal=_is_removal(op, mending),
            is_leftover=_is_swept(op, mending),
            is_emptying=self._empties(op),
            is_one_of_several=is_whole and _target(mending) != _target(op),
            is_end=self._is_end(token.number),
        )

    def _is_end(self, number: int) -> bool:
        """Tell whether a kill before an op leaves what the run leaves in the end."""
        end = _killed(self._history.log.last + 1)
        keys = {
            self._history.key(build(self._history, one))
            for one in (_killed(number), end)
        }
        return len(keys) == 1

    def unknown_before(self, number: int) -> int | None:
        """Return the last number before a failing one that was not resumed, if any is.

        None: a resume from an earlier one held, or there is none.
        """
        while self.fails(number) is True:
            number -= 1
        return number if number and self.fails(number) is None else None

    def fails(self, number: int) -> bool | None:
        """Tell whether a resume from a kill before an op failed; None: not resumed."""
        result = self._result(number)
        return None if result is None else result.finding is not None

    def _result(self, number: int) -> Result | None:
        """Return what came of a kill before an op, or amid the same writes before it."""
        at = number
        while at not in self._known:
            if not 1 <= at <= self._history.log.last + 1:
                self._known[at] = None
                break
            key = self._history.key(build(self._history, _killed(at)))
            result = self._results.get(key)
            if result is not None or not self._is_amid_writes(at):
                self._known[at] = result
                break
            at -= 1
        for passed in range(at, number + 1):
            self._known[passed] = self._known[at]
        return self._known[number]

    def _is_amid_writes(self, number: int) -> bool:
        """Tell whether the ops on both sides of a crash point write to one file."""
        before, after = self._history.op(number - 1), self._history.op(number)
        if before is None or after is None or before.kind != "write":
            return False
        return (before.kind, before.node) == (after.kind, after.node)

    def _breaks_more(self, number: int) -> bool:
        """Tell whether the op before a failing state made it fail in another way.

        It did away with what was there: that is a flaw of its own. What it adds to new
        files is a stage of the flaw that began before.
        """
        now, before = self._result(number), self._result(number - 1)
        op = self._history.op(number - 1)
        if now is None or before is None or op is None or _way(now) == _way(before):
            return False
        if op.kind == "trunc":
            return self._empties(op)
        return op.kind in ("unlink", "rmdir") or op.over is not None

    def _empties(self, op: FileOp) -> bool:
        """Tell whether an op takes bytes away that a file had."""
        if op.kind != "trunc" or op.number is None:
            return False
        node = self._history.node_of(op)
        things = build(self._history, _killed(op.number)).things.values()
        sizes = [one.content.size for one in things if one.node == node and one.content]
        return any(size > op.length for size in sizes)

    def _blocks(self, number: int) -> bool:
        """Tell whether a resume from a failing state went on, and failed at a save.

        What the resume needed is there again then: that flaw has ended, another began.
        """
        result = self._result(number)
        finding = None if result is None else result.finding
        return finding is not None and finding.name == BLOCKED

    def _follow(self, number: int, stride: int) -> int | None:
        """Return the last number that fails in one direction; None: its end is unknown."""
        for _ in range(FURTHEST):
            answer = self.fails(number + stride)
            if answer is None:
                return None
            if not answer or self._blocks(number) != self._blocks(number + stride):
                return number
            if stride < 0 and self._breaks_more(number):
                return number
            number += stride
        return None


def _way(result: Result) -> tuple[object, ...]:
    """Return how a resume failed: what it shows, and where it raised what."""
    name, place, *_ = result.kind
    return name, place


def _killed(number: int) -> StateToken:
    return StateToken(letter=KILL.letter, number=number)


def _runs_ahead(history: History, op: FileOp, mending: FileOp | None) -> bool:
    """Tell whether an op led to what was not there yet, and what came there mended it."""
    if mending is None or mending.number is None:
        return is_done(history, op) and leads_to_checkpoint(history, op)
    if _target(mending) == _target(op):
        return False
    # A counter or a marker says of another file that it is whole; it need not name it.
    before = history.index_of(mending.number)
    return leads_to_checkpoint(history, op, before) or says_little(history, op, before)


def _is_removal(op: FileOp, mending: FileOp | None) -> bool:
    """Tell whether an op took a name away that the resume needed."""
    if op.kind in ("unlink", "rmdir"):
        return True
    if op.kind != "rename" or mending is None:
        return False
    return _target(mending) == op.path


def _is_swept(op: FileOp, mending: FileOp | None) -> bool:
    """Tell whether an op made a name that is in the way until it is deleted: a lock."""
    if mending is None or mending.kind not in ("unlink", "rmdir"):
        return False
    return op.kind not in ("unlink", "rmdir") and mending.path == _target(op)


def _target(op: FileOp | None) -> str | None:
    return None if op is None else op.to or op.path
