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

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spotchaos.errors import PlanError, closest
from spotchaos.trace.format import FILE_SITES, SITES, STORE_SITES

# Words that name many plans instead of one.
MANY = ("random", "edges", "every-step", "every-file-op")

_POINT = re.compile(
    r"^(?P<site>[a-z-]+):(?P<n>\d+)(?:@(?P<rank>\d+|all))?"
    r"(?:/(?P<cut>half|after)|\+(?P<bytes>\d+))?$"
)
_SHARE = re.compile(r"^(?P<share>\d+(?:\.\d+)?)%$")
_SECONDS = re.compile(r"^(?P<seconds>\d+(?:\.\d+)?)s$")


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
        points = tuple(KillPoint.parse(part) for part in text.split(","))
        return cls(points)

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


@dataclass(frozen=True, slots=True)
class Landscape:
    """What a baseline shows of where interruptions can land, on rank 0.

    `saves` are pairs (steps completed when the save began, its number n). `inside_saves`
    are kill points in the file ops of one of them, most telling first.
    `epoch_ends` are steps after which an epoch ended.
    """

    horizon: int
    counts: Mapping[str, int]
    saves: Sequence[tuple[int, int]] = ()
    epoch_ends: Sequence[int] = ()
    file_ops: int | None = None  # recorded in a run; None: there are no file sites
    inside_saves: Sequence[KillPoint] = ()  # of a middle save: writes, renames, ...


def edges(land: Landscape) -> list[Plan]:
    """Return the plans in which interrupted programs go wrong most often, in order.

    Step 1, before the first save, the begin of a save, inside it (where file sites are),
    right after one, an epoch's end, soon after a resume, during the load, the last step,
    and a start after the finish. None is drawn by chance.
    """
    found: list[list[KillPoint]] = [[_step(1)]]
    saves = list(land.saves)
    if saves:
        first_step = saves[0][0]
        if first_step > 2:
            found.append([_step(first_step - 1)])
        middle_step, middle_n = saves[len(saves) // 2]
        found.append([KillPoint(site="save-begin", occurrence=middle_n)])
        found += [[point] for point in list(land.inside_saves)[:3]]
        found.append([KillPoint(site="save-end", occurrence=middle_n)])
        after = min(middle_step + 1, land.horizon)
        found.append([_step(after)])
        if middle_step + 2 < land.horizon:
            found.append([_step(after), _step(1)])
            found.append([_step(after), KillPoint(site="load-begin", occurrence=1)])
    for step in list(land.epoch_ends)[:2]:
        if 0 < step < land.horizon:
            found.append([_step(step)])
    found.append([_step(land.horizon)])
    plans = [Plan(tuple(points), drawn=True) for points in found]
    unique = list(dict.fromkeys(plans))
    return [*unique, Plan((), drawn=True, after_finish=True)]


def every_step(land: Landscape) -> list[Plan]:
    """Return a plan for each step of the baseline."""
    return [Plan((_step(n),), drawn=True) for n in range(1, land.horizon + 1)]


def every_file_op(land: Landscape) -> list[Plan]:
    """Return a plan for each recorded file operation.

    Raises:
        PlanError: this machine has no file sites.
    """
    if land.file_ops is None:
        raise PlanError(
            "'every-file-op' needs file sites, which are off on this machine",
            hint="ask `spotchaos doctor` why",
        )
    return [
        Plan((KillPoint(site="file-op", occurrence=n, over_all=True),), drawn=True)
        for n in range(1, land.file_ops + 1)
    ]


def draw(seed: int, *, trials: int, land: Landscape) -> list[Plan]:
    """Draw plans of one to three interruptions each, biased to edges.

    Args:
        seed: makes the plans; the report prints it, and `--seed` takes it back.
        trials: how many plans.
        land: what the baseline showed.

    Raises:
        PlanError: the horizon leaves no step to be interrupted at.
    """
    if land.horizon < 2:
        raise PlanError(
            f"no kill point fits a horizon of {land.horizon} steps",
            hint="let the program train for at least 2 steps",
        )
    rng = random.Random(seed)
    plans: list[Plan] = []
    # The first plan always meets a saved state in mid-run: the one question that every
    # reader has. The others are free.
    while len(plans) < trials:
        if not plans:
            first = _after_a_save(rng, land)
            plan = Plan(
                (first, *_later(rng, land, count=rng.choice((0, 1)))), drawn=True
            )
        else:
            plan = _draw_one(rng, land)
        if plan not in plans or len(plans) >= land.horizon:
            plans.append(plan)
    return plans


def _draw_one(rng: random.Random, land: Landscape) -> Plan:
    kind = rng.random()
    if kind < 0.55:
        first = rng.choice(_edge_points(land))
    elif kind < 0.85:
        first = _step(rng.randrange(1, land.horizon + 1))
    else:
        first = _mid_step(rng, land)
    count = rng.choice((0, 0, 1, 1, 2))
    return Plan((first, *_later(rng, land, count=count)), drawn=True)


def _later(rng: random.Random, land: Landscape, *, count: int) -> list[KillPoint]:
    """Draw the kill points of attempts after the first, half of them soon after it."""
    points = []
    for _ in range(count):
        if rng.random() < 0.5:
            points.append(_step(rng.choice((1, 1, 2, 3))))
        else:
            points.append(_step(rng.randrange(1, max(2, land.horizon // 2 + 1))))
    return points


def _after_a_save(rng: random.Random, land: Landscape) -> KillPoint:
    """Draw a step one to three after a save in the middle of the run."""
    saves = [step for step, _ in land.saves if 0 < step < land.horizon]
    if not saves:
        return _step(rng.randrange(1, land.horizon))
    step = rng.choice(saves[: max(1, len(saves) - 1)])
    return _step(min(step + rng.randrange(1, 4), land.horizon))


def _edge_points(land: Landscape) -> list[KillPoint]:
    points = [plan.points[0] for plan in edges(land) if plan.points]
    return [*points, *land.inside_saves] or [_step(1)]


def _mid_step(rng: random.Random, land: Landscape) -> KillPoint:
    """Draw a site within a step; a step has each of them at least once."""
    sites = [s for s in ("forward", "backward", "optimizer-step") if land.counts.get(s)]
    if not sites:
        return _step(rng.randrange(1, land.horizon + 1))
    site = rng.choice(sites)
    return KillPoint(site=site, occurrence=rng.randrange(1, land.counts[site] + 1))


def _step(n: int) -> KillPoint:
    return KillPoint(site="step-end", occurrence=n)
