"""A campaign: baselines, the control, trials, their verdict; announced as events.

It decides what is run and in which order. What a run means is decided by the oracles,
and what a reader sees by the listeners.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from spotchaos.campaign import baseline_cache
from spotchaos.campaign.baseline import (
    BaselineContext,
    BaselineFailed,
    Emit,
    prepare_baseline,
)
from spotchaos.campaign.confirming import Confirmer
from spotchaos.campaign.ending import ENDING
from spotchaos.campaign.grace_search import Found, given_in, search, used_in
from spotchaos.campaign.judgement import doubted, judge_trial, names_of
from spotchaos.campaign.measuring import campaign_timing
from spotchaos.campaign.scheduling import (
    jobs_for,
    most_telling_first,
    own_part,
    plans_of,
)
from spotchaos.campaign.skipping import Skipper, prepare
from spotchaos.campaign.tensor_diff import Pinpointer
from spotchaos.campaign.totals import environment_of, gather, weakest_of
from spotchaos.campaign.zygote_setup import fresh_by_need, unlike
from spotchaos.clock import Clock, SystemClock
from spotchaos.config.plan import Plan
from spotchaos.config.settings import Settings
from spotchaos.errors import HarnessError
from spotchaos.events import (
    AttemptEnded,
    Event,
    Listener,
    Outcome,
    PhaseStarted,
    Started,
    TrialDone,
)
from spotchaos.launch.isolation.mechanisms import Mechanisms, find_mechanisms
from spotchaos.launch.isolation.program import Program, check_program
from spotchaos.launch.isolation.remedies import demand_isolation
from spotchaos.launch.isolation.shortages import as_shortage
from spotchaos.launch.isolation.workspace import Workspace
from spotchaos.launch.zygote.zygote import ZygoteGoneError
from spotchaos.model import Baseline, Finding, Judgement, Note, Trial, Verdict, worst
from spotchaos.oracles import may_be_torn
from spotchaos.trace.timing import Timing
from spotchaos.trial.context import check_asked
from spotchaos.trial.controller import DEFAULT_GRACE_S
from spotchaos.trial.trial import is_requeued, run_attempt, run_trial

# Forces every attempt to be a fresh process, as `cold`; for tests and for doubts.
PATH_VARIABLE = "SPOTCHAOS_PATH"

REFUTED = "fresh processes did not show what forked ones had"

# Rank -> step -> tensor -> its digest.
AllTensors = Mapping[int, Mapping[int, Mapping[str, str]]]

# Lays the groundwork of a campaign, or has laid it before; its owner cleans up after it.
Layer = Callable[[Settings, Program, Emit], BaselineContext]


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

    `spotchaos.explore.exploration` derives from it: the same groundwork, other trials.
    """

    def __init__(
        self,
        settings: Settings,
        listener: Listener,
        clock: Clock,
        layer: Layer | None = None,
    ) -> None:
        self._layer = layer
        if os.environ.get(PATH_VARIABLE) == "cold":
            settings = replace(settings, warm=False)
        self._settings = settings
        self._listener = listener
        self._lock = threading.Lock()
        self._clock = clock
        self._begun_s = clock.monotonic()
        self.done: list[tuple[Trial, Judgement]] = []
        self._plans: list[tuple[int, Plan]] = []  # with the numbers of their trials
        self._baseline_context: BaselineContext | None = None
        self._mechanisms: Mechanisms | None = None
        self._jobs = settings.jobs or 1
        self._skipper: Skipper | None = None
        self._skips = True
        self._timing: Timing | None = None
        self._zygote_lost: str | None = None
        self._not_run: list[Plan] = []
        self._found_grace: Found | None = None
        self._tensors: AllTensors | None = None
        self._tensors_lock = threading.Lock()

    def emit(self, event: Event) -> None:
        with self._lock:
            self._listener(event)

    def run(self) -> Outcome:
        settings = self._settings
        check_asked(settings)
        program = Program.from_settings(settings)
        check_program(program)
        try:
            self._mechanisms = find_mechanisms()
            if settings.require_isolation:
                demand_isolation(self._mechanisms, allow_network=settings.allow_network)
            self.emit(Started(settings, tuple(self._mechanisms.unprotected())))
            with self._prepared(settings, program) as baseline_context:
                self._baseline_context = baseline_context
                self._jobs = self._settings.jobs or jobs_for(baseline_context)
                if baseline_context.trial_context.store_wanted is not None:
                    self._jobs = 1  # one object store runs in a process at a time
                # What a run leaves hangs on more than on what its resume asks for.
                no_skip = (
                    self._settings.no_skip
                    or baseline_context.trial_context.outputs is not None
                )
                self._settings = replace(
                    self._settings, jobs=self._jobs, no_skip=no_skip
                )
                self.work(baseline_context)
                self._timing = campaign_timing(baseline_context, self.done)
        except BaselineFailed as failed:
            return self._end(
                failed.finding, hint=failed.finding.hint, baseline=failed.baseline
            )
        except KeyboardInterrupt:
            return self._end(None, interrupted=True)
        except HarnessError as error:
            return self._end(None, trouble=error.message, hint=error.hint)
        except OSError as error:
            short = as_shortage(error)
            return self._end(None, trouble=short.message, hint=short.hint)
        return self._end(None)

    @contextmanager
    def _prepared(
        self, settings: Settings, program: Program
    ) -> Iterator[BaselineContext]:
        if self._layer is not None:
            baseline_context = self._layer(settings, program, self.emit)
            baseline_context.trial_context.workspace.reopen()
            # It may have been laid for another campaign, with other plans.
            trial_context = replace(
                baseline_context.trial_context,
                settings=settings,
                on_attempt=lambda phase, attempt: self.emit(
                    AttemptEnded(phase, attempt)
                ),
            )
            yield replace(baseline_context, trial_context=trial_context)
            return
        with Workspace(
            settings.folder,
            mechanisms=self._mechanisms,
            keep=settings.keep,
            keep_env=settings.keep_env,
        ) as workspace:
            baseline_context = self._run_baselines(settings, program, workspace)
            try:
                yield baseline_context
            finally:
                if baseline_context.trial_context.zygote is not None:
                    baseline_context.trial_context.zygote.close()

    def _run_baselines(
        self, settings: Settings, program: Program, workspace: Workspace
    ) -> BaselineContext:
        keeps = baseline_cache.may_keep(settings)
        emit = self._emit_in_time
        try:
            if keeps:
                known = baseline_cache.recall(
                    settings, program, workspace, emit, clock=self._clock
                )
                if known is not None:
                    return known
            prepared = prepare_baseline(
                settings, program, workspace, emit, clock=self._clock
            )
            if keeps and prepared.trial_context.outputs is None:
                baseline_cache.keep(settings, prepared)
            return prepared
        except ZygoteGoneError as error:
            self._zygote_lost = error.message
        cold = replace(settings, warm=False)
        return prepare_baseline(cold, program, workspace, emit, clock=self._clock)

    def _emit_in_time(self, event: Event) -> None:
        """Pass on an event of the groundwork, but begin no run of it after the budget.

        Raises:
            HarnessError: the budget has ended.
        """
        if isinstance(event, PhaseStarted) and self._budget_has_ended():
            raise HarnessError(
                f"--budget ended before the {event.name}, and no trial was carried out",
                hint="give more --budget, or make the run shorter",
            )
        self.emit(event)

    def work(self, baseline_context: BaselineContext) -> None:
        """Carry out what the settings ask for."""
        self._plans = own_part(
            self._settings, plans_of(baseline_context, self._settings)
        )
        if self._settings.budget_s is not None:
            self._plans = most_telling_first(self._plans, baseline_context.site_index)
        self._skipper, view = prepare(
            baseline_context, self._settings, [plan for _, plan in self._plans]
        )
        try:
            self._run_trials(baseline_context)
        finally:
            if view is not None:
                view.close()
        if self._settings.find_grace:
            self._found_grace = self._find_grace(baseline_context)

    def _find_grace(self, baseline_context: BaselineContext) -> Found:
        """Carry the plans out in ever other windows, in real seconds."""
        whole = replace(self._settings, find_grace=False, time_scale=1.0)

        def holds(window_s: float) -> bool:
            settings = replace(whole, grace_s=window_s)
            trial_context = replace(baseline_context.trial_context, settings=settings)
            self.emit(PhaseStarted(f"grace of {window_s:.3g} s"))
            for number, plan in self._plans:
                name = f"grace {window_s:.4g} trial {number}"
                trial = run_trial(trial_context, plan, number=number, name=name)
                said = judge_trial(settings, baseline_context, trial, plan)
                if said.verdict is not Verdict.HELD:
                    return False
            return True

        return search(
            holds,
            given_s=given_in(self.done, self._settings.grace_s) or DEFAULT_GRACE_S,
            holds_in_whole=bool(self.done)
            and all(j.verdict is Verdict.HELD for _, j in self.done),
            used_s=used_in(self.done),
            may_go_on=lambda: not self.is_out_of_budget(),
        )

    def verdicts(self) -> list[Verdict]:
        """Return what decides the campaign's verdict."""
        return [judgement.verdict for _, judgement in self.done]

    def extra(self) -> dict[str, Any]:
        """Return what the report holds besides trials."""
        found = self._found_grace
        return {} if found is None else {"grace": found.as_report()}

    def late_notes(self) -> list[Note]:
        """Return notes on the campaign as a whole."""
        notes = []
        if self._zygote_lost is not None:
            said = f"attempts were fresh from then on: {self._zygote_lost}"
            notes.append(Note("cold-path", said))
        if self._found_grace is not None:
            notes.append(self._found_grace.note())
        return notes

    def _run_trials(self, baseline_context: BaselineContext) -> None:
        """Carry out all plans, `jobs` at a time, and judge each as it comes in."""
        pinpointer = Pinpointer(baseline_context)
        confirmer = Confirmer(partial(self._run_fresh, baseline_context))
        queue = list(self._plans)
        with ThreadPoolExecutor(max_workers=self._jobs) as pool:
            running: set[Future[tuple[Trial, Judgement]]] = set()
            try:
                while queue or running:
                    while queue and len(running) < self._jobs:
                        if self._is_too_late_for_a_trial():
                            self._not_run = [plan for _, plan in queue]
                            queue = []
                            break
                        number, plan = queue.pop(0)
                        task = self._trial_task(
                            baseline_context, pinpointer, confirmer, number, plan
                        )
                        running.add(pool.submit(task))
                    finished, running = wait(running, return_when=FIRST_COMPLETED)
                    for future in finished:
                        self.done.append(future.result())
                        self.emit(TrialDone(*self.done[-1]))
            except BaseException:
                for future in running:
                    future.cancel()
                baseline_context.trial_context.workspace.end_all()
                raise
        self.done = confirmer.doubt_refuted(self.done)

    def _trial_task(
        self,
        baseline_context: BaselineContext,
        pinpointer: Pinpointer,
        confirmer: Confirmer,
        number: int,
        plan: Plan,
    ) -> Callable[[], tuple[Trial, Judgement]]:
        def task() -> tuple[Trial, Judgement]:
            self.emit(PhaseStarted(f"trial {number}", str(plan)))
            trial, judgement = self._try(baseline_context, plan, number)
            zygote = baseline_context.trial_context.zygote
            trial, judgement = confirmer.decide(zygote, trial, plan, judgement)
            judgement = confirmer.confirm(zygote, trial, plan, judgement)
            if confirmer.has_refuted:
                self._skips = False
                self._zygote_lost = self._zygote_lost or REFUTED
            note = fresh_by_need(baseline_context.trial_context, trial)
            if note is not None:
                judgement = replace(judgement, notes=(*judgement.notes, note))
            is_more_than_a_kill = (
                self._settings.fault
                or self._settings.lose == "machine"
                or baseline_context.trial_context.store_wanted is not None
                or baseline_context.places is not None
            )
            if is_more_than_a_kill:
                return trial, judgement  # a replay for tensors would be another trial
            return trial, pinpointer.locate(trial, plan, judgement)

        return task

    def _try(
        self, baseline_context: BaselineContext, plan: Plan, number: int
    ) -> tuple[Trial, Judgement]:
        """Carry out and judge one plan, by what is known already where that is sound."""
        skipper = self._skipper if self._skips else None
        moment = None if skipper is None else skipper.moment(plan)
        if skipper is None or moment is None:
            trial = self._run_plan(baseline_context, plan, number)
            return trial, self._judged(baseline_context, trial, plan)
        is_check = skipper.wants_check()
        try:
            trial = skipper.carry_out(plan, moment, number=number)
        except ZygoteGoneError:
            trial = self._run_plan(baseline_context, plan, number)
        judgement = self._judged(baseline_context, trial, plan)
        if self._settings.requeue and is_requeued(trial.attempts, plan=plan):
            # What comes of further starts is not recorded.
            real = self._run_plan(baseline_context, plan, number)
            return real, self._judged(baseline_context, real, plan)
        if not is_check:
            return trial, judgement
        real = self._run_plan(baseline_context, plan, number)
        said = self._judged(baseline_context, real, plan)
        if names_of(said) == names_of(judgement):
            return real, said
        self._skips = False
        return real, doubted(
            said, f"built from a recorded run it showed {sorted(names_of(judgement))}"
        )

    def _judged(
        self, baseline_context: BaselineContext, trial: Trial, plan: Plan
    ) -> Judgement:
        """Judge a trial; where whole components are of no step, tensor by tensor."""
        said = judge_trial(self._settings, baseline_context, trial, plan)
        if not may_be_torn(said):
            return said
        tensors = self._tensors_of(baseline_context)
        baseline = replace(baseline_context.baseline, tensors=tensors)
        return judge_trial(
            self._settings, replace(baseline_context, baseline=baseline), trial, plan
        )

    def _tensors_of(self, baseline_context: BaselineContext) -> AllTensors:
        """Run without interruption once more, for a digest of each tensor at each step."""
        with self._tensors_lock:
            if self._tensors is None:
                self._tensors = {}
                self.emit(PhaseStarted("baseline, tensor by tensor"))
                view = baseline_context.trial_context.new_view("tensors")
                try:
                    attempt = run_attempt(
                        baseline_context.trial_context,
                        view,
                        None,
                        orders={"tensors": "all"},
                    )
                finally:
                    view.close()
                if unlike(baseline_context.baseline.first, attempt) is None:
                    ranks = attempt.trace.ranks.items()
                    self._tensors = {rank: trace.tensors for rank, trace in ranks}
            return self._tensors

    def _run_plan(
        self, baseline_context: BaselineContext, plan: Plan, number: int
    ) -> Trial:
        """Carry out one plan, in fresh processes if the zygote is gone."""
        trial_context = baseline_context.trial_context
        if self._zygote_lost is None:
            try:
                return run_trial(trial_context, plan, number=number)
            except ZygoteGoneError as error:
                self._zygote_lost = error.message
        return run_trial(replace(trial_context, zygote=None), plan, number=number)

    def _run_fresh(
        self, baseline_context: BaselineContext, trial: Trial, plan: Plan
    ) -> tuple[Trial, Judgement]:
        """Carry out the plan of a trial again, in fresh processes, and judge that."""
        trial_context = replace(baseline_context.trial_context, zygote=None)
        name = f"trial {trial.number} fresh"
        self.emit(PhaseStarted(name, str(plan)))
        fresh = run_trial(trial_context, plan, number=trial.number, name=name)
        return fresh, self._judged(baseline_context, fresh, plan)

    def _is_too_late_for_a_trial(self) -> bool:
        """Tell whether a trial as long as the longest so far would pass the budget."""
        budget_s = self._settings.budget_s
        if budget_s is None:
            return False
        longest_s = max((trial.wall_s for trial, _ in self.done), default=0.0)
        return self._clock.monotonic() - self._begun_s + longest_s >= budget_s

    def is_out_of_budget(self) -> bool:
        return self._budget_has_ended()

    def _budget_has_ended(self) -> bool:
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
        baseline: Baseline | None = None,
    ) -> Outcome:
        done = tuple(sorted(self.done, key=lambda pair: pair[0].number))
        findings = gather((t, f.name) for t, j in done for f in j.findings)
        notes = gather((t, n.name) for t, j in done for n in j.notes)
        baseline_context = self._baseline_context
        mechanisms = self._mechanisms or Mechanisms()
        if baseline_context is not None:
            notes = [(n.name, ()) for n in baseline_context.notes] + notes
            baseline = _doubted(baseline_context.baseline, done)
        if finding is not None:
            findings = [(finding.name, ()), *findings]
            trouble = trouble or finding.message
        late = self.late_notes()
        notes = [(n.name, ()) for n in late] + notes
        verdicts = self.verdicts()
        if finding is not None or trouble is not None or interrupted:
            verdicts.append(Verdict.UNKNOWN)
        outcome = Outcome(
            settings=self._settings,
            verdict=worst(verdicts),
            holds_up_to=weakest_of([j.holds_up_to for _, j in done]),
            baseline=baseline,
            trials=done,
            findings=tuple(findings),
            notes=tuple(dict(notes).items()),
            coverage=self.coverage(),
            environment=environment_of(baseline_context, self._settings, mechanisms),
            trouble=trouble,
            hint=hint,
            unprotected=tuple(mechanisms.unprotected()) if self._mechanisms else (),
            wall_s=self._clock.monotonic() - self._begun_s,
            cpu_s=sum(a.cpu_s for t, _ in done for a in t.attempts)
            + (baseline_context.cpu_s if baseline_context is not None else 0.0),
            interrupted=interrupted,
            extra=self.extra(),
            late_notes=tuple(late),
            timing=self._timing,
        )
        with ENDING.completed():
            self.emit(outcome)
        return outcome

    def coverage(self) -> dict[str, object]:
        baseline_context = self._baseline_context
        missed = sum(
            any(f.name == "not-reached" for f in j.findings) for _, j in self.done
        )
        dropped = sum(len(trial.dropped) for trial, _ in self.done)
        points = sum(len(trial.plan.split(",")) for trial, _ in self.done)
        site_index = (
            baseline_context.site_index if baseline_context is not None else None
        )
        return {
            "kill_points": points,
            "of": site_index.horizon if site_index is not None else 0,
            "plans": len(self._plans),
            "plans_run": len(self.done),
            "crash_states": None,
            "skipped_as_equal": 0 if self._skipper is None else self._skipper.skipped,
            "spot_checked": 0 if self._skipper is None else self._skipper.checked,
            "not_run": [str(plan) for plan in self._not_run],
            "not_reached": missed + dropped,
            "gaps": 0 if site_index is None else len(site_index.moments.gaps),
            "gaps_not_struck": []
            if site_index is None
            else site_index.moments.not_struck(
                Plan.parse(t.plan) for t, _ in self.done
            ),
            "inside_save": bool(
                site_index is not None and site_index.file_ops is not None
            ),
        }


def _doubted(baseline: Baseline, done: Sequence[tuple[Trial, Judgement]]) -> Baseline:
    """Return the baseline, not repeatable if a trial left it before its interruption."""
    luck = (
        f
        for _, said in done
        for f in said.findings
        if f.name == "not-repeatable" and f.step is not None
    )
    found = next(luck, None)
    if found is None:
        return baseline
    return replace(baseline, repeatable=False, differs_at=found.message)
