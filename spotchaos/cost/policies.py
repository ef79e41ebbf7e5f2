"""Policies: how a run saves, and on which machines it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Rule: TypeAlias = Literal["spot", "on-demand", "deadline", "uniform-progress", "hybrid"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One way to run a job.

    Attributes:
        name: as the screen has it.
        every: steps from save to save; 0: none but the one at the end.
        on_notice: whether a notice makes it save.
        stall_us: by which a save delays training; None: the job's.
        rule: which machines it takes. `spot`: spot machines alone. `on-demand`: none of
            them. `deadline`: spot until time left comes near to work left, on-demand
            from there on. `uniform-progress`: on-demand whenever it is behind an even
            pace, too. `hybrid`: one machine on demand, which remembers each step.
        all_zones: whether it moves to another zone when one is lost.
        note: what it takes for granted.
    """

    name: str
    every: int
    on_notice: bool = False
    stall_us: int | None = None
    rule: Rule = "spot"
    all_zones: bool = False
    note: str = ""

    @property
    def is_timed(self) -> bool:
        """Whether it needs to know a deadline."""
        return self.rule in ("deadline", "uniform-progress")
