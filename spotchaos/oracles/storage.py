"""What lies in the object store once a run has ended, against what the program said.

Everything is read off requests and listings: what the uninterrupted run stored last must
be there when another run of the program ends well, whole and not older.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import PurePosixPath

from spotchaos.model import Finding, Request, Stored
from spotchaos.oracles.lineage import Case, ResumedAttempt
from spotchaos.oracles.resume_points import WRITES, pattern_of, unsaved
from spotchaos.oracles.wording import listed, steps_of

_DIGITS = re.compile(r"\d+")
_WORD = re.compile(r"[\w.+-]+(?:/[\w.+-]+)*")
# A checkpoint of the same name holds the same tensors; what else it holds may vary.
SHORT = 0.5


def judge_storage(case: Case) -> Iterator[Finding]:
    """Name objects that are missing, old, short, or named before they are there."""
    last = case.last
    if last.attempt.stored is not None and case.is_finished:
        yield from _lost(case, last, last.attempt.stored)
        yield from _cut(case, last, last.attempt.stored)
    for resumed in case.links:
        if resumed.attempt.stored is not None:
            yield from _short(resumed, resumed.attempt.stored)
            yield from _ahead(case, resumed, resumed.attempt.stored)


# --------------------------------------------------------------- lost


def _lost(case: Case, resumed: ResumedAttempt, stored: Stored) -> Iterator[Finding]:
    """Judge a run that ended with status 0."""
    for path in _finals(case):
        if path not in stored.objects and not _is_elsewhere(path, case, stored):
            there = sorted(p for p in stored.objects if _shape(p) == _shape(path))
            newest = f", and the newest there is {there[-1]!r}" if there else ""
            refused = _refusal_of(path, case)
            yield _lost_finding(
                resumed, f"{path!r} is not in the store{newest}", refused
            )
            return
    for request in unsaved(resumed.attempt):
        if request.path in stored.objects:
            said = f"{request.path!r} in the store is older than what was written last"
            yield _lost_finding(resumed, said, request)
            return


def _lost_finding(
    resumed: ResumedAttempt, said: str, refused: Request | None
) -> Finding:
    why = ""
    if refused is not None:
        why = f" ({refused.fault} struck {refused.operation}, and nothing came of it)"
    return Finding(
        "upload-lost",
        f"attempt {resumed.number} ended with status 0 at step {resumed.end}, and"
        f" {said}{why}",
        hint="an upload that fails is a failed save: try again a bounded number of"
        " times, then exit with an error; before the end wait for every upload and ask"
        " the store for the size of what is there",
        attempt=resumed.number,
        step=resumed.end,
    )


def _refusal_of(path: str, case: Case) -> Request | None:
    found = [r for k in case.links for r in unsaved(k.attempt)]
    alike = [r for r in found if _shape(r.path) == _shape(path)]
    return next(iter([r for r in alike if r.path == path] or alike), None)


def _finals(case: Case) -> list[str]:
    """Return what every uninterrupted run stored last, of each shape of name."""
    runs = [run.stored for run in case.baseline.runs if run.stored is not None]
    if not runs:
        return []
    steady = set.intersection(*(set(run.objects) for run in runs))
    newest: dict[str, str] = {}
    for request in runs[0].requests:
        if request.kind in WRITES and request.is_accepted:
            newest[_shape(request.path)] = request.path
    return [path for path in newest.values() if path in steady]


def _is_elsewhere(path: str, case: Case, stored: Stored) -> bool:
    """Whether the last attempt stored it under a name that only a new machine gives."""
    known = {
        request.path
        for run in case.baseline.runs
        if run.stored is not None
        for request in run.stored.requests
    }
    wanted = PurePosixPath(path)
    return any(
        request.is_accepted
        and request.kind in WRITES
        and request.path in stored.objects
        and request.path not in known
        and PurePosixPath(request.path).parent != wanted.parent
        and _shape(PurePosixPath(request.path).name) == _shape(wanted.name)
        for request in stored.requests
    )


def _shape(path: str) -> str:
    return _DIGITS.sub("#", path)


# --------------------------------------------------------------- short


def _short(resumed: ResumedAttempt, stored: Stored) -> Iterator[Finding]:
    """Name objects that were completed without a part that the store had refused."""
    writes = [r for r in stored.requests if r.kind in WRITES]
    for path, requests in groupby(sorted(writes, key=_by_path), key=_by_path):
        parts: dict[str, Request] = {}
        for request in requests:
            if request.part:
                parts[request.part] = request
            elif request.is_accepted and request.kind == "commit":
                missing = [r for r in parts.values() if not r.is_accepted]
                if missing and path in stored.objects:
                    yield Finding(
                        "short-object",
                        f"attempt {resumed.number} completed {path!r} without part"
                        f" {listed(r.part for r in missing)}, which the store had"
                        f" refused: {stored.objects[path]} bytes are there",
                        hint="complete an upload only when every part was accepted, with"
                        " a checksum of the whole, and abort it otherwise",
                        attempt=resumed.number,
                        step=resumed.end,
                    )
                    return
                parts = {}


def _by_path(request: Request) -> str:
    return request.path


def _cut(case: Case, resumed: ResumedAttempt, stored: Stored) -> Iterator[Finding]:
    """Name checkpoints that hold much less than those of the same name always do."""
    runs = [run.stored.objects for run in case.baseline.runs if run.stored is not None]
    saved = {PurePosixPath(pattern).name for pattern in case.habit.parts}
    for path, size in stored.objects.items():
        usual = min((run.get(path, 0) for run in runs), default=0)
        name = pattern_of(PurePosixPath(path).name)
        if name in saved and size < SHORT * usual:
            yield Finding(
                "short-object",
                f"when the run was over, {path!r} in the store held {size} bytes, and"
                f" {usual} after an uninterrupted run",
                hint="upload a file only once it is closed and no longer written to, and"
                " compare the size of the object with that of the file",
                attempt=resumed.number,
                step=resumed.end,
            )
            return


# --------------------------------------------------------------- ahead


def _ahead(case: Case, resumed: ResumedAttempt, stored: Stored) -> Iterator[Finding]:
    """Name pointers to what was never stored."""
    first = case.baseline.first.stored
    if first is None:
        return
    accepted = {
        request.path
        for k in case.links[: case.links.index(resumed) + 1]
        if k.attempt.stored is not None
        for request in k.attempt.stored.requests
        if request.is_accepted and request.kind in WRITES
    }
    for path, text in stored.texts.items():
        if path not in first.texts:
            continue
        shapes = _targets(path, first.texts[path], first.objects)
        for word in _WORD.findall(text):
            wanted = shapes.get(_shape(word))
            if wanted is None:
                continue
            there = _named(path, word, {*stored.objects, *accepted})
            lacking = sorted(wanted - {_shape(one) for one in there.values()})
            if lacking:
                yield Finding(
                    "pointer-ahead",
                    f"when attempt {resumed.number} was over, {path!r} in the store named"
                    f" {word!r}, of which {listed(map(repr, lacking))} had never been"
                    f" stored ({steps_of(resumed.trained)} trained)",
                    hint="move the pointer last, and only once the store has accepted"
                    " everything that it names",
                    attempt=resumed.number,
                    step=resumed.end,
                )
                return


def _targets(
    path: str, text: str, objects: Mapping[str, int]
) -> dict[str, frozenset[str]]:
    """Return the shape of each name in a text that objects answer to, and of these."""
    found = {}
    for word in _WORD.findall(text):
        there = _named(path, word, objects)
        if there:
            found[_shape(word)] = frozenset(map(_shape, there.values()))
    return found


def _named(pointer: str, word: str, objects: Iterable[str]) -> dict[str, str]:
    """Return the objects that a name means: it, or what lies below it; by relative name."""
    if not re.search(r"[A-Za-z]", word) or not re.search(r"[0-9./]", word):
        return {}
    found = {}
    for path in objects:
        if path == pointer:
            continue
        head, name, tail = f"/{path}/".partition(f"/{word}/")
        if name and (head or tail or path == word):
            found[path] = name.strip("/") + ("/" + tail.strip("/") if tail else "")
    return found
