"""Drawing the crash states of a recorded run: which are there, and which are left out.

It counts what it draws and says, clause by clause, what it leaves out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from spotchaos.config.settings import Settings
from spotchaos.explore.crash_classes import Case, Result
from spotchaos.explore.crash_points import barriers, crash_points, sees_saves, spread
from spotchaos.model import Verdict
from spotchaos.persistence.crash_states import (
    Bounds,
    CrashState,
    Tally,
    build,
    distinct,
    enumerate_states,
)
from spotchaos.persistence.materialise import Materialiser
from spotchaos.persistence.models import EXT4, KILL, POSIX, PersistenceModel
from spotchaos.persistence.rank_cuts import early_tokens
from spotchaos.recording.recorded_run import Recorded

# Ways in which one rank dies earlier: each is resumed from by all ranks.
MOST_EARLY = 150
# Crash points within one recorded resume.
MOST_RESUME_POINTS = 60
IN_A_RESUME = "kill during a resume"
UNSEEN = (
    "whether a resume goes back too far: no save was seen, and crash points are where the"
    " program writes"
)


class Drawing:
    """Draws states within the bounds of the settings.

    Attributes:
        tally: how many were drawn, and left after each comparison.
        counts: by model, what was drawn.
        left_out: clauses on what was not drawn.
        never_saves: the recorded run wrote nothing to crash in.
        saves_unseen: it wrote, and was not seen to save.
        models: what a crash may do.
    """

    def __init__(self, settings: Settings, patterns: Sequence[str]) -> None:
        self._settings = settings
        self._patterns = patterns
        self.tally = Tally()
        self.counts: dict[str, int] = {}
        self.left_out: list[str] = []
        self.never_saves = self.saves_unseen = False
        self.models = models(settings.power_loss)

    def of_run(
        self, record: Recorded, writer: Materialiser, *, world_size: int
    ) -> list[Case]:
        """Draw the states that a crash in or after the chosen saves could leave."""
        points = crash_points(record, self._patterns, saves=self._settings.saves)
        last = record.history.log.last
        if not points:
            self.never_saves = True
            points = [last + 1]
        elif record.attempt.trace.observed and not sees_saves(record, self._patterns):
            self.saves_unseen = True
            self.left_out.append(UNSEEN)
        if len(points) < last + 1:
            self.left_out.append(
                f"{last + 1 - len(points)} of {last + 1} crash points, left out by"
                " --saves and our bounds"
            )
        # What is acknowledged differs with the model that leaves a folder, so that equal
        # folders are one state within a model only; the memo spares their resumes.
        drawn: dict[str, list[CrashState]] = {}
        for model in self.models:
            bounds = Bounds(deviations=self._settings.deviations, points=points)
            states = list(enumerate_states(record.history, model, bounds, self.tally))
            self.counts[model.name] = len(states)
            drawn[model.letter] = states
        if world_size > 1:
            drawn[KILL.letter] += self._early(record, set(points))
        if self.tally.capped_points:
            self.left_out.append(
                f"states beyond the first 64 at {self.tally.capped_points} points"
            )
        return self._distinct(record, writer, drawn.values())

    def of_resume(self, record: Recorded, writer: Materialiser) -> list[Case]:
        """Draw the kill states that the ops of a recorded resume can leave."""
        points = crash_points(record, self._patterns, saves=1)
        points = spread(points, MOST_RESUME_POINTS)
        if not points:
            return []
        drawn = list(enumerate_states(record.history, KILL, Bounds(points=points)))
        self.counts[IN_A_RESUME] = self.counts.get(IN_A_RESUME, 0) + len(drawn)
        return self._distinct(record, writer, [drawn])

    def _early(self, record: Recorded, points: set[int]) -> list[CrashState]:
        """Draw the states in which one rank was killed earlier than the others."""
        early = [
            token
            for token in early_tokens(record.history, barriers(record))
            if token.number in points
        ]
        kept = [early[i] for i in spread(range(len(early)), MOST_EARLY)]
        self.counts["early ranks"] = len(kept)
        if len(kept) < len(early):
            self.left_out.append(
                f"{len(early) - len(kept)} of {len(early)} ways in which one rank"
                " is killed earlier"
            )
        return [CrashState(token, build(record.history, token)) for token in kept]

    def _distinct(
        self,
        record: Recorded,
        writer: Materialiser,
        drawn: Iterable[Sequence[CrashState]],
    ) -> list[Case]:
        cases: list[Case] = []
        for states in drawn:
            tally = Tally()
            found = distinct(record.history, states, tally)
            cases += [Case(record, writer, state) for state in found]
            self.tally.drawn += tally.drawn
            self.tally.by_recipe += tally.by_recipe
            self.tally.by_content += tally.by_content
        return cases


def models(power_loss: str | None) -> list[PersistenceModel]:
    """Return the persistence models that `--power-loss` asks for, the kill first."""
    more = {None: [], "ext4": [EXT4], "posix": [POSIX], "all": [EXT4, POSIX]}
    return [KILL, *more[power_loss]]


def bases(
    record: Recorded, cases: Sequence[Case], results: Mapping[int, Result]
) -> list[int]:
    """Return the numbers of states whose resume is worth a recording, the best first.

    Those are the ones with most left over, of which a real kill leaves the like.
    """
    found = [
        number
        for number, result in sorted(results.items())
        if result.verdict is Verdict.HELD
        and cases[number].record is record
        and record.plan_of(cases[number].state.token) is not None
        and _has_saved(cases[number])
    ]

    def rank(number: int) -> tuple[int, bool, int]:
        state = cases[number].state
        # What a torn write leaves may lie in the way of all later ones.
        is_whole = not state.token.through
        return -len(state.layout.things), is_whole, state.token.number

    return sorted(found, key=rank)


def _has_saved(case: Case) -> bool:
    token = case.state.token
    cut = case.record.cut(token.number, token.early)[-1]
    return any(save.ended_at_s for r in cut.trace.ranks.values() for save in r.saves)
