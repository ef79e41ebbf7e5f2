"""Plans: where and how each attempt of a trial is interrupted; seed in, plans out.

One spelling serves commands, scenarios, reports and replay tokens:

    SITE:N          the Nth time this attempt reaches the site, on each rank
    SITE:N@R        the same on rank R only
    SITE:N@all      over all processes together, as the op log counts (file sites)
    SITE:N/after    (file sites) right after it, before the program knows
    SITE:N/half     (write) half of it goes through; `write:N+4096` so many bytes
    50%             at that share of the baseline's steps
    record:N        the Nth write to an output file, or rename to the name of one
    12.5s           after that time
    A,B,C           one kill point for each attempt, then one that is left alone
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from spotchaos.errors import PlanError, closest
from spotchaos.trace.format import FILE_SITES, SITES, STORE_SITES

# Words that name many plans instead of one.
MANY = ("random", "edges", "every-step", "every-file-op")

# Each is an attempt of its own, one after the other.
MOST_POINTS = 1000

_POINT = re.compile(
    r"^(?P<site>[a-z-]+):(?P<n>[0-9]{1,12})(?:@(?P<rank>[0-9]{1,6}|all))?"
    r"(?:/(?P<cut>half|after)|\+(?P<bytes>[0-9]{1,15}))?\Z"
)
_SHARE = re.compile(r"^(?P<share>[0-9]{1,12}(?:\.[0-9]{1,20})?)%\Z")
_SECONDS = re.compile(r"^(?P<seconds>[0-9]{1,9}(?:\.[0-9]{1,20})?)s\Z")


@dataclass(frozen=True, slots=True)
class KillPoint:
    """Where an interruption lands: the nth time that an attempt reaches a site.

    Occurrences count from 1 and start again with every attempt. Exactly one of `site`,
    `share` and `after_s` is set.
    """

    site: str | None = None
    occurrence: int = 0
    rank: int | None = None
    over_all: bool = False  # counted over all processes together; file sites only
    cut: str | None = None  # "half" or a number of bytes (writes), "after" (file ops)
    share: float | None = None  # of the baseline's steps, 0 to 1
    after_s: float | None = None  # seconds after the attempt began

    @classmethod
    def parse(cls, text: str) -> KillPoint:
        """Read one kill point, spelled as in the module's docstring."""
        text = text.strip()
        if found := _SHARE.match(text):
            share = float(found["share"]) / 100
            if share > 1:
                raise PlanError(
                    f"kill point {text!r} lies beyond the end of the run",
                    hint="write a share from 0% to 100%",
                )
            return cls(share=share)
        if found := _SECONDS.match(text):
            return cls(after_s=float(found["seconds"]))
        return cls._parse_site(text)

    @classmethod
    def _parse_site(cls, text: str) -> KillPoint:
        name, _, rest = text.partition(":")
        if name in SITES and not rest:
            raise PlanError(
                f"kill point {text!r} names no occurrence",
                hint=f"write {name}:3 for the third time it is reached",
            )
        if text.isdecimal():
            raise PlanError(
                f"kill point {text!r} names no site",
                hint=f"write step-end:{text} for the end of step {text}, or {text}s for"
                " that time",
            )
        if name not in SITES:
            near = closest(name, (*SITES, *MANY))
            raise PlanError(
                f"unknown site {name!r} in kill point {text!r}",
                hint=near or f"sites are {', '.join(SITES)}",
            )
        found = _POINT.match(text)
        if found is None:
            raise PlanError(
                f"kill point {text!r} cannot be read after its site",
                hint=f"write {name}:3, or {name}:3@1 for rank 1 only",
            )
        if int(found["n"]) < 1:
            raise PlanError(
                f"kill point {text!r} has occurrence {found['n']}",
                hint=f"occurrences count from 1; write {name}:1 for the first",
            )
        cut = found["cut"] or found["bytes"]
        cuts = cut is not None and (cut != "after" or name not in FILE_SITES)
        if cuts and name not in {"write", "file-op", "record"}:
            raise PlanError(
                f"kill point {text!r} cuts a site that is no write",
                hint=f"only writes are cut: write:{found['n']}/half",
            )
        over_all = found["rank"] == "all"
        if over_all and name not in FILE_SITES:
            raise PlanError(
                f"kill point {text!r} counts {name} over all processes",
                hint=f"only file sites are: write {name}:{found['n']}@0 for rank 0",
            )
        if found["rank"] and name in STORE_SITES:
            raise PlanError(
                f"kill point {text!r} names a rank, which a store cannot tell",
                hint=f"write {name}:{found['n']}, counted over all ranks",
            )
        rank = int(found["rank"]) if found["rank"] and not over_all else None
        return cls(
            site=name, occurrence=int(found["n"]), rank=rank, over_all=over_all, cut=cut
        )

    @property
    def is_file_site(self) -> bool:
        return self.site in FILE_SITES

    def at(self, horizon: int) -> KillPoint:
        """Turn a share into the step that it means in a run of `horizon` steps."""
        if self.share is None:
            return self
        step = min(max(1, round(self.share * horizon)), max(1, horizon))
        return KillPoint(site="step-end", occurrence=step)

    def __str__(self) -> str:
        if self.share is not None:
            return f"{self.share * 100:g}%"
        if self.after_s is not None:
            return f"{self.after_s:g}s"
        rank = "@all" if self.over_all else "" if self.rank is None else f"@{self.rank}"
        cut = ""
        if self.cut is not None:
            cut = f"/{self.cut}" if self.cut in ("half", "after") else f"+{self.cut}"
        return f"{self.site}:{self.occurrence}{rank}{cut}"


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that one trial does to its program: a kill point for each attempt.

    `drawn` plans come from chance: a kill point after the first that is not reached
    drops off. In a plan that the user named it makes the trial `unknown`. With
    `after_finish` the program is started once more after it has finished.
    """

    points: tuple[KillPoint, ...]
    drawn: bool = False
    after_finish: bool = False

    @classmethod
    def parse(cls, text: str) -> Plan:
        """Read kill points joined by commas."""
        if text.strip() == "after-finish":
            return cls((), after_finish=True)
        parts = text.split(",")
        if len(parts) > MOST_POINTS:
            raise PlanError(
                f"a plan of {len(parts)} kill points",
                hint=f"give at most {MOST_POINTS}, one for each attempt",
            )
        return cls(tuple(map(KillPoint.parse, parts)))

    def at(self, horizon: int) -> Plan:
        """Settle shares for a baseline of `horizon` steps.

        Raises:
            PlanError: the first step-counting kill point lies beyond the horizon.
        """
        points = tuple(point.at(horizon) for point in self.points)
        first = points[0] if points else None
        if (
            first is not None
            and first.site == "step-end"
            and first.occurrence > horizon
        ):
            raise PlanError(
                f"kill point '{first}' lies beyond the horizon of {horizon} steps",
                hint=f"the program makes {horizon} steps; choose step-end:1 to"
                f" step-end:{horizon}",
            )
        return Plan(points, drawn=self.drawn, after_finish=self.after_finish)

    def __str__(self) -> str:
        if self.after_finish:
            return "after-finish"
        return ",".join(map(str, self.points))
