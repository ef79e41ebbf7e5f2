"""The smallest grace window in which every plan of a campaign holds, in real seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from spotchaos.model import Judgement, Note, Trial

# Runs of all plans, the one in the whole window apart.
TRIES = 7
# Near enough: the next run of the same program differs by more.
NEAR = 0.1
# A first guess leaves this much room over what the program used of the whole window.
ROOM = 2.0
LEAST_S = 0.01


@dataclass(frozen=True, slots=True)
class Found:
    """What a search came to.

    Attributes:
        given_s: the whole window.
        smallest_s: the smallest in which all held; None: not even the whole one.
        fails_s: the largest in which one did not; None: none was tried that is too small.
        tried: each window, and whether all held in it, in order.
    """

    given_s: float
    smallest_s: float | None
    fails_s: float | None
    tried: tuple[tuple[float, bool], ...]

    def note(self) -> Note:
        """Say it in one sentence."""
        if self.smallest_s is None:
            said = (
                f"no grace window was found in which every plan holds: the whole one of"
                f" {self.given_s:g} s is too short"
            )
        else:
            said = f"every plan held in a grace window of {self.smallest_s:.3g} s"
            if self.fails_s is not None:
                said += f" and not in one of {self.fails_s:.3g} s"
            said += f"; {self.given_s:g} s are given"
        return Note("smallest-grace", said)

    def as_report(self) -> dict[str, object]:
        """Return the entry of a report."""
        return {
            "given_s": self.given_s,
            "smallest_s": self.smallest_s,
            "fails_s": self.fails_s,
            "tried": [{"grace_s": s, "held": held} for s, held in self.tried],
        }


def search(
    holds: Callable[[float], bool],
    *,
    given_s: float,
    holds_in_whole: bool,
    used_s: float | None = None,
    may_go_on: Callable[[], bool] = lambda: True,
) -> Found:
    """Halve the interval between what is too short and what is long enough.

    Args:
        holds: carries all plans out in a window of so many seconds.
        given_s: the whole window.
        holds_in_whole: whether all plans held in it.
        used_s: how much of it was used; None: unknown.
        may_go_on: False ends the search with what is known by then.
    """
    if not holds_in_whole:
        return Found(given_s, None, given_s, ((given_s, False),))
    low, high = 0.0, given_s
    tried = [(given_s, True)]
    guess = given_s / 2 if used_s is None else min(given_s, max(LEAST_S, ROOM * used_s))
    for _ in range(TRIES):
        if not may_go_on() or high - low <= max(LEAST_S, NEAR * high):
            break
        # A guess that is no less than what is known to be enough tells nothing.
        window_s = guess if low < guess < high else (low + high) / 2
        held = holds(window_s)
        tried.append((window_s, held))
        low, high = (low, window_s) if held else (window_s, high)
        guess = (low + high) / 2
    fails_s = low if low > 0 else None
    return Found(given_s, high, fails_s, tuple(tried))


def given_in(trials: Sequence[tuple[Trial, Judgement]], asked_s: float | None) -> float:
    """Return the whole window of a campaign: as asked for, or the provider's own."""
    played = [a.notice.grace_s for t, _ in trials for a in t.attempts if a.notice]
    return asked_s if asked_s is not None else max(played, default=0.0)


def used_in(trials: Sequence[tuple[Trial, Judgement]]) -> float | None:
    """Return the longest time from a warning to the program's end, in real seconds."""
    return max(uses_in(trial for trial, _ in trials), default=None)


def uses_in(trials: Iterable[Trial]) -> list[float]:
    """Return each time from a warning until the last save was whole, in real seconds."""
    found = []
    for trial in trials:
        for attempt in trial.attempts:
            warned_at_s = attempt.notice_at_s
            if warned_at_s is None and attempt.signalled_step is not None:
                warned_at_s = max(
                    (
                        mark.t_s
                        for rank in attempt.trace.ranks.values()
                        for mark in rank.steps
                        if mark.step == attempt.signalled_step
                    ),
                    default=None,
                )
            saved = [
                save.ended_at_s
                for rank in attempt.trace.ranks.values()
                for save in rank.saves
                if save.ended_at_s is not None
            ]
            if warned_at_s is not None and saved:
                found.append(max(saved) - warned_at_s)
    return [one for one in found if one > 0]
