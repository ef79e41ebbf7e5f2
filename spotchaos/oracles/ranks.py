"""Did all ranks resume from one and the same step?"""

from __future__ import annotations

from collections.abc import Iterator

from spotchaos.model import Finding
from spotchaos.oracles.lineage import Case
from spotchaos.oracles.words import listed


def judge_ranks(case: Case) -> Iterator[Finding]:
    """Name resumes in which ranks joined at different steps."""
    for link in case.resumes():
        if not link.join.disagrees:
            continue
        joined = [(r, s) for r, s in sorted(link.join.ranks.items()) if s is not None]
        words = listed(f"rank {rank} at step {step}" for rank, step in joined)
        yield Finding(
            "ranks-disagree",
            f"in attempt {link.number} the ranks resumed from different steps: {words}",
            hint="let rank 0 choose the checkpoint and broadcast its step, and let every"
            " rank load that one",
            attempt=link.number,
            step=min(step for _, step in joined),
            rank=joined[0][0],
        )
