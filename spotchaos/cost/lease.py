"""One lease in closed form: what a program gets done until its machines are taken.

A save is due at each multiple of `every` steps and at the end. It holds training up for
the stall, is whole after its end, and counts only then; the next one waits for that.
"""

from __future__ import annotations

from typing import NamedTuple


class Pace(NamedTuple):
    """How a program trains and saves on the machines of a lease, in microseconds."""

    steps: int  # in all
    step: int
    every: int  # steps from save to save; 0: none but the one at the end
    stall: int
    end: int  # until a save is whole, not less than the stall


class Done(NamedTuple):
    """What came of a lease; times in microseconds."""

    length: int
    useful: int
    lost: int
    saving: int
    restarting: int
    idle: int
    made: int
    kept: int  # steps that were new in a checkpoint
    is_finished: bool = False


class AttemptController:
    """The course of training from `kept` steps to the end, were nothing to happen."""

    __slots__ = ("cycle", "first", "gap", "last", "length", "middle", "pace", "rest")

    def __init__(self, pace: Pace, kept: int) -> None:
        steps, step, every, stall, end = pace
        left = steps - kept
        self.pace = pace
        self.gap = every - kept % every if every else left
        # Saves before the one at the end.
        self.middle = (steps - 1) // every - kept // every if every else 0
        self.cycle = max(every * step + stall, end, 1)
        if self.middle:
            self.first = self.gap * step
            self.rest = left - self.gap - (self.middle - 1) * every
            begun = self.first + (self.middle - 1) * self.cycle
            self.last = begun + max(stall + self.rest * step, end)
        else:
            self.gap = self.rest = left
            self.first = self.last = left * step
        self.length = self.last + end

    def trained(self, at: int) -> int:
        """Return how much of the time until `at` was spent on steps."""
        if at <= self.first or not self.middle:
            return min(at, self.first)
        _, step, every, stall, _ = self.pace
        begun = min(self.middle, (at - self.first) // self.cycle + 1)
        since = at - self.first - (begun - 1) * self.cycle
        steps = every if begun < self.middle else self.rest
        own = min(max(since - stall, 0), steps * step)
        return self.first + (begun - 1) * every * step + own

    def whole(self, at: int) -> int:
        """Return how many steps the newest save that is whole at `at` adds."""
        since = at - self.pace.end - self.first
        if since < 0 or not self.middle:
            return 0
        saves = min(self.middle, since // self.cycle + 1)
        return self.gap + (saves - 1) * self.pace.every


def use(
    pace: Pace,
    kept: int,
    *,
    start: int,
    room: int | None,
    warned: int | None = None,
    react: int = 0,
    is_remembered: bool = False,
) -> Done:
    """Return what a lease brings.

    Args:
        pace: how the program trains.
        kept: steps in its newest checkpoint.
        start: from getting the machines to the first step.
        room: from getting the machines until they are gone; None: they stay.
        warned: so long before they are gone it is told; None: never, or too late.
        react: so long after that it begins the save which it is told to make.
        is_remembered: every step is kept as soon as it is made, by who lives on.
    """
    left = pace.steps - kept
    if room is not None and room <= start:
        return Done(room, 0, 0, 0, room, 0, 0, 0)
    course = AttemptController(pace, kept)
    at = course.length if room is None else room - start
    if at >= course.length:
        useful = left * pace.step
        saving = course.length - useful
        return Done(
            start + course.length,
            useful,
            0,
            saving,
            start,
            0,
            left,
            left,
            is_finished=True,
        )
    if is_remembered:
        trained = course.trained(at)
        made = trained // pace.step
        useful = made * pace.step
        lost, saving = trained - useful, at - trained
        return Done(start + at, useful, lost, saving, start, 0, made, made)
    if warned is not None:
        stop = max(0, at - warned) + react
        if stop + pace.end <= at:
            trained = course.trained(stop)
            made = trained // pace.step
            useful = made * pace.step
            lost, saving = trained - useful, stop - trained + pace.end
            idle = at - stop - pace.end
            return Done(start + at, useful, lost, saving, start, idle, made, made)
    trained = course.trained(at)
    new = course.whole(at)
    useful = new * pace.step
    return Done(
        start + at,
        useful,
        trained - useful,
        at - trained,
        start,
        0,
        trained // pace.step,
        new,
    )
