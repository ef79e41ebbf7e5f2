"""Every state that a crash can leave on disk, named, built and told apart.

`build` makes the one state that a token names; `enumerate_states` draws the tokens up
to the stated bounds, simplest first at each crash point; `distinct` leaves out states
that are equal by recipe or by content. All of it is a function of the op log.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from spotchaos.errors import PlanError
from spotchaos.persistence.contents import Edit
from spotchaos.persistence.history import DataStep, History, Layout, NameStep
from spotchaos.persistence.models import KILL, Level, PersistenceModel
from spotchaos.persistence.oplog import SYNC_KINDS, FileOp
from spotchaos.persistence.tokens import StateToken

BLOCK = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How far an enumeration goes.

    Attributes:
        deviations: how many things may go otherwise at once, in models that lose data.
        window_s: ops older than this at the crash have persisted, since a kernel
            writes back by itself; None: never.
        cap: states for each crash point and model, simplest first.
        points: op numbers before which to crash; None for all.
    """

    deviations: int = 1
    window_s: float | None = None
    cap: int = 64
    points: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class CrashState:
    """One folder that a crash could leave, and its name.

    `latest` names the last crash point at which the same folder can be left, in the
    states that were compared: a resume from it loses most there, since more saves had
    been acknowledged. None: no other point leaves it.
    """

    token: StateToken
    layout: Layout
    latest: StateToken | None = None


@dataclass(slots=True)
class Tally:
    """How many states were drawn, and how many were left after each comparison."""

    drawn: int = 0
    by_recipe: int = 0
    by_content: int = 0
    capped_points: int = 0


def build(history: History, token: StateToken) -> Layout:
    """Return the state that a token names.

    Raises:
        PlanError: the log has no such op, or the op has no such part.
    """
    if not 1 <= token.number <= history.log.last + 1:
        raise PlanError(
            f"crash state {token} lies beyond the {history.log.last} recorded ops",
            hint="was the program recorded with the same settings?",
        )
    if token.letter == "K":
        return _killed(history, token)
    return _Crash(history, token.model, token.number, None).build(token)


def last_lost(history: History, token: StateToken) -> FileOp | None:
    """Return the last op that a power loss undid where nothing unsynced persisted."""
    crash = _Crash(history, token.model, token.number, None)
    return crash.last_lost(token)


def enumerate_states(
    history: History,
    model: PersistenceModel,
    bounds: Bounds = Bounds(),
    tally: Tally | None = None,
) -> Iterator[CrashState]:
    """Yield the states that a crash could leave, equal ones included.

    Args:
        history: the recorded run.
        model: what a crash does.
        bounds: how far to go.
        tally: told of crash points that reached the cap.
    """
    for number in bounds.points or range(1, history.log.last + 2):
        if model is KILL:
            tokens = _kill_tokens(history, number)
            crash = None
        else:
            crash = _Crash(history, model, number, bounds.window_s)
            tokens = crash.tokens(bounds.deviations)
        chosen = list(itertools.islice(tokens, bounds.cap + 1))
        if tally is not None and len(chosen) > bounds.cap:
            tally.capped_points += 1
        for token in chosen[: bounds.cap]:
            yield CrashState(
                token, crash.build(token) if crash else build(history, token)
            )


def distinct(
    history: History, states: Iterable[CrashState], tally: Tally | None = None
) -> list[CrashState]:
    """Leave out states that equal another, keeping the simplest of each.

    Args:
        history: whose states they are.
        states: in any order.
        tally: told the counts.
    """
    tally = tally if tally is not None else Tally()
    recipes: dict[object, CrashState] = {}
    for state in states:
        tally.drawn += 1
        _keep_simplest(recipes, state.layout.recipe(), state)
    contents: dict[object, CrashState] = {}
    for state in recipes.values():
        _keep_simplest(contents, history.key(state.layout), state)
    tally.by_recipe, tally.by_content = len(recipes), len(contents)
    return sorted(contents.values(), key=lambda state: state.token.simplicity)


def _keep_simplest(
    kept: dict[object, CrashState], key: object, state: CrashState
) -> None:
    rival = kept.get(key)
    if rival is None:
        kept[key] = state
        return
    winner = min(rival, state, key=lambda one: one.token.simplicity)
    latest = max(
        (rival.latest or rival.token, state.latest or state.token),
        key=lambda token: token.number,
    )
    if winner is not rival or latest.number > (rival.latest or rival.token).number:
        kept[key] = replace(winner, latest=latest)


def _killed(history: History, token: StateToken) -> Layout:
    end = history.index_of(token.number)
    early = {rank: history.index_of(number) for rank, number in token.early}

    def has_happened(index: int) -> bool:
        return index < min(end, early.get(history.ops[index].rank or 0, end))

    names = [step for step in history.names if has_happened(step.order)]
    edits: dict[int, list[Edit]] = {}
    for step in history.data:
        if has_happened(step.order):
            edits.setdefault(step.node, []).append(step.edit)
    if token.through:
        op = history.op(token.number)
        if op is None or op.kind != "write" or token.through > op.length:
            raise PlanError(
                f"crash state {token} cuts an op that has no such part",
                hint="only a write can be cut, at up to its length",
            )
        step = next(s for s in history.data if s.order == end)
        edits.setdefault(step.node, []).append(_shorter(step.edit, token.through))
    return history.layout(names, edits)


def cuts(length: int) -> list[int]:
    """Return where a write is cut: 1 byte, half, last block boundary, length-1.

    On Linux a fatal signal cuts buffered writes between pages only; the odd cuts stand
    for short writes, and for a disk or limit that was reached.
    """
    half = length // 2
    half -= half % BLOCK if half >= BLOCK else 0
    last = (length - 1) - (length - 1) % BLOCK
    return sorted({cut for cut in (1, half, last, length - 1) if 0 < cut < length})


def _kill_tokens(history: History, number: int) -> Iterator[StateToken]:
    yield StateToken(letter="K", number=number)
    op = history.op(number)
    if op is not None and op.kind == "write":
        for cut in cuts(op.length):
            yield StateToken(letter="K", number=number, through=cut)


class _Crash:
    """Power loss before one op: what is durable, and what may go otherwise."""

    def __init__(
        self,
        history: History,
        model: PersistenceModel,
        number: int,
        window_s: float | None,
    ) -> None:
        self._history = history
        self._model = model
        self._number = number
        self._end = history.index_of(number)
        self._names = [step for step in history.names if step.order < self._end]
        self._data: dict[int, list[DataStep]] = {}
        for step in history.data:
            if step.order < self._end:
                self._data.setdefault(step.node, []).append(step)
        # Everything before these indexes is durable: all, folder by folder, file by file.
        self._all = self._old(window_s)
        self._folders: dict[int, int] = {}
        self._files: dict[int, int] = {}
        self._floor = self._all
        for index, op in enumerate(history.ops[: self._end]):
            node = history.node_of(op)
            if op.kind == "sync":
                self._all = index
            elif op.kind == "fsyncdir" and node is not None:
                self._folders[node] = index
            elif (op.kind in ("fsync", "msync") or op.durable) and node is not None:
                self._files[node] = index + (1 if op.durable else 0)
            if op.kind in SYNC_KINDS:
                self._floor = index

    def tokens(self, deviations: int) -> Iterator[StateToken]:
        """Yield the states at this point, fewest deviations first."""
        if self._model.journal:
            yield from self._journal_tokens(deviations)
        else:
            yield from self._strict_tokens(deviations)

    def build(self, token: StateToken) -> Layout:
        """Return the state that a token of this point names."""
        levels = dict(token.levels)
        if self._model.journal:
            lost_from = self._history.index_of(token.names_before or token.number)
            names = [step for step in self._names if step.order < lost_from]
            edits = {
                node: self._journal_edits(node, lost_from, levels.get(node, Level.ALL))
                for node in self._data
            }
            return self._history.layout(names, edits)
        default = Level.ALL if token.base == "A" else Level.NONE
        names = [step for step in self._names if self._persists(step, token)]
        edits = {
            node: self._strict_edits(node, levels.get(node, default))
            for node in self._data
        }
        return self._history.layout(names, edits)

    def last_lost(self, token: StateToken) -> FileOp | None:
        """Return the last op whose name or bytes are not in a state from base 0."""
        lost = [step.order for step in self._names if not self._persists(step, token)]
        whole = {node for node, level in token.levels if level is Level.ALL}
        for node in self._data.keys() - whole:
            durable = self._durable(node)
            lost += [s.order for s in self._data[node] if s.order >= durable]
        return self._history.ops[max(lost)] if lost else None

    def _old(self, window_s: float | None) -> int:
        ops = self._history.ops
        if window_s is None or not ops:
            return 0
        now = ops[min(self._end, len(ops) - 1)].at_s
        return next(
            (i for i in range(self._end) if ops[i].at_s >= now - window_s), self._end
        )

    # -- names in a journal -----------------------------------------------------------

    def _journal_tokens(self, deviations: int) -> Iterator[StateToken]:
        steps = sorted(
            {s.order for s in self._names} | {s.order for s in self._truncations()}
        )
        numbers = [self._history.ops[i].number for i in steps if i >= self._floor]
        prefixes = [self._number, *(n for n in reversed(numbers) if n is not None)]
        choices = [(m, self._dirty_in_journal(m)) for m in prefixes]
        for changed in range(deviations + 1):
            for m, nodes in choices:
                for levels in _levels(nodes, self._model.levels, changed):
                    yield StateToken(
                        letter="E", number=self._number, names_before=m, levels=levels
                    )

    def _truncations(self) -> Iterator[DataStep]:
        for steps in self._data.values():
            yield from (step for step in steps if step.edit.kind != "write")

    def _dirty_in_journal(self, names_before: int) -> list[int]:
        lost_from = self._history.index_of(names_before)
        names = [step for step in self._names if step.order < lost_from]
        layout = self._history.layout(names, {})
        visible = {thing.node for thing in layout.things.values()}
        return [
            node
            for node in sorted(visible & self._data.keys())
            if self._journal_edits(node, lost_from, Level.ALL)
            != self._journal_edits(node, lost_from, Level.NONE)
        ]

    def _journal_edits(self, node: int, lost_from: int, level: Level) -> list[Edit]:
        durable = self._durable(node)
        if self._model.rename_forces_data:
            forced = [
                step.order
                for step in self._names
                if step.moved == node
                and step.over is not None
                and step.order < lost_from
            ]
            durable = max([durable, *forced])
        # From here on names are lost: a later write that grows its file is lost too,
        # since its new size stands in the same journal.
        edits: list[Edit] = []
        unsynced: list[Edit] = []
        size = self._history.content(node, ()).size
        for step in self._data[node]:
            grows = step.edit.kind == "write" and step.edit.end > size
            if step.order >= lost_from and (grows or step.edit.kind != "write"):
                continue
            if step.edit.kind == "write":
                size = max(size, step.edit.end)
            elif step.edit.kind == "trunc":
                size = step.edit.start
            (edits if step.order < durable else unsynced).append(step.edit)
        return edits + _partly(unsynced, level)

    # -- names on their own -----------------------------------------------------------

    def _strict_tokens(self, deviations: int) -> Iterator[StateToken]:
        free = [
            self._history.ops[s.order].number for s in self._names if self._is_free(s)
        ]
        names = [n for n in free if n is not None]
        nodes = [
            node
            for node in sorted(self._data)
            if any(step.order >= self._durable(node) for step in self._data[node])
        ]
        for count in range(deviations + 1):
            for base in ("A", "0"):
                if base == "0" and not (names or nodes):
                    continue
                levels = self._model.levels
                if base == "0":
                    levels = (
                        Level.ALL,
                        *(one for one in levels if one is not Level.NONE),
                    )
                for named in range(count + 1):
                    for ops in itertools.combinations(names, named):
                        for chosen in _levels(nodes, levels, count - named):
                            yield StateToken(
                                letter="S",
                                number=self._number,
                                base=base,
                                omitted=ops if base == "A" else (),
                                included=ops if base == "0" else (),
                                levels=chosen,
                            )

    def _is_free(self, step: NameStep) -> bool:
        if step.order < self._all:
            return False
        # A rename between folders is atomic: its target folder's fsync settles it.
        folder = step.changes[-1].folder
        return step.order >= self._folders.get(folder, 0)

    def _persists(self, step: NameStep, token: StateToken) -> bool:
        if not self._is_free(step):
            return True
        number = self._history.ops[step.order].number
        if token.base == "A":
            return number not in token.omitted
        return number in token.included

    def _strict_edits(self, node: int, level: Level) -> list[Edit]:
        durable = self._durable(node)
        edits = [step.edit for step in self._data[node] if step.order < durable]
        unsynced = [step.edit for step in self._data[node] if step.order >= durable]
        if level is Level.NONE:
            return edits
        return edits + _partly(unsynced, level)

    def _durable(self, node: int) -> int:
        return max(self._all, self._files.get(node, 0))


def _levels(
    nodes: Sequence[int], levels: Sequence[Level], changed: int
) -> Iterator[tuple[tuple[int, Level], ...]]:
    for chosen in itertools.combinations(nodes, changed):
        for values in itertools.product(levels, repeat=changed):
            yield tuple(zip(chosen, values, strict=True))


def _partly(edits: list[Edit], level: Level) -> list[Edit]:
    """Return what is left of unsynced edits; changes of size alone always are.

    Only what was written since the file was last emptied is there to be lost.
    """
    emptied = [
        i for i, one in enumerate(edits) if one.kind == "trunc" and not one.start
    ]
    since = emptied[-1] + 1 if emptied else 0
    return edits[:since] + _left_of(edits[since:], level)


def _left_of(edits: list[Edit], level: Level) -> list[Edit]:
    writes = [edit for edit in edits if edit.kind == "write"]
    total = sum(edit.end - edit.start for edit in writes)
    if level is Level.ALL or not total:
        return edits
    if level is Level.ZEROS:
        return [_zeroed(edit) if edit.kind == "write" else edit for edit in edits]
    if level is Level.FIRST_WRITE_MISSING:
        return [_zeroed(edit) if edit is writes[0] else edit for edit in edits]
    if level is Level.MIDDLE_BLOCK_MISSING:
        longest = max(writes, key=lambda edit: edit.end - edit.start)
        at = edits.index(longest)
        return [*edits[: at + 1], _block_amid(longest), *edits[at + 1 :]]
    keep = 0
    if level is Level.HALF:
        keep = total // 2 - (total // 2 % BLOCK if total // 2 >= BLOCK else 0)
    elif level is Level.LAST_BLOCK_MISSING:
        keep = (total - 1) - (total - 1) % BLOCK
    return list(_first_bytes(edits, keep))


def _block_amid(edit: Edit) -> Edit:
    """Return an edit that fills a block in the middle of a write with zeros."""
    middle = (edit.start + edit.end) // 2
    start = max(edit.start, middle - middle % BLOCK)
    return Edit("zero", start, min(start + BLOCK, edit.end), "", 0)


def _zeroed(edit: Edit) -> Edit:
    return edit._replace(kind="zero", source="", offset=0)


def _first_bytes(edits: Iterable[Edit], keep: int) -> Iterator[Edit]:
    for edit in edits:
        if edit.kind != "write":
            yield edit
            continue
        part = min(keep, edit.end - edit.start)
        keep -= part
        if part:
            yield _shorter(edit, part)


def _shorter(edit: Edit, length: int) -> Edit:
    return edit._replace(end=edit.start + length)
