"""Which tensor differs, in how many elements and how far: one replay of both sides.

No tensor is stored while trials run. For the first divergence of each kind, the baseline
and the trial are carried out once more with the order to dump the tensors of that step.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from spotchaos.campaign.baseline import BaselineContext
from spotchaos.config.plan import Plan
from spotchaos.errors import SpotchaosError
from spotchaos.model import Attempt, Divergence, Judgement, Resume, Trial
from spotchaos.oracles.divergence import with_measured
from spotchaos.oracles.dumps import compare_dumps, distance
from spotchaos.trace.format import STATE_COMPONENTS
from spotchaos.trial.trial import run_attempt

# Components whose tensors can be dumped, in the order in which a reader wants them.
DUMPED = ("weights", "buffers", "optimizer", "batch", "gradients", "loss", "averages")
# Steps after the first difference at which the weights are compared as well, as long as
# they have no more than so many bytes.
LATER = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
MOST_BYTES = 32 << 20

Curve = tuple[tuple[int, int, int | None], ...]


class Pinpointer:
    """Finds the tensor of a divergence, once for each kind of divergence.

    Args:
        baseline_context: the campaign's groundwork.
        most: replays in one campaign; later divergences are left without a tensor.
    """

    def __init__(self, baseline_context: BaselineContext, *, most: int = 2) -> None:
        self._baseline_context = baseline_context
        self._left = most
        self._seen: set[tuple[str, ...]] = set()
        self._lock = threading.Lock()
        self._views = 0

    def locate(self, trial: Trial, plan: Plan, judgement: Judgement) -> Judgement:
        """Return the judgement with the tensor of its first divergence filled in."""
        if len(trial.attempts) > len(plan.points) + 1:
            return judgement  # some were started by a launcher, or by a scheduler
        for resume in judgement.resumes:
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
            (tensor, elements, ulp), curve = found
            marked = replace(
                divergence, tensor=tensor, elements=elements, max_ulp=ulp, curve=curve
            )
            return with_measured(judgement, marked, attempt=resume.attempt)
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
    ) -> tuple[tuple[str, int, int | None], Curve] | None:
        """Run both sides to the end, and compare what they dumped."""
        assert resume.joined is not None
        # What is told of the line, less this, is counted within the attempt.
        joined = resume.joined - resume.discarded_steps
        step, rank = divergence.step, divergence.rank
        horizon = self._baseline_context.site_index.horizon
        curve = sorted({min(step + n, horizon) for n in LATER})
        with (
            self._dumped(Plan(()), 1, step, wanted, curve, rank) as expected,
            self._dumped(
                plan,
                resume.attempt,
                step - joined,
                wanted,
                [later - joined for later in curve],
                rank,
            ) as actual,
        ):
            for component in wanted:
                # What a step starts from is the state that the one before it left.
                at = step - 1 if component in STATE_COMPONENTS else step
                ours = expected.get((component, at))
                theirs = actual.get((component, at - joined))
                if ours is None or theirs is None:
                    continue
                found = compare_dumps(ours, theirs)
                if found is not None:
                    pairs = (
                        (
                            later,
                            expected.get(("weights", later)),
                            actual.get(("weights", later - joined)),
                        )
                        for later in curve
                    )
                    return found, tuple(
                        (later, *distance(a, b)) for later, a, b in pairs if a and b
                    )
        return None

    @contextmanager
    def _dumped(
        self,
        plan: Plan,
        attempt: int,
        step: int,
        wanted: list[str],
        curve: list[int],
        rank: int,
    ) -> Iterator[dict[tuple[str, int], Path]]:
        """Carry out `plan` up to `attempt`, which dumps.

        Yields:
            (component, step of this attempt) -> index file.
        """
        orders = {
            "step": step,
            "state_of": step - 1,
            "components": wanted,
            "weights_at": curve,
            "most_bytes": MOST_BYTES,
        }
        trial_context = self._baseline_context.trial_context
        with self._lock:
            self._views += 1
            view = trial_context.new_view(f"dump-{self._views}")
        done: list[Attempt] = []
        try:
            for number in range(1, attempt + 1):
                last = number == attempt
                point = None if last else plan.points[number - 1]
                dump = {"dump": orders} if last else None
                done.append(
                    run_attempt(trial_context, view, point, earlier=done, orders=dump)
                )
            trace = done[-1].trace.ranks.get(rank)
            marks = trace.dumps if trace is not None else ()
            yield {
                (str(m["component"]), int(str(m["step"]))): Path(str(m["file"]))
                for m in marks
            }
        finally:
            view.close()
