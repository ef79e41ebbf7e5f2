"""What counts as a step of a program whose optimizer steps do not tell."""

from __future__ import annotations

from typing import Any

from spotchaos.model import Attempt, RankTrace
from spotchaos.trial.trial import main_rank


def _by_closing_optimizer(rank: RankTrace) -> tuple[str, dict[str, Any]] | None:
    """Count on the optimizer that closes a round, where several step in turn.

    A program saves between two rounds. Were the boundary of a step after an optimizer in
    the middle of a round, a resumed run would begin in the middle of a step. Where now
    one closes and now another, as when one takes its turn every other time, the one that
    steps most often has a boundary at every save.
    """
    if len(rank.closings) == 0 or rank.main_optimizer is None:
        return None
    steps = {int(o["index"]): int(o.get("steps") or 0) for o in rank.optimizers}
    # With one that closes them all, it is that one.
    counts = max(rank.closings, key=lambda i: (steps.get(i, 0), rank.closings[i]))
    if counts == rank.main_optimizer:
        return None
    when = "a step is counted when the last of them did"
    if len(rank.closings) > 1:
        when = "steps are those of the one that steps most often"
    return f"several optimizers step in turn: {when}", {"main_optimizer": counts}


def other_way_to_count(attempt: Attempt) -> tuple[str, dict[str, Any]] | None:
    """Return how else steps can be counted, if no optimizer step was seen (facts.md 2)."""
    rank = main_rank(attempt)
    if rank is None:
        return None
    if rank.steps:
        return _by_closing_optimizer(rank)
    stepped = [o for o in rank.optimizers if o.get("steps")]
    if stepped:
        largest = max(stepped, key=lambda o: int(o.get("numel", 0)))
        return (
            f"steps are counted on the optimizer that made any: {largest.get('name')}",
            {"main_optimizer": largest["index"]},
        )
    for way in ("backward", "batch"):
        if rank.counted.get(way):
            return (
                f"no optimizer step was seen: steps are counted by {way}",
                {"step_by": way},
            )
    return None
