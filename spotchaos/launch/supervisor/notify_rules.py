"""Where a file op is held, and which file ops fail: kill points and rules, by count."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from typing import Any

WRITES = frozenset({"write"})
SYNCS = frozenset({"fsync", "fsyncdir", "sync", "msync"})
RENAMES = frozenset({"rename", "import"})
UNLINKS = frozenset({"unlink"})
COUNTED = ("file-op", "write", "rename", "unlink", "fsync")
SITES = (*COUNTED, "record")
# What happens to no name and no byte has no number, and is no kill point.
UNNUMBERED = frozenset({"open", "chmod"})
# What a rule may aim at besides: every open for writing, and the rarer kinds.
KINDS = (
    *COUNTED,
    "open",
    "chmod",
    "creat",
    "mkdir",
    "link",
    "symlink",
    "trunc",
    "falloc",
    "rmdir",
)
ACTIONS = ("errno", "short", "delay", "flip", "zero")
PAGE = 4096


@dataclass(frozen=True)
class FilePoint:
    """A kill point at a file op: `SITE:N[@RANK|@all][/half|/after|+BYTES]`.

    Occurrences count from 1 in each attempt, on each rank by itself; `@all` counts
    over all processes together, as the op log does; a `+` in front counts from the
    first signal of the attempt. By default the op is held before
    it happens; `/after` holds it when it has happened and the program does not know
    yet, `/half` and `+BYTES` hold a write of which that much has reached the file.
    """

    site: str
    occurrence: int
    rank: int | None = None
    over_all: bool = False
    part: str | int | None = None  # "half", "after", or bytes
    follows: bool = False  # counted from the first signal

    @classmethod
    def parse(cls, text: str) -> FilePoint:
        """Read the one spelling that commands, plans and logs use.

        Raises:
            ValueError: the text is none; the message names what is wrong.
        """
        rest, slash, word = text.removeprefix("+").partition("/")
        rest, plus, count = rest.partition("+")
        rest, at, rank = rest.partition("@")
        site, _, occurrence = rest.partition(":")
        if site not in SITES:
            raise ValueError(f"unknown site {site!r} in kill point {text!r}")
        if not occurrence.isdecimal() or int(occurrence) < 1:
            raise ValueError(f"kill point {text!r} names no occurrence from 1 on")
        if at and not (rank == "all" or rank.isdecimal()):
            raise ValueError(f"kill point {text!r} names no rank after '@'")
        part: str | int | None = None
        if slash:
            if word not in ("half", "after") or plus:
                raise ValueError(f"kill point {text!r} ends in none of /half, /after")
            part = word
        elif plus:
            if not count.isdecimal():
                raise ValueError(f"kill point {text!r} names no bytes after '+'")
            part = int(count)
        if part not in (None, "after") and site not in ("write", "file-op", "record"):
            raise ValueError(f"kill point {text!r} cuts a {site}, which has no parts")
        return cls(
            site=site,
            occurrence=int(occurrence),
            rank=int(rank) if rank.isdecimal() else None,
            over_all=rank == "all",
            part=part,
            follows=text.startswith("+"),
        )

    def __str__(self) -> str:
        rank = "@all" if self.over_all else "" if self.rank is None else f"@{self.rank}"
        end = f"+{self.part}" if isinstance(self.part, int) else ""
        if isinstance(self.part, str):
            end = "/" + self.part
        since = "+" if self.follows else ""
        return f"{since}{self.site}:{self.occurrence}{rank}{end}"

    def cut(self, length: int) -> int | None:
        """Return how many bytes of a write go through first; None to hold before it."""
        if self.part == "half":
            half = length // 2
            return half - half % PAGE if half >= PAGE else half
        return min(self.part, length) if isinstance(self.part, int) else None


@dataclass(frozen=True)
class Rule:
    """A fault without a kill: what happens instead of the Nth op of a kind.

    Attributes:
        kind: one of `KINDS`.
        action: `errno` (fail with `value`), `short` (let `value` bytes through and
            return that), `delay` (wait `value` seconds first), `flip` (change bit
            `value` of the data), `zero` (zero the 4 KiB page that holds byte `value`).
        value: as `action` says.
        nth: which of the ops that the rule fits, from 1.
        onwards: from the nth on, and not only once.
        path: a pattern for the label of the file; of a rename, of either name. Several
            are joined by `|`.
        rank: only ops of this rank; None for any.
    """

    kind: str
    action: str
    value: float = 0
    nth: int = 1
    onwards: bool = False
    path: str = "*"
    rank: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown kind of file op {self.kind!r} in a rule")
        if self.action not in ACTIONS:
            raise ValueError(f"unknown action {self.action!r} in a rule")
        if self.nth < 1:
            raise ValueError(f"rule for {self.kind!r} has occurrence {self.nth}")

    @classmethod
    def parse(cls, text: str) -> Rule:
        """Read a rule from the JSON that `str` makes of it."""
        return cls(**json.loads(text))

    def __str__(self) -> str:
        return json.dumps(asdict(self))


# The named faults of the command line, as the rule that each is.
FAULTS: dict[str, tuple[str, str, float]] = {
    "enospc": ("write", "errno", errno.ENOSPC),
    "edquot": ("write", "errno", errno.EDQUOT),
    "eio": ("write", "errno", errno.EIO),
    "erofs": ("open", "errno", errno.EROFS),
    "eintr": ("write", "errno", errno.EINTR),
    "short-write": ("write", "short", 1),
    "bit-flip": ("write", "flip", 0),
    "zero-page": ("write", "zero", 0),
    "slow-disk": ("write", "delay", 0.05),
    "rename-refused": ("rename", "errno", errno.EPERM),
    "link-refused": ("link", "errno", errno.EPERM),
    "chmod-refused": ("chmod", "errno", errno.EPERM),
    "fsync-fails": ("fsync", "errno", errno.EIO),
}


@dataclass(frozen=True)
class Decision:
    """What is to happen to one op."""

    point: FilePoint | None = None
    rule: Rule | None = None
    delay_s: float = 0.0


class Gate:
    """Counts file ops as they arrive and says which are held and which fail.

    Args:
        points: kill points; each is used once.
        rules: faults; of several that fit one op the first wins, delays add up.
        records: patterns of labels of output files: a write to one, or a rename to its
            name, is a `record`.
        is_injected: tells whether the first signal of the attempt has been sent; it is
            asked only for points that count from there.
    """

    def __init__(
        self,
        points: list[FilePoint],
        rules: list[Rule],
        is_injected: Callable[[], bool] = lambda: False,
        records: tuple[str, ...] = (),
    ) -> None:
        self._points = list(points)
        self._records = records
        self._is_injected = is_injected
        self._rules = [(rule, [0]) for rule in rules]
        self._counts: dict[tuple[str, object], int] = {}

    def arrive(self, kind: str, names: tuple[str, ...], rank: int | None) -> Decision:
        """Count one op that is about to happen.

        Args:
            kind: as in the op log, or `open` for an open that changes nothing.
            names: the labels it concerns.
            rank: of the process that makes it, if known.
        """
        sites = sites_of(kind)
        if self._is_record(kind, names):
            sites = (*sites, "record")
        follows = any(one.follows for one in self._points) and self._is_injected()
        point = None
        for site in sites:
            counts = [(False, self._count((site, rank)), self._count((site, "all")))]
            if follows:
                mine = self._count((f"+{site}", rank))
                counts.append((True, mine, self._count((f"+{site}", "all"))))
            for since, mine, total in counts:
                for one in self._points:
                    at = total if one.over_all else mine
                    mine_too = one.rank is None or one.rank == rank
                    fits = one.site == site and one.follows == since and mine_too
                    if fits and one.occurrence == at:
                        point = point or one
        if point is not None:
            self._points.remove(point)
        rule, delay_s = self._apply_rules(kind, sites, names, rank)
        return Decision(point, rule, delay_s)

    def counts(self) -> dict[str, int]:
        """Return how often each site was reached, over all ranks."""
        return {
            site: self._counts.get((site, "all"), 0)
            for site in SITES
            if (site, "all") in self._counts
        }

    def not_reached(self) -> list[FilePoint]:
        """Return the kill points that have not been used."""
        return list(self._points)

    def _is_record(self, kind: str, names: tuple[str, ...]) -> bool:
        if not self._records or kind not in WRITES | RENAMES:
            return False
        return any(fnmatch(name, one) for name in names[-1:] for one in self._records)

    def _count(self, key: tuple[str, object]) -> int:
        self._counts[key] = self._counts.get(key, 0) + 1
        return self._counts[key]

    def _apply_rules(
        self,
        kind: str,
        sites: tuple[str, ...],
        names: tuple[str, ...],
        rank: int | None,
    ) -> tuple[Rule | None, float]:
        chosen, delay_s = None, 0.0
        for rule, seen in self._rules:
            is_open = rule.kind == "open" and kind in ("creat", "trunc")
            if rule.kind != kind and rule.kind not in sites and not is_open:
                continue
            if rule.rank is not None and rule.rank != rank:
                continue
            patterns = rule.path.split("|")
            if not any(fnmatch(name, one) for name in names for one in patterns):
                continue
            seen[0] += 1
            if seen[0] == rule.nth or (rule.onwards and seen[0] > rule.nth):
                if rule.action == "delay":
                    delay_s += rule.value
                else:
                    chosen = chosen or rule
        return chosen, delay_s


def sites_of(kind: str) -> tuple[str, ...]:
    """Return the sites at which an op of this kind counts."""
    if kind in UNNUMBERED:
        return ()
    for site, kinds in (
        ("write", WRITES),
        ("rename", RENAMES),
        ("unlink", UNLINKS),
        ("fsync", SYNCS),
    ):
        if kind in kinds:
            return ("file-op", site)
    return ("file-op",)


def rule_for(fault: str, nth: int = 1, **more: Any) -> Rule:
    """Return the rule of a named fault, such as `enospc`, at its nth chance.

    Raises:
        ValueError: no fault has this name.
    """
    if fault not in FAULTS:
        raise ValueError(f"unknown fault {fault!r}")
    kind, action, value = FAULTS[fault]
    return Rule(kind=kind, action=action, nth=nth, **{"value": value, **more})
