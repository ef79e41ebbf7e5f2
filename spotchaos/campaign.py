"""A campaign: baselines, the control, trials, their verdict; announced as events.

It decides what is run and in which order. What a run means is decided by the oracles,
and what a reader sees by the listeners.
"""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from spotchaos import __version__
from spotchaos.baseline import BaselineFailed, Groundwork, Tell, lay
from spotchaos.clock import Clock, SystemClock
from spotchaos.errors import HarnessError, SpotchaosError
from spotchaos.events import (
    AttemptEnded,
    Event,
    Listener,
    Outcome,
    PhaseStarted,
    Started,
    TrialDone,
)
from spotchaos.findings import PROMISES, UNKNOWN
from spotchaos.launch.mechanisms import find_mechanisms
from spotchaos.launch.program import Program, check_program
from spotchaos.launch.workspace import Workspace
from spotchaos.model import Finding, Judgement, Note, Trial, Verdict, worst
from spotchaos.oracles import judge
from spotchaos.plan import (
    Plan,
    draw,
    edges,
    every_file_op,
    every_step,
)
from spotchaos.settings import DEFAULT_KILL_AT, Settings
from spotchaos.tensors import Pinpointer
from spotchaos.trial import check_asked, plan_of_faults, run_trial

# Lays the groundwork of a campaign, or has laid it before; its owner cleans up after it.
Layer = Callable[[Settings, Program, Tell], Groundwork]


def run(
    settings: Settings,
    listener: Listener,
    *,
    clock: Clock | None = None,
    layer: Layer | None = None,
) -> Outcome:
    """Carry out a campaign and return what it found.

    Args:
        settings: the program, the plans and the promise.
        listener: is told each event, in order, from one thread at a time.
        clock: for durations and the budget.
        layer: lays the groundwork in a workspace of its own, which outlives the
            campaign; None: it is laid, used and removed here.

    Raises:
        UsageError: the command cannot be started at all, or a plan cannot be carried
            out on this program (it lies beyond its horizon).
    """
    return Campaign(settings, listener, clock or SystemClock(), layer).run()


class Campaign:
    """Lays the groundwork, carries out plans, and says what came of it.

    `spotchaos.exploration` derives from it: the same groundwork, other trials.
    """

    def __init__(
        self,
        settings: Settings,
        listener: Listener,
        clock: Clock,
        layer: Layer | None = None,
    ) -> None:
        self._layer = layer
        self._settings = settings
        self._listener = listener
        self._lock = threading.Lock()
        self._clock = clock
        self._begun_s = clock.monotonic()
        self.done: list[tuple[Trial, Judgement]] = []
        self._plans: list[tuple[int, Plan]] = []  # with the numbers of their trials
        self._groundwork: Groundwork | None = None
        self._mechanisms = find_mechanisms()

    def tell(self, event: Event) -> None:
        with self._lock:
            self._listener(event)

    def run(self) -> Outcome:
        settings = self._settings
        check_asked(settings)
        program = Program.from_settings(settings)
        check_program(program)
        self.tell(Started(settings, tuple(self._mechanisms.unprotected())))
        try:
            with self._laid(settings, program) as ground:
                self._groundwork = ground
                self.work(ground)
        except BaselineFailed as failed:
            return self._end(failed.finding, hint=failed.finding.hint)
        except KeyboardInterrupt:
            return self._end(None, interrupted=True)
        except HarnessError as error:
            return self._end(None, trouble=error.message, hint=error.hint)
        return self._end(None)

    @contextmanager
    def _laid(self, settings: Settings, program: Program) -> Iterator[Groundwork]:
        if self._layer is not None:
            ground = self._layer(settings, program, self.tell)
            # It may have been laid for another campaign, with other plans.
            stage = replace(
                ground.stage,
                settings=settings,
                on_attempt=lambda phase, attempt: self.tell(
                    AttemptEnded(phase, attempt)
                ),
            )
            yield replace(ground, stage=stage)
            return
        with Workspace(
            settings.folder, mechanisms=self._mechanisms, keep=settings.keep
        ) as workspace:
            ground = lay(settings, program, workspace, self.tell, clock=self._clock)
            try:
                yield ground
            finally:
                if ground.stage.zygote is not None:
                    ground.stage.zygote.close()

    def work(self, ground: Groundwork) -> None:
        """Carry out what the settings ask for."""
        self._plans = self._own_part(self._choose(ground))
        self._run_trials(ground)

    def verdicts(self) -> list[Verdict]:
        """Return what decides the campaign's verdict."""
        return [judgement.verdict for _, judgement in self.done]

    def extra(self) -> dict[str, Any]:
        """Return what the report holds besides trials."""
        return {}

    def late_notes(self) -> list[Note]:
        """Return notes on the campaign as a whole."""
        return []

    def _choose(self, ground: Groundwork) -> list[Plan]:
        settings, land = self._settings, ground.landscape
        if settings.fault and settings.kill_at == DEFAULT_KILL_AT:
            return [plan_of_faults(ground.stage, land)]
        plans: list[Plan] = []
        for text in settings.kill_at:
            if text == "random":
                plans += draw(settings.seed, trials=settings.trials, land=land)
            elif text == "edges":
                plans += edges(land)
            elif text == "every-step":
                plans += every_step(land)
            elif text == "every-file-op":
                plans += every_file_op(land)
            else:
                plans.append(Plan.parse(text).at(land.horizon))
        return plans

    def _own_part(self, plans: list[Plan]) -> list[tuple[int, Plan]]:
        """Number the plans, and keep those of this shard.

        Numbers are those of the whole campaign, so that the reports of all shards can
        be put together.
        """
        numbered = list(enumerate(plans, 1))
        if self._settings.shard is None:
            return numbered
        part, of = self._settings.shard
        own = numbered[part - 1 :: of]
        if not own:
            raise HarnessError(
                f"part {part}/{of} has none of the {len(plans)} plans",
                hint="give fewer parts, or more --trials",
            )
        return own

    def _run_trials(self, ground: Groundwork) -> None:
        """Carry out all plans, `jobs` at a time, and judge each as it comes in."""
        pinpointer = Pinpointer(ground)
        queue = list(self._plans)
        with ThreadPoolExecutor(max_workers=self._settings.jobs) as pool:
            running: set[Future[tuple[Trial, Judgement]]] = set()
            try:
                while queue or running:
                    while queue and len(running) < self._settings.jobs:
                        if self.is_out_of_budget():
                            queue = []
                            break
                        number, plan = queue.pop(0)
                        task = self._trial_task(ground, pinpointer, number, plan)
                        running.add(pool.submit(task))
                    finished, running = wait(running, return_when=FIRST_COMPLETED)
                    for future in finished:
                        self.done.append(future.result())
                        self.tell(TrialDone(*self.done[-1]))
            except BaseException:
                for future in running:
                    future.cancel()
                ground.stage.workspace.end_all()
                raise

    def _trial_task(
        self, ground: Groundwork, pinpointer: Pinpointer, number: int, plan: Plan
    ) -> Callable[[], tuple[Trial, Judgement]]:
        def task() -> tuple[Trial, Judgement]:
            self.tell(PhaseStarted(f"trial {number}", str(plan)))
            trial = run_trial(ground.stage, plan, number=number)
            judgement = judge_trial(self._settings, ground, trial, plan)
            if self._settings.fault or self._settings.lose == "machine":
                return trial, judgement  # a replay for tensors would be another trial
            return trial, pinpointer.locate(trial, plan, judgement)

        return task

    def is_out_of_budget(self) -> bool:
        budget_s = self._settings.budget_s
        return budget_s is not None and (
            self._clock.monotonic() - self._begun_s >= budget_s
        )

    def _end(
        self,
        finding: Finding | None,
        *,
        trouble: str | None = None,
        hint: str | None = None,
        interrupted: bool = False,
    ) -> Outcome:
        done = tuple(sorted(self.done, key=lambda pair: pair[0].number))
        findings = _gather((t, f.name) for t, j in done for f in j.findings)
        notes = _gather((t, n.name) for t, j in done for n in j.notes)
        ground = self._groundwork
        if ground is not None:
            notes = [(n.name, ()) for n in ground.notes] + notes
        if finding is not None:
            findings = [(finding.name, ()), *findings]
            trouble = trouble or finding.message
        notes += [(n.name, ()) for n in self.late_notes()]
        verdicts = self.verdicts()
        if finding is not None or trouble is not None or interrupted:
            verdicts.append(Verdict.UNKNOWN)
        outcome = Outcome(
            settings=self._settings,
            verdict=worst(verdicts),
            holds_up_to=_weakest([j.holds_up_to for _, j in done]),
            baseline=ground.baseline if ground is not None else None,
            trials=done,
            findings=tuple(findings),
            notes=tuple(dict(notes).items()),
            coverage=self.coverage(),
            environment=self._environment(ground),
            trouble=trouble,
            hint=hint,
            unprotected=tuple(self._mechanisms.unprotected()),
            wall_s=self._clock.monotonic() - self._begun_s,
            cpu_s=sum(a.cpu_s for t, _ in done for a in t.attempts)
            + (ground.cpu_s if ground is not None else 0.0),
            interrupted=interrupted,
            extra=self.extra(),
        )
        self.tell(outcome)
        return outcome

    def coverage(self) -> dict[str, object]:
        ground = self._groundwork
        missed = sum(
            any(f.name == "not-reached" for f in j.findings) for _, j in self.done
        )
        dropped = sum(len(trial.dropped) for trial, _ in self.done)
        points = sum(len(trial.plan.split(",")) for trial, _ in self.done)
        land = ground.landscape if ground is not None else None
        return {
            "kill_points": points,
            "of": land.horizon if land is not None else 0,
            "plans": len(self._plans),
            "plans_run": len(self.done),
            "crash_states": None,
            "skipped_as_equal": 0,
            "not_reached": missed + dropped,
            "inside_save": bool(land is not None and land.file_ops is not None),
        }

    def _environment(self, ground: Groundwork | None) -> dict[str, object]:
        rank = ground.first_rank if ground is not None else None
        return {
            "spotchaos": __version__,
            "python": (rank and rank.python) or platform.python_version(),
            "torch": rank.torch if rank is not None else None,
            "algorithm": rank.algorithm if rank is not None else None,
            "threads": self._settings.threads,
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "packages_sha": ground.packages_sha if ground is not None else None,
            "mechanisms": self._mechanisms.as_report(),
        }


def judge_trial(
    settings: Settings, ground: Groundwork, trial: Trial, plan: Plan
) -> Judgement:
    """Judge one trial; what the harness could not do makes it `unknown`."""
    for attempt in trial.attempts:
        if attempt.trouble is not None:
            return Judgement(
                Verdict.UNKNOWN,
                (Finding("not-reached", attempt.trouble, attempt=attempt.number),),
                (),
                (),
                None,
            )
    judgement = judge(
        trial,
        ground.baseline,
        promise=settings.promise,
        max_lost_steps=settings.max_lost_steps,
        accept_refusal=settings.accept_refusal,
        exit_codes=settings.exit_code,
        resume_after_finish=plan.after_finish,
    )
    if judgement.verdict is Verdict.VIOLATED and not any(
        settings.counts(f.name) for f in judgement.findings if f.name not in UNKNOWN
    ):
        return replace(judgement, verdict=Verdict.HELD)
    return judgement


def _gather(pairs: Iterable[tuple[Trial, str]]) -> list[tuple[str, tuple[int, ...]]]:
    """Group names with the numbers of the trials that carry them, in order."""
    found: dict[str, list[int]] = {}
    for trial, name in pairs:
        numbers = found.setdefault(name, [])
        if trial.number not in numbers:
            numbers.append(trial.number)
    return [(name, tuple(numbers)) for name, numbers in found.items()]


def _weakest(promises: Sequence[str | None]) -> str | None:
    """Return the strongest promise that every trial keeps, or None."""
    if not promises or None in promises:
        return None
    ranks = [PROMISES.index(p) for p in promises if p is not None]
    return PROMISES[min(ranks)]


__all__ = ["SpotchaosError", "judge_trial", "run"]
