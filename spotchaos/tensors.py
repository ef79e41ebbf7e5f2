"""Which tensor differs, in how many elements and how far: one replay of both sides.

No tensor is stored while trials run. For the first divergence of each kind, the baseline
and the trial are carried out once more with the order to dump the tensors of that step.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from spotchaos.baseline import Groundwork
from spotchaos.errors import SpotchaosError
from spotchaos.model import Attempt, Divergence, Judgement, Resume, Trial
from spotchaos.oracles.divergence import compare_dumps
from spotchaos.plan import Plan
from spotchaos.trial import run_attempt

# Components whose tensors can be dumped, in the order in which a reader wants them.
DUMPED = ("weights", "buffers", "optimizer", "batch", "gradients", "loss", "averages")


class Pinpointer:
    """Finds the tensor of a divergence, once for each kind of divergence.

    Args:
        ground: the campaign's groundwork.
        most: replays in one campaign; later divergences are left without a tensor.
    """

    def __init__(self, ground: Groundwork, *, most: int = 2) -> None:
        self._ground = ground
        self._left = most
        self._seen: set[tuple[str, ...]] = set()
        self._lock = threading.Lock()

    def locate(self, trial: Trial, plan: Plan, judgement: Judgement) -> Judgement:
        """Return the judgement with the tensor of its first divergence filled in."""
        for index, resume in enumerate(judgement.resumes):
            divergence = resume.divergence
            if divergence is None or resume.joined is None:
                continue
            wanted = [c for c in DUMPED if c in divergence.components]
            if not wanted or not self._claim((*wanted, *divergence.components)):
                return judgement
            try:
                found = self._replay(plan, resume, divergence, wanted)
            except (SpotchaosError, OSError):
                # A replay that fails takes nothing from the verdict, which stands.
                return judgement
            if found is None:
                return judgement
            tensor, elements, ulp = found
            marked = replace(divergence, tensor=tensor, elements=elements, max_ulp=ulp)
            resumes = list(judgement.resumes)
            resumes[index] = replace(resume, divergence=marked)
            return replace(judgement, resumes=tuple(resumes))
        return judgement

    def _claim(self, key: tuple[str, ...]) -> bool:
        with self._lock:
            if key in self._seen or self._left <= 0:
                return False
            self._seen.add(key)
            self._left -= 1
            return True

    def _replay(
        self, plan: Plan, resume: Resume, divergence: Divergence, wanted: list[str]
    ) -> tuple[str, int, int | None] | None:
        """Run both sides to the step, and compare what they dumped."""
        assert resume.joined is not None
        local = divergence.step - resume.joined
        with self._ground.stage.workspace.folder_for("dumps") as folder:
            expected = self._dump(
                Plan(()), 1, {"step": divergence.step, "components": wanted}, folder
            )
            actual = self._dump(
                plan, resume.attempt, {"step": local, "components": wanted}, folder
            )
            if expected is None or actual is None:
                return None
            return compare_dumps(expected, actual)

    def _dump(
        self, plan: Plan, attempt: int, order: Mapping[str, Any], folder: Path
    ) -> Path | None:
        """Carry out `plan` up to `attempt`, which dumps; return the dump's folder."""
        stage = self._ground.stage
        into = folder / f"attempt-{attempt}-{order['step']}"
        into.mkdir()
        view = stage.new_view(f"dump-{into.name}")
        done: list[Attempt] = []
        try:
            for number in range(1, attempt + 1):
                last = number == attempt
                point = None if last else plan.points[number - 1]
                orders = {"dump": {**order, "folder": str(into)}} if last else None
                done.append(
                    run_attempt(stage, view, point, earlier=done, orders=orders)
                )
        finally:
            view.close()
        return into if any(into.iterdir()) else None
