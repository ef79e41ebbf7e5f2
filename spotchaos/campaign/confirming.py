"""What forked attempts show is shown once more by fresh processes, or it is doubted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from spotchaos.campaign.judgement import doubted, names_of
from spotchaos.config.plan import Plan
from spotchaos.launch.zygote.zygote import Zygote
from spotchaos.model import Judgement, Note, Trial, Verdict


class Confirmer:
    """Has each class of finding shown by fresh processes alone, once in a campaign.

    Args:
        again: carries out the plan of a trial in fresh processes, and judges that.
    """

    def __init__(self, again: Callable[[Trial, Plan], tuple[Trial, Judgement]]) -> None:
        self._again = again
        self._lock = threading.Lock()
        self._asked: set[str] = set()
        self._refuted: set[str] = set()
        self._undecided: set[str] = set()  # what fresh processes do not decide either
        self._has_decided = False

    @property
    def has_refuted(self) -> bool:
        """Whether fresh processes did not show what forked ones did."""
        return bool(self._refuted) or self._has_decided

    def decide(
        self, zygote: Zygote | None, trial: Trial, plan: Plan, judgement: Judgement
    ) -> tuple[Trial, Judgement]:
        """Return what fresh processes show where forked ones showed nothing.

        Forks may be short of memory, or never get to the kill point, where a fresh
        process gets there. Once for each reason to be `unknown`.

        Args:
            zygote: the one whose forks the trial was carried out in.
            trial: a trial that was carried out.
            plan: its plan.
            judgement: what was found.
        """
        if judgement.verdict is not Verdict.UNKNOWN or trial.path != "warm":
            return trial, judgement
        assert zygote is not None  # or no trial were warm
        names = names_of(judgement) or {"what the harness could not do"}
        with self._lock:
            if zygote.is_vouched_for or names <= self._undecided:
                return trial, judgement
            self._undecided |= names
        fresh, said = self._again(trial, plan)
        if said.verdict is Verdict.UNKNOWN:
            return trial, judgement
        self._has_decided = True
        return fresh, said

    def confirm(
        self, zygote: Zygote | None, trial: Trial, plan: Plan, judgement: Judgement
    ) -> Judgement:
        """Return the judgement with a note if fresh processes agree, or doubted if not.

        Args:
            zygote: the one whose forks the trial was carried out in.
            trial: a trial that was carried out.
            plan: its plan.
            judgement: what was found.
        """
        if not _is_in_question(trial, judgement):
            return judgement
        assert zygote is not None  # or no trial were warm
        if zygote.is_vouched_for:
            return judgement
        with self._lock:
            new = names_of(judgement) - self._asked - zygote.confirmed
            self._asked |= new
        if not new:
            return judgement
        said = names_of(self._again(trial, plan)[1])
        if new <= said:
            zygote.confirmed |= new
            message = f"a fresh process showed {', '.join(sorted(new))} as well"
            note = Note("confirmed-cold", message)
            return replace(judgement, notes=(*judgement.notes, note))
        self._refuted |= new - said
        shown = ", ".join(sorted(said)) or "nothing"
        return doubted(judgement, f"in fresh processes it showed {shown}")

    def doubt_refuted(
        self, done: Sequence[tuple[Trial, Judgement]]
    ) -> list[tuple[Trial, Judgement]]:
        """Convict no trial of what fresh processes did not show elsewhere."""
        return [
            (trial, doubted(judgement, "another trial was refuted when run fresh"))
            if _is_in_question(trial, judgement) and names_of(judgement) & self._refuted
            else (trial, judgement)
            for trial, judgement in done
        ]


def _is_in_question(trial: Trial, judgement: Judgement) -> bool:
    return judgement.verdict is Verdict.VIOLATED and trial.path == "warm"
