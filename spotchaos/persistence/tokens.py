"""The one-line name of a crash state, which is enough to build it again from a log.

K@27            killed before op 27
K@27+4096       ... when 4096 bytes of op 27 had reached the file
K@27,r1=19      ... and rank 1 had been killed before its op 19
E@32:m30,n3=0   power loss before op 32 on an ext4-like disk: names as they were
                before op 30, none of the unsynced bytes of node 3
S@12:A,-11,n1=z a strict disk: everything persisted but op 11; node 1 full of zeros
S@12:0,+11      ... nothing unsynced persisted but op 11

With the digest of the recording it was named in, `deadbeef/S@12:A,-11`, it is what a
replay token carries where no real kill leaves the state.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from spotchaos.errors import PlanError
from spotchaos.persistence.models import BY_LETTER, Level, PersistenceModel

_IN_RECORDING = re.compile(r"([0-9a-f]{8})/([KES]@.{1,4000})")
_TOKEN = re.compile(r"([KES])@([0-9]{1,12})(?:\+([0-9]{1,15}))?(?:([:,])(.*))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateToken:
    """Which crash state of a log: the crash point and what deviates there.

    Attributes:
        letter: of the persistence model.
        number: the first op that has not happened; the number after the last means
            that all have.
        through: bytes of that op that have (kill only).
        early: (rank, op): this rank was killed before its op (kill only).
        names_before: names and truncations from this op on are lost (journal only).
        base: `A`, everything has persisted, or `0`, nothing unsynced (strict only).
        omitted: ops whose change of names is lost, from base A.
        included: ops whose change of names has persisted, from base 0.
        levels: (node, level): what is left of a file's unsynced bytes.
    """

    letter: str
    number: int
    through: int = 0
    early: tuple[tuple[int, int], ...] = ()
    names_before: int | None = None
    base: str = "A"
    omitted: tuple[int, ...] = ()
    included: tuple[int, ...] = ()
    levels: tuple[tuple[int, Level], ...] = ()

    @property
    def model(self) -> PersistenceModel:
        """The persistence model."""
        return BY_LETTER[self.letter]

    @property
    def deviations(self) -> int:
        """How many things went otherwise than the simplest crash at this point."""
        lost_names = self.names_before is not None and self.names_before < self.number
        return (
            (self.through > 0)
            + len(self.early)
            + lost_names
            + (self.base == "0")
            + len(self.omitted)
            + len(self.included)
            + len(self.levels)
        )

    @property
    def simplicity(self) -> tuple[int, int, int, bool, str]:
        """A key that sorts the simplest state first, of equals that which says more."""
        is_less = self.base == "0"  # what alone was lost is named, not all that was
        return self.model.severity, self.deviations, self.number, is_less, str(self)

    def __str__(self) -> str:
        head = f"{self.letter}@{self.number}"
        levels = [f"n{node}={level.value}" for node, level in self.levels]
        if self.letter == "K":
            through = f"+{self.through}" if self.through else ""
            return ",".join([head + through, *(f"r{r}={n}" for r, n in self.early)])
        if self.letter == "E":
            return ",".join([f"{head}:m{self.names_before}", *levels])
        changed = [*(f"-{n}" for n in self.omitted), *(f"+{n}" for n in self.included)]
        return ",".join([f"{head}:{self.base}", *changed, *levels])

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the spelling that `str` gives.

        Raises:
            PlanError: the text names no crash state.
        """
        found = _TOKEN.fullmatch(text)
        if found is None:
            raise _wrong(text)
        letter, number, through, colon, rest = found.groups()
        words = rest.split(",") if rest else []
        wants_colon = letter != "K"
        if (wants_colon and colon != ":") or (not wants_colon and colon == ":"):
            raise _wrong(text)
        if wants_colon and (through or not words):
            raise _wrong(text)
        parts: dict[str, object] = {}
        if letter == "E":
            first = re.fullmatch(r"m([0-9]{1,12})", words.pop(0))
            if first is None:
                raise _wrong(text)
            parts["names_before"] = int(first[1])
        elif letter == "S":
            parts["base"] = words.pop(0)
            if parts["base"] not in ("A", "0"):
                raise _wrong(text)
        lists: dict[str, list[object]] = {}
        for word in words:
            key, value = _word(word, letter, text)
            lists.setdefault(key, []).append(value)
        return cls(
            letter=letter,
            number=int(number),
            through=int(through or 0),
            **parts,  # type: ignore[arg-type]  # the keys above have these types
            **{key: tuple(value) for key, value in lists.items()},  # type: ignore[arg-type]  # ditto
        )


def in_recording(plan: str) -> tuple[str, str] | None:
    """Return the digest of a recording and the state named in it; None for plans."""
    found = _IN_RECORDING.fullmatch(plan)
    return None if found is None else (found[1], found[2])


def _word(word: str, letter: str, text: str) -> tuple[str, object]:
    if letter == "K" and (found := re.fullmatch(r"r([0-9]{1,6})=([0-9]{1,12})", word)):
        return "early", (int(found[1]), int(found[2]))
    if letter != "K" and (found := re.fullmatch(r"n([0-9]{1,12})=([a0hlzfm])", word)):
        return "levels", (int(found[1]), Level(found[2]))
    if letter == "S" and (found := re.fullmatch(r"([+-])([0-9]{1,12})", word)):
        return "omitted" if found[1] == "-" else "included", int(found[2])
    raise _wrong(text)


def _wrong(text: str) -> PlanError:
    return PlanError(
        f"{text!r} names no crash state",
        hint="write K@27, K@27+4096, E@32:m30,n3=0 or S@12:A,-11,n1=z",
    )
