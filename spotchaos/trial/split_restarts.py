"""Starts within one attempt: a launcher that outlives a rank begins the training anew."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from spotchaos.model import Attempt, Ended, Stored

# The strike belongs to the first start, and how it all ended to the last one.
_NOT_FIRST: Mapping[str, Any] = {
    "kill_point": None,
    "reached": True,
    "signal": None,
    "signalled_step": None,
    "target": "all",
    "notified_rank": True,
    "is_deaf": False,
    "sent": (),
    "unsent": (),
    "notice_at_s": None,
    "notice": None,
    "injected": (),
    "is_restart": True,
}
_NOT_LAST: Mapping[str, Any] = {
    "exit_code": None,
    "over_at_s": None,
    "reclaimed_at_s": None,
    "survivors": (),
    "stuck": False,
    "stacks": "",
    "trouble": None,
    "refused_write": None,
    "left": None,
    "cpu_s": 0.0,
}


def split_at_restarts(attempt: Attempt) -> list[Attempt]:
    """Return an attempt as the attempts that it was, for each start of its ranks one.

    A start that ended before its first step, and that the launcher made good by the next
    one, is left out: a checkpoint that cannot be loaded fails them all.

    Args:
        attempt: as it was seen from outside, with its restarts.
    """
    if len(attempt.restarts) < 2:
        return [attempt]
    first, *between, last = attempt.restarts
    starts = [first, *(start for start in between if start.trace.completed), last]
    began_s = [attempt.started_at_s, *(start.began_at_s for start in starts[1:])]
    ends_s = [*began_s[1:], attempt.started_at_s + attempt.wall_s]
    parts = []
    for place, start in enumerate(starts):
        is_last = start is last
        ended = Ended.FAILED if place else Ended.EXITED
        until_s = math.inf if is_last else ends_s[place]
        part = replace(
            attempt,
            number=attempt.number + place,
            trace=start.trace,
            restarts=(),
            ended=_end_of(attempt) if is_last else ended,
            started_at_s=began_s[place],
            wall_s=ends_s[place] - began_s[place],
            stored=_asked_in(attempt.stored, began_s[place], until_s),
        )
        if place:
            part = replace(part, **_NOT_FIRST)
        parts.append(part if is_last else replace(part, **_NOT_LAST))
    return parts


def _asked_in(stored: Stored | None, from_s: float, until_s: float) -> Stored | None:
    """Return what was stored, with the requests of one start alone."""
    if stored is None:
        return None
    own = tuple(r for r in stored.requests if from_s <= r.at_s < until_s)
    return replace(stored, requests=own)


def _end_of(attempt: Attempt) -> Ended:
    """Say how the last start ended, which nobody had struck."""
    if attempt.ended is not Ended.EXITED:
        return attempt.ended
    return Ended.FINISHED if attempt.exit_code == 0 else Ended.FAILED
