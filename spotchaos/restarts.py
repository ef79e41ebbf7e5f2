"""Starts within one attempt: a launcher that outlives a rank begins the training anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spotchaos.model import Attempt, Ended, Restart


def parted(attempt: Attempt, restarts: Sequence[Restart]) -> list[Attempt]:
    """Return an attempt as the attempts that it was, for each start of its ranks one.

    What was sent belongs to the first of them, and the end to the last. A start that ended
    before its first step, and that the launcher made good by the next one, is left out: a
    checkpoint that cannot be loaded fails them all.

    Args:
        attempt: as it was seen from outside.
        restarts: of `spotchaos.trace.reading.read_restarts`; none: nothing was restarted.
    """
    if len(restarts) < 2:
        return [attempt]
    first, *between, last = restarts
    kept = [start for start in between if start.trace.completed]
    starts = [*kept, last]
    parts = [
        replace(
            attempt,
            trace=first.trace,
            restarts=(),
            ended=Ended.EXITED,
            exit_code=None,
            wall_s=starts[0].began_at_s - attempt.started_at_s,
            over_at_s=None,
            reclaimed_at_s=None,
            survivors=(),
            stuck=False,
            stacks="",
        )
    ]
    for place, start in enumerate(starts):
        is_last = start is last
        end_s = attempt.started_at_s + attempt.wall_s
        if not is_last:
            end_s = starts[place + 1].began_at_s
        parts.append(
            Attempt(
                number=attempt.number + len(parts),
                command=attempt.command,
                ended=_end_of(attempt) if is_last else Ended.FAILED,
                exit_code=attempt.exit_code if is_last else None,
                trace=start.trace,
                wall_s=end_s - start.began_at_s,
                started_at_s=start.began_at_s,
                over_at_s=attempt.over_at_s if is_last else None,
                reclaimed_at_s=attempt.reclaimed_at_s if is_last else None,
                output_tail=attempt.output_tail,
                stacks=attempt.stacks if is_last else "",
                survivors=attempt.survivors if is_last else (),
                trouble=attempt.trouble if is_last else None,
                refused_write=attempt.refused_write if is_last else None,
                path=attempt.path,
                is_restart=True,
            )
        )
    return parts


def _end_of(attempt: Attempt) -> Ended:
    """Say how the last start ended, which nobody had struck."""
    if attempt.ended is not Ended.EXITED:
        return attempt.ended
    return Ended.FINISHED if attempt.exit_code == 0 else Ended.FAILED
