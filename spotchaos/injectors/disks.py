"""Faults of the disk that come without a kill: errors of single operations, and damage.

Errors and delays strike operations on checkpoint files while the program runs, through
the supervisor of file operations. Damage (`bit-flip`, `zero-page`) is done to a finished
checkpoint once the machine is gone, as on a disk that rots. What moves the times of the
files that a machine wrote is in `file_times`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Final, Self

from spotchaos.errors import UsageError, closest
from spotchaos.injectors.file_times import TIMES, move_times
from spotchaos.injectors.storage_faults import STORAGE_FAULTS
from spotchaos.launch.isolation.view import View
from spotchaos.launch.supervisor.notify_rules import (
    PAGE,
    UNNUMBERED,
    Gate,
    Rule,
    rule_for,
)
from spotchaos.model import Attempt, Injected, SaveMark
from spotchaos.persistence.oplog import FileOp, OpLog

ERRORS: Final = (
    "enospc",
    "edquot",
    "eio",
    "erofs",
    "eintr",
    "short-write",
    "rename-refused",
    "link-refused",
    "chmod-refused",
    "fsync-fails",
)
DELAYS: Final = ("slow-disk",)
DAMAGES: Final = ("bit-flip", "zero-page")
DISK_FAULTS: Final = (*ERRORS, *DELAYS, *DAMAGES, *TIMES)

_NEVER: Final = 1 << 62
_COUNT = re.compile(r"(?P<n>[1-9]\d*)(?P<more>\+?)")


@dataclass(frozen=True, slots=True)
class DiskFault:
    """A fault of the disk, on the operations numbered `nth` (and later, if `onwards`).

    Of damage, `nth` counts finished checkpoints; None is the newest one.
    """

    text: str
    name: str
    nth: int | None = None
    onwards: bool = False
    on_last_save: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `NAME[:N]`, `NAME:N+` or `NAME:last`.

        Raises:
            UsageError: the name or the count is unknown; the hint names the nearest.
        """
        name, colon, count = text.partition(":")
        if name not in DISK_FAULTS:
            known = (*DISK_FAULTS, *STORAGE_FAULTS)
            raise UsageError(
                f"unknown fault {name!r}",
                hint=closest(name, known) or f"faults are {', '.join(known)}",
            )
        if not colon:
            return cls(text, name)
        if name in TIMES:
            raise UsageError(
                f"fault {text!r} counts, and {name} moves the times of all files at once",
                hint=f"write --fault {name}",
            )
        if count == "last":
            return cls(text, name, on_last_save=True)
        found = _COUNT.fullmatch(count)
        if found is None:
            raise UsageError(
                f"fault {text!r} has the count {count!r}",
                hint=f"write {name}:3 for the third operation, {name}:3+ from then on,"
                f" {name}:last for the last save",
            )
        return cls(text, name, int(found["n"]), onwards=bool(found["more"]))

    @property
    def kind(self) -> str:
        """What it is to the oracles: `error`, `delay`, `damage` or `skew`."""
        if self.name in ERRORS:
            return "error"
        if self.name in DELAYS:
            return "delay"
        return "skew" if self.name in TIMES else "damage"

    @property
    def is_supervised(self) -> bool:
        """Whether a supervisor of file operations has to carry it out."""
        return self.kind in ("error", "delay")


def rule_of(
    fault: DiskFault,
    log: OpLog,
    recorded: Attempt,
    *,
    patterns: Sequence[str],
    before: int | None = None,
) -> Rule:
    """Return the rule by which a supervisor carries a fault out.

    Args:
        fault: an error or a delay.
        log: of the recorded run.
        recorded: that run: its saves say which operations are those of checkpoints.
        patterns: of resume points; empty: every save is one.
        before: with `:last`, the step before which the last save began.
    """
    saves = _saves(recorded, patterns)
    where = _where(log, saves)
    onwards = fault.onwards or fault.on_last_save
    nth = fault.nth or 1
    if fault.on_last_save:
        early = [s for s in saves if before is None or s.step < before] or saves
        begun_s = early[-1].begun_at_s - _began_s(log) if early else 0.0
        any_of_them = rule_for(fault.name, 1, onwards=True, path=where)
        nth = 1 + len(list(_injected(any_of_them, log, until_s=begun_s)))
        if not saves:
            nth = _NEVER  # nobody knows which operation is the last save's
    return rule_for(fault.name, nth, onwards=onwards, path=where)


def injected_step(rule: Rule, log: OpLog, recorded: Attempt) -> int | None:
    """Return after how many steps the rule would first strike; None if it never would."""
    first = next(iter(_injected(rule, log)), None)
    if first is None:
        return None
    at_s = first.at_s + _began_s(log)
    ranks = recorded.trace.ranks.values()
    return max((sum(m.t_s <= at_s for m in r.steps) for r in ranks), default=0)


def seen_in(oplog: Path, faults: Sequence[tuple[DiskFault, Rule]]) -> list[Injected]:
    """Return what came of each fault, from the lines that the supervisor wrote.

    Lines name the kind of operation only: two faults of one kind share what they struck.
    """
    lines = list(_lines(oplog))
    began_s = next((x.get("began_s", 0.0) for x in lines if x["op"] == "header"), 0.0)
    injected = [line for line in lines if line["op"] == "fault"]
    found = []
    for fault, rule in faults:
        mine = [line for line in injected if _could_be(rule, line)]
        found.append(
            Injected(
                fault.text,
                fault.kind,
                len(mine),
                at_s=began_s + mine[0]["t"] if mine else None,
                path=_plain(mine[0].get("path")) if mine else None,
            )
        )
    return found


def damage_at_rest(
    fault: DiskFault, view: View, attempt: Attempt, *, patterns: Sequence[str]
) -> Injected:
    """Damage a finished checkpoint, or move the times of files; the machine is gone."""
    if fault.kind == "skew":
        moved = move_times(fault.name, view)
        return Injected(fault.text, "skew", moved, at_s=attempt.reclaimed_at_s)
    saves = [s for s in _saves(attempt, patterns) if s.ended_at_s is not None]
    if fault.nth is not None:
        saves = saves[fault.nth - 1 : None if fault.onwards else fault.nth]
    injected = Injected(fault.text, "damage", 0)
    damaged: set[Path] = set()
    for save in reversed(saves):
        files = [f for path in save.paths for f in _files(view, path)]
        files = [pair for pair in files if pair[1] not in damaged]
        if files:
            name, file = max(files, key=lambda pair: pair[1].stat().st_size)
            _damage(file, fault.name)
            damaged.add(file)
            at_s = save.ended_at_s
            injected = replace(injected, times=len(damaged), at_s=at_s, path=name)
            if not fault.onwards:
                break
    return injected


def _damage(file: Path, how: str) -> None:
    """Flip a bit, or zero a page, in the middle of a file: where the tensors lie."""
    content = bytearray(file.read_bytes())
    at = len(content) // 2
    if how == "bit-flip":
        content[at] ^= 0x10
    else:
        page = at - at % PAGE
        content[page : page + PAGE] = bytes(len(content[page : page + PAGE]))
    times = file.stat()
    file.write_bytes(content)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def _files(view: View, path: str) -> Iterable[tuple[str, Path]]:
    """Yield the files of a checkpoint that lie in the view, and not with the user."""
    place = view.path(path).resolve()  # a link's own file is what is damaged
    if not view.holds(place):
        return
    if place.is_file():
        yield path, place
    elif place.is_dir():
        for file in sorted(place.rglob("*")):
            if file.is_file() and view.holds(file.resolve()):
                yield f"{path}/{file.relative_to(place)}", file


def _saves(attempt: Attempt, patterns: Sequence[str]) -> list[SaveMark]:
    found = [save for rank in attempt.trace.ranks.values() for save in rank.saves]
    named = [s for s in found if any(_pattern(path) in patterns for path in s.paths)]
    # What a resume reads may have no name that a save ever had (it is copied by a shell):
    # then any save may be it.
    return sorted(named or found, key=lambda save: save.begun_at_s)


def _pattern(path: str) -> str:
    return re.sub(r"\d+", "#", path)


def _where(log: OpLog, saves: Sequence[SaveMark]) -> str:
    """Return the pattern of a rule: the files that were written while saves went on."""
    began_s = _began_s(log)
    windows = [
        (s.begun_at_s - began_s, (s.ended_at_s or s.begun_at_s) - began_s)
        for s in saves
    ]
    found: dict[str, None] = {}
    for op in log.ops:
        if op.number and any(a <= op.at_s <= b for a, b in windows):
            for name in (op.path, op.to):
                if name and op.kind not in ("mkdir", "unlink", "rmdir"):
                    found[_wild(name)] = None
    return "|".join(found) or "*"


def _wild(label: str) -> str:
    """Return a pattern for a file's label: numbers and random parts may be others."""
    folder, name = str(PurePosixPath(label).parent), PurePosixPath(label).name
    if name.startswith(("tmp", ".", "_")) or "tmp" in name.lower():
        name = re.sub(r"(?=[A-Za-z_]*[0-9A-Z])[A-Za-z0-9_]{6,}", "*", name)
    root, slash, rest = folder.partition("/")
    folder = root + slash + re.sub(r"\d+", "*", rest)
    name = re.sub(r"\d+", "*", name)
    return re.sub(r"[\[\]?]", "?", f"{folder}/{name}")


def _injected(rule: Rule, log: OpLog, until_s: float | None = None) -> Iterable[FileOp]:
    gate = Gate([], [rule])
    for op in log.ops:
        is_op = op.number is not None or op.kind in UNNUMBERED
        if not is_op or (until_s is not None and op.at_s >= until_s):
            continue
        names = tuple(name for name in (op.path, op.to) if name)
        decision = gate.arrive(op.kind, names or ("",), op.rank)
        if decision.rule is not None or decision.delay_s:
            yield op


def _began_s(log: OpLog) -> float:
    return float(log.header.get("began_s", 0.0))


def _could_be(rule: Rule, line: dict[str, Any]) -> bool:
    kind = line.get("sys")
    if rule.kind == "open":
        return kind in ("open", "creat", "trunc")
    return kind == rule.kind or (rule.kind == "rename" and kind == "import")


def _plain(label: str | None) -> str | None:
    """Return a label without the number of its folder."""
    return None if label is None else label.partition("/")[2] or label


def _lines(path: Path) -> Iterable[dict[str, Any]]:
    for line in path.read_bytes().split(b"\n")[:-1]:
        found: dict[str, Any] = json.loads(line)
        yield found
