"""A recorded run, cut where a crash could have struck: as attempt, as states, as view.

`spotchaos.explore.exploration` decides which of these states are resumed and what it means.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from spotchaos.config.plan import KillPoint
from spotchaos.launch.attempt.spec import FileOrders
from spotchaos.launch.isolation.view import View
from spotchaos.model import Attempt, Ended, RankTrace
from spotchaos.oracles.durability import Cut
from spotchaos.persistence import oplog
from spotchaos.persistence.crash_states import last_lost
from spotchaos.persistence.history import History, Layout
from spotchaos.persistence.materialise import Materialiser
from spotchaos.persistence.oplog import FileOp
from spotchaos.persistence.tokens import StateToken
from spotchaos.trial.context import TrialContext
from spotchaos.trial.trial import run_attempt

# A file that names a checkpoint is small.
MOST_POINTER_BYTES, MOST_POINTER_WORDS = 4096, 16
_POINTERS = ("latest", "last_checkpoint", "pointer", "current")
_WORD = re.compile(r"[\w.+-]+")
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Recorded:
    """One run whose file ops were recorded, with their bytes.

    Attributes:
        attempt: the run.
        history: its ops.
        began_s: when its log began, CLOCK_MONOTONIC.
        own: what lay in the user's own folder before, as paths of the log.
        earlier: attempts before it; it then began in what they left.
        plan: the kills that led there, as a plan; empty: it began afresh.
    """

    attempt: Attempt
    history: History
    began_s: float
    own: frozenset[str]
    earlier: tuple[Attempt, ...] = ()
    plan: str = ""

    def cut(
        self, number: int, early: Sequence[tuple[int, int]] = ()
    ) -> tuple[Attempt, ...]:
        """Return the attempts as they were when op `number` had not been made yet.

        Args:
            number: of the op.
            early: ranks that were killed before an earlier op, and its number. The
                others do not end a step that these have not ended (see `Barrier`).
        """
        moments = dict.fromkeys(self.attempt.trace.ranks, self._moment_of(number))
        killed = [(rank, own) for rank, own in early if rank in moments]
        for rank, own in killed:
            moments[rank] = min(moments[rank], self._moment_of(own))
        if killed:
            done = min(self._steps_by(rank, moments[rank]) for rank, _ in killed)
            for rank, trace in self.attempt.trace.ranks.items():
                for mark in trace.steps[done : done + 1]:
                    just_before_s = math.nextafter(mark.t_s, 0.0)
                    moments[rank] = min(moments[rank], just_before_s)
        return (*self.earlier, cut_attempt(self.attempt, moments))

    def _moment_of(self, number: int) -> float:
        """Return when an op was made (CLOCK_MONOTONIC seconds); infinity: there is none."""
        op = next((o for o in self.history.ops if (o.number or 0) >= number), None)
        return math.inf if op is None else self.began_s + op.at_s

    def _steps_by(self, rank: int, moment_s: float) -> int:
        steps = self.attempt.trace.ranks[rank].steps
        return sum(mark.t_s <= moment_s for mark in steps)

    def plan_of(self, token: StateToken) -> str | None:
        """Return the plan whose real kills leave this state; None if none does."""
        last = kill_plan(token)
        if last is None:
            return None
        return f"{self.plan},{last}" if self.plan else last


def recorded_attempt(
    trial_context: TrialContext,
    view: View,
    earlier: Sequence[Attempt],
    *,
    files: FileOrders,
) -> tuple[Attempt, oplog.OpLog | None]:
    """Carry out an attempt that is left alone, with its file ops recorded.

    Returns:
        The attempt, and its log; None if that broke off. The bytes outlive the view.
    """
    logs: list[oplog.OpLog] = []

    def take(path: Path) -> None:
        logs.append(with_own_data(oplog.read(path), trial_context, view))

    attempt = run_attempt(
        trial_context,
        view,
        None,
        earlier=earlier,
        orders={"mark_every_site": True},
        files=files,
        oplog=take,
    )
    return attempt, logs[0] if logs and logs[0].complete else None


def recorded_of(
    attempt: Attempt,
    log: oplog.OpLog,
    start_folder: Path,
    *,
    began_in: Layout | None = None,
    own: frozenset[str] | None = None,
    earlier: tuple[Attempt, ...] = (),
    plan: str = "",
) -> Recorded:
    """Return a recorded run, from the attempt and its log.

    Args:
        attempt: the run.
        log: with the bytes of its file ops.
        start_folder: where the files of before it still lie, as paths of the log.
        began_in: the crash state from which it resumed; all of it stays in its states.
            None: what no op concerns is in every state, neither put into a view nor
            hidden.
        own: what lay in the user's own folder; None: what the log says.
        earlier: attempts before it.
        plan: the kills that led there.
    """
    # What was only read is not of the state: no other state has it either.
    log = replace(log, ops=tuple(op for op in log.ops if op.kind != "question"))
    log = without_untouched(log, () if began_in is None else began_in.things)
    if own is None:
        own = frozenset(entry.path for entry in log.start if entry.path)
    history = History(log, start_folder=start_folder)
    began_s = float(log.header.get("began_s", 0.0))
    return Recorded(attempt, history, began_s, own, earlier, plan)


def linked_start(
    trial_context: TrialContext, name: str, out: Path | None = None
) -> Path:
    """Return a folder that leads to the watched ones as they were before a run.

    Args:
        trial_context: whose program folder is watched.
        name: of the folder, among our own.
        out: the folder of output; None: it was empty, and nothing in it is asked for.
    """
    folder = trial_context.workspace.scratch / name
    folder.mkdir(exist_ok=True)
    for root, target in (("0", trial_context.program.folder), ("1", out)):
        if target is not None and not (folder / root).is_symlink():
            (folder / root).symlink_to(target)
    return folder


def with_own_data(
    log: oplog.OpLog, trial_context: TrialContext, view: View
) -> oplog.OpLog:
    """Return a log whose bytes outlive the view in which it was made."""
    if log.data is None:
        return log
    kept = trial_context.workspace.scratch / f"{view.name}.data"
    return replace(log, data=log.data.rename(kept))


def cut_attempt(attempt: Attempt, moments: float | Mapping[int, float]) -> Attempt:
    """Return an attempt as its traces stood at a moment.

    Args:
        attempt: the whole one.
        moments: of all ranks, or of each (CLOCK_MONOTONIC seconds).
    """
    if not isinstance(moments, Mapping):
        moments = dict.fromkeys(attempt.trace.ranks, moments)
    ranks = {n: _cut_rank(rank, moments[n]) for n, rank in attempt.trace.ranks.items()}
    trace = replace(attempt.trace, ranks=ranks)
    return replace(
        attempt,
        trace=trace,
        ended=Ended.RECLAIMED,
        exit_code=None,
        kill_point="file-op",
        reached=True,
        left=None,
        outputs=None,
    )


def _cut_rank(rank: RankTrace, moment_s: float) -> RankTrace:
    steps = tuple(s for s in rank.steps if s.t_s <= moment_s)
    last = steps[-1].step if steps else 0
    saves = tuple(
        replace(s, ended_at_s=None)
        if s.ended_at_s is not None and s.ended_at_s > moment_s
        else s
        for s in rank.saves
        if s.begun_at_s <= moment_s
    )
    return replace(
        rank,
        steps=steps,
        # That of the last step is taken by what comes next: perhaps not yet.
        states={
            k: s
            for k, s in rank.states.items()
            if k < last or (k == last and s.t_s <= moment_s)
        },
        saves=saves,
        finish=None,
        said_bye=False,
        exception=None,
        loads=tuple(load for load in rank.loads if load.t_s <= moment_s),
        counts={**rank.counts, "step-end": last},
    )


def without_untouched(log: oplog.OpLog, kept: Iterable[str] = ()) -> oplog.OpLog:
    """Leave out what lay there before the run and no op concerns: every state has it.

    Nodes are numbered anew, so that the name of a state does not hang on files that have
    nothing to do with it.

    Args:
        log: the whole log.
        kept: paths that stay in any case.
    """
    nodes = {op.node for op in log.ops} | {op.over for op in log.ops}
    paths = {p for op in log.ops for p in (op.path, op.to) if p is not None}
    paths |= set(kept)
    paths |= {entry.path for entry in log.start if entry.node in nodes}
    above = {
        path[:at] for path in paths for at, letter in enumerate(path) if letter == "/"
    }
    start = [
        entry
        for entry in log.start
        if "/" not in entry.path or entry.path in paths or entry.path in above
    ]
    return _renumbered(replace(log, start=tuple(sorted(start, key=lambda e: e.path))))


def _renumbered(log: oplog.OpLog) -> oplog.OpLog:
    """Number the nodes in the order in which they appear."""
    known: dict[int, int] = {}

    def new(node: int | None) -> int | None:
        return None if node is None else known.setdefault(node, len(known) + 1)

    def entry(one: oplog.Entry) -> oplog.Entry:
        return replace(one, node=new(one.node) or 0)

    start = tuple(entry(one) for one in log.start)
    ops = tuple(
        replace(
            op,
            node=new(op.node),
            over=new(op.over),
            entries=tuple(entry(one) for one in op.entries),
        )
        for op in log.ops
    )
    return replace(log, start=start, ops=ops)


def kill_plan(token: StateToken) -> str | None:
    """Return the plan whose real kill leaves this state; None for other models."""
    if token.letter != "K" or token.early:
        return None
    cut = str(token.through) if token.through else None
    return str(
        KillPoint(site="file-op", occurrence=token.number, over_all=True, cut=cut)
    )


def put(
    view: View,
    writer: Materialiser,
    record: Recorded,
    layout: Layout,
    *,
    links: bool = False,
) -> None:
    """Make a new view hold a crash state: what differs from the user's own folder.

    Args:
        view: a new one.
        writer: of the record's states.
        record: whose state it is.
        layout: the state.
        links: large files may be hard links to ours, which a supervisor breaks.

    Raises:
        OSError: the disk is full.
    """
    for root, prefix in (("0", ""), ("1", "{out}/")):
        inner = {
            path[2:]: thing
            for path, thing in layout.things.items()
            if path.startswith(root + "/")
        }
        if inner:
            times = {path: layout.changed_at_s.get(f"{root}/{path}") for path in inner}
            for at, folder in reversed(view.fill_places(prefix)):
                part = {p: inner.pop(p) for p in list(inner) if p.startswith(at)}
                part = {p[len(at) :]: thing for p, thing in part.items()}
                known = {
                    path: at_s
                    for path in part
                    if (at_s := times[at + path]) is not None
                }
                if part:
                    writer.write(Layout(part, known), folder, merge=True, links=links)
    gone = {p for p in record.own if p not in layout.things and p.startswith("0/")}
    view.hide([p[2:] for p in sorted(gone) if p.rpartition("/")[0] not in gone])


def cut_of(record: Recorded, token: StateToken) -> Cut:
    """Return the op that made the difference in a crash state."""
    op = deciding(record.history, token)
    if op is None:
        return Cut(kind=None, is_power_loss=token.model.is_power_loss)
    return Cut(
        kind=op.kind,
        path=_inner(op.path),
        to=_inner(op.to),
        where=op.where,
        is_power_loss=token.model.is_power_loss,
        is_pointer=not token.through
        and is_done(record.history, op)
        and leads_to_checkpoint(record.history, op),
    )


def deciding(history: History, token: StateToken) -> FileOp | None:
    """Return what was lost or cut; where nothing was, the last op that happened."""
    op = _deciding(history, token)
    if op is None or op.kind != "mwrite":
        return op
    # Nobody calls anything to store into a map: it is seen at the next call.
    same = [o for o in history.ops if o.node == op.node]
    at = same.index(op)
    named = (o.path for o in reversed(same[:at]) if o.path)
    following = (o.where for o in same[at:] if o.where)
    return replace(op, path=next(named, None), where=next(following, None))


def _deciding(history: History, token: StateToken) -> FileOp | None:
    for number in token.omitted:
        return history.op(number)
    if token.base == "0" and (lost := last_lost(history, token)) is not None:
        return lost
    for number in token.included:
        return history.op(number)
    for node, _ in token.levels:
        end = history.index_of(token.number)
        steps = [s for s in history.data if s.node == node and s.order < end]
        if steps:
            return history.ops[steps[-1].order]
    if token.names_before is not None and token.names_before < token.number:
        return history.op(token.names_before)
    if token.through:
        return history.op(token.number)
    end = history.index_of(token.number)
    before = [o for o in history.ops[:end] if o.number or o.kind == "mwrite"]
    syncing = ("fsync", "fsyncdir", "sync", "msync")
    changing = [o for o in before if o.kind not in syncing]
    chosen = changing or before
    return chosen[-1] if chosen else None


def _inner(path: str | None) -> str | None:
    return None if path is None else path.partition("/")[2]


def is_done(history: History, op: FileOp) -> bool:
    """Tell whether an op completes what it makes: a file in place is torn before."""
    if op.kind in ("rename", "link", "symlink"):
        return True
    if op.kind != "write" or op.number is None:
        return False
    node, at = history.node_of(op), history.index_of(op.number)
    later = (s.edit for s in history.data if s.node == node and s.order > at)
    following = next(later, None)
    return following is None or (following.kind == "trunc" and not following.start)


def leads_to_checkpoint(
    history: History, op: FileOp, before: int | None = None
) -> bool:
    """Tell whether an op made a name that leads to a checkpoint and is none itself.

    A file does if it says so, or if all that is in it is a few words, one of which is the
    name of another file or folder, or the number in one.

    Args:
        history: of the run.
        op: one of it.
        before: index in its ops at which the file is read; None: as it was at last.
    """
    if op.kind == "symlink":
        return True
    node = history.node_of(op)
    if node is None:
        return False
    steps = [s for s in history.data if s.node == node]
    size = max((s.edit.end for s in steps), default=0)
    if size > MOST_POINTER_BYTES:
        return False
    path = _inner(op.to or op.path) or ""
    if any(word in path.lower() for word in _POINTERS):
        return True
    return _names_another(history, _words_in(history, op, before))


def says_little(history: History, op: FileOp, before: int) -> bool:
    """Tell whether the file of an op holds a few words, or nothing, as a marker does.

    Args:
        history: of the run.
        op: one of it.
        before: index in its ops at which the file is read.
    """
    node = history.node_of(op)
    if op.kind == "creat" and all(step.node != node for step in history.data):
        return True  # it is empty for ever: that it is there says all
    return bool(_words_in(history, op, before))


def _words_in(history: History, op: FileOp, before: int | None) -> set[str]:
    """Return the words of a file that is a short text; none of any other."""
    node = history.node_of(op)
    edits = [
        s.edit
        for s in history.data
        if s.node == node and (before is None or s.order < before)
    ]
    if node is None or max((e.end for e in edits), default=0) > MOST_POINTER_BYTES:
        return set()
    content = b"".join(history.read(history.content(node, edits)))
    try:
        words = set(_WORD.findall(content.decode()))
    except UnicodeDecodeError:
        return set()
    return words if len(words) <= MOST_POINTER_WORDS else set()


def _names_another(history: History, words: set[str]) -> bool:
    """Tell whether words name a file or folder that the program made."""
    if not words:
        return False
    made = {
        name
        for op in history.ops
        if op.kind in ("creat", "mkdir", "rename")
        for name in (op.to or op.path or "").split("/")[1:]
    }
    numbers = {number for name in made for number in _NUMBER.findall(name)}
    return not words.isdisjoint(made | numbers)
