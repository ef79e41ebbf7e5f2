"""What a resume asked of its folder, and which other states give the same answers.

A resume is a function of what it reads: two states that answer all its questions alike,
in the order in which they were asked, lead to the same result. So the second need not
be run, and a few per cent are run all the same, as a spot check of this very claim.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

from spotchaos.persistence.history import History, Layout, Thing
from spotchaos.persistence.oplog import FileOp

_MOST_LINKS = 40

T = TypeVar("T")


class Asked(StrEnum):
    """What a question is about."""

    LOOK = "look"  # is it there, what kind, how large, where does it point
    LIST = "list"  # the names in a folder
    READ = "read"  # the bytes of a file
    KIND = "kind"  # only what it is: what a call that makes or removes it depends on


@dataclass(frozen=True, slots=True)
class Question:
    """One thing that a resume asked about a path."""

    asked: Asked
    path: str


def questions(ops: Iterable[FileOp]) -> tuple[Question, ...]:
    """Return what a resume asked before it first changed a folder.

    Args:
        ops: of a log that was recorded with reads observed. A question about a path
            that an earlier one asked in the same way is left out.
    """
    found: dict[Question, None] = {}
    for op in ops:
        if op.number is not None:
            break
        if op.kind == "question" and op.path is not None:
            found[Question(Asked(op.text or "look"), op.path)] = None
    return tuple(found)


def asked_by(ops: Iterable[FileOp]) -> tuple[Question, ...]:
    """Return what a whole run asked of the folder as it found it.

    A save that makes a file or a folder asks whether it is there, and a leftover may
    block it: so ops count as well as look-ups, and also those after the first change.
    What the run itself has put in place is asked of nobody; a name that it has moved
    stands for the one that it found.
    """
    found: dict[Question, None] = {}
    own: dict[str, str | None] = {}  # path -> where it came from; None: the run's own

    def ask(asked: Asked, path: str) -> None:
        origin = _origin(own, path)
        if origin is not None:
            found[Question(asked, origin)] = None

    for op in ops:
        if op.kind == "question":
            if op.path is not None:
                ask(Asked(op.text or "look"), op.path)
            # Where the path as written has links in it, each may point elsewhere.
            parts = op.to.split("/") if op.to is not None else []
            for end in range(1, len(parts) + 1):
                ask(Asked.KIND, "/".join(parts[:end]))
            continue
        if op.number is None:
            continue
        for path in (op.path, op.to):
            if path is not None:
                ask(Asked.KIND, path)
        if op.error is None:
            _own(own, op)
    return tuple(found)


def _own(own: dict[str, str | None], op: FileOp) -> None:
    """Note which names hold what the run has made, after one of its ops."""
    if op.path is None:
        return
    if op.kind == "rename" and op.to is not None:
        ours = _origin(own, op.path)
        theirs = _origin(own, op.to) if op.exchange else None
        _forget_below(own, op.to)
        _forget_below(own, op.path)
        own[op.to] = ours
        own[op.path] = theirs
    elif op.kind == "link" and op.to is not None:
        own[op.to] = _origin(own, op.path)
    elif op.kind in ("creat", "mkdir", "symlink", "unlink", "rmdir") or (
        op.kind == "trunc" and op.length == 0
    ):
        _forget_below(own, op.path)
        own[op.path] = None


def _forget_below(own: dict[str, str | None], path: str) -> None:
    for known in [one for one in own if one.startswith(path + "/")]:
        del own[known]


def _origin(own: dict[str, str | None], path: str) -> str | None:
    """Return the path at which the run found what lies at `path`; None: it made it."""
    head, tail = path, ""
    while head:
        if head in own:
            origin = own[head]
            return None if origin is None else origin + tail
        head, _, name = head.rpartition("/")
        tail = f"/{name}{tail}"
    return path


def answer(history: History, layout: Layout, question: Question) -> Hashable:
    """Return what a state answers; equal answers cannot be told apart by the asker."""
    path = question.path
    thing = layout.things.get(path)
    if question.asked in (Asked.LIST, Asked.READ):
        path, thing = _follow(layout, path)
    if path == "":
        thing = Thing("dir")
    if thing is None:
        return None
    match question.asked:
        case Asked.LIST:
            prefix = path + "/" if path else ""
            return frozenset(
                (name, one.kind) for name, one in _children(layout, prefix)
            )
        case Asked.READ if thing.content is not None:
            return history.digest(thing.content)
        case Asked.KIND:
            return thing.kind, thing.target
        case _:
            size = thing.content.size if thing.content is not None else None
            return thing.kind, thing.target, size


def answers(
    history: History, layout: Layout, asked: Sequence[Question]
) -> tuple[Hashable, ...]:
    """Return all answers, in the order of the questions."""
    return tuple(answer(history, layout, one) for one in asked)


@dataclass
class Memo(Generic[T]):
    """Results of resumes by what they read.

    Attributes:
        spot_check: share of states that are run though their answers are known.
        rng: draws them.
        skipped: states whose result was taken from another.
        checked: states that were run for the spot check.
        conflicts: pairs of results that should have been equal and were not.
    """

    spot_check: float
    rng: random.Random
    skipped: int = 0
    checked: int = 0
    conflicts: list[tuple[T, T]] = field(default_factory=list)
    _known: dict[tuple[Question, ...], dict[tuple[Hashable, ...], T]] = field(
        default_factory=dict
    )

    def known(self, history: History, layout: Layout) -> T | None:
        """Return the result of a state that answers alike, or None to run this one."""
        found = self._find(history, layout)
        if found is None:
            return None
        if self.rng.random() < self.spot_check:
            self.checked += 1
            return None
        self.skipped += 1
        return found

    def add(
        self, history: History, layout: Layout, asked: tuple[Question, ...], result: T
    ) -> None:
        """Keep the result of a resume that was run, and what it asked."""
        rival = self._find(history, layout)
        if rival is not None and rival != result:
            self.conflicts.append((rival, result))
        by_answers = self._known.setdefault(asked, {})
        by_answers.setdefault(answers(history, layout, asked), result)

    @property
    def classes(self) -> int:
        """Return how many different read-sets with answers are known."""
        return sum(len(one) for one in self._known.values())

    def _find(self, history: History, layout: Layout) -> T | None:
        for asked, by_answers in self._known.items():
            found = by_answers.get(answers(history, layout, asked))
            if found is not None:
                return found
        return None


def _follow(layout: Layout, path: str) -> tuple[str, Thing | None]:
    for _ in range(_MOST_LINKS):
        path, thing = _step(layout, path)
        if thing is None or thing.kind != "link":
            return path, thing
    return path, None


def _step(layout: Layout, path: str) -> tuple[str, Thing | None]:
    # Follow the first link on the way; return the path it leads to, or what is there.
    so_far: list[str] = []
    parts = path.split("/") if path else []
    for at, part in enumerate(parts):
        so_far.append(part)
        thing = layout.things.get("/".join(so_far))
        if thing is not None and thing.kind == "link":
            target = str(thing.target)
            if target.startswith("/"):
                return path, None  # leads out of the folder
            whole = [*so_far[:-1], *target.split("/"), *parts[at + 1 :]]
            return _normal(whole), Thing("link", None, target)
    return path, layout.things.get(path) if path else Thing("dir")


def _normal(parts: Iterable[str]) -> str:
    kept: list[str] = []
    for part in parts:
        if part == "..":
            kept = kept[:-1]
        elif part not in ("", "."):
            kept.append(part)
    return "/".join(kept)


def _children(layout: Layout, prefix: str) -> Iterable[tuple[str, Thing]]:
    for path, thing in layout.things.items():
        name = path.removeprefix(prefix)
        if path.startswith(prefix) and name and "/" not in name:
            yield name, thing
