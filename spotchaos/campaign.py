"""A campaign: baselines, the control, trials, their verdict; announced as events.

It decides what is run and in which order. What a run means is decided by the oracles,
and what a reader sees by the listeners.
"""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from spotchaos import __version__, cache
from spotchaos.baseline import BaselineFailed, Groundwork, Tell, lay, unlike
from spotchaos.clock import Clock, SystemClock
from spotchaos.course import DEFAULT_GRACE_S
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
from spotchaos.grace_search import Found, given_in, search, used_in
from spotchaos.launch.mechanisms import find_mechanisms
from spotchaos.launch.program import Program, check_program
from spotchaos.launch.workspace import Workspace
from spotchaos.launch.zygote import ZygoteGoneError
from spotchaos.model import Finding, Judgement, Note, Trial, Verdict, worst
from spotchaos.oracles import judge, may_be_torn
from spotchaos.plan import (
    Landscape,
    Plan,
    draw,
    edges,
    every_file_op,
    every_step,
)
from spotchaos.settings import DEFAULT_KILL_AT, Settings
from spotchaos.skipping import Skipper, prepare
from spotchaos.tensors import Pinpointer
from spotchaos.trial import (
    check_asked,
    is_requeued,
    plan_of_faults,
    run_attempt,
    run_trial,
)

# Forces every attempt to be a fresh process, as `cold`; for tests and for doubts.
PATH_VARIABLE = "SPOTCHAOS_PATH"
# What one attempt of a program on torch holds in memory by itself, at the least.
LEAST_MEMORY_BYTES = 512 << 20

# Rank -> step -> tensor -> its digest.
AllTensors = Mapping[int, Mapping[int, Mapping[str, str]]]

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
        if os.environ.get(PATH_VARIABLE) == "cold":
            settings = replace(settings, warm=False)
        self._settings = settings
        self._listener = listener
        self._lock = threading.Lock()
        self._clock = clock
        self._begun_s = clock.monotonic()
        self.done: list[tuple[Trial, Judgement]] = []
        self._plans: list[tuple[int, Plan]] = []  # with the numbers of their trials
        self._groundwork: Groundwork | None = None
        self._mechanisms = find_mechanisms()
        self._jobs = settings.jobs or 1
        self._skipper: Skipper | None = None
        self._shown_fresh: set[str] = set()
        self._refuted: set[str] = set()  # by fresh processes
        self._skips = True
        self._zygote_lost: str | None = None
        self._not_run: list[Plan] = []
        self._found_grace: Found | None = None
        self._tensors: AllTensors | None = None
        self._tensors_lock = threading.Lock()

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
                self._jobs = self._settings.jobs or jobs_for(ground)
                if ground.stage.store_wanted is not None:
                    self._jobs = 1  # one object store runs in a process at a time
                self._settings = replace(self._settings, jobs=self._jobs)
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
            ground = self._lay_ground(settings, program, workspace)
            try:
                yield ground
            finally:
                if ground.stage.zygote is not None:
                    ground.stage.zygote.close()

    def _lay_ground(
        self, settings: Settings, program: Program, workspace: Workspace
    ) -> Groundwork:
        keeps = cache.may_keep(settings)
        try:
            if keeps:
                known = cache.recall(
                    settings, program, workspace, self.tell, clock=self._clock
                )
                if known is not None:
                    return known
            laid = lay(settings, program, workspace, self.tell, clock=self._clock)
            if keeps:
                cache.keep(settings, laid)
            return laid
        except ZygoteGoneError as error:
            self._zygote_lost = error.message
        cold = replace(settings, warm=False)
        return lay(cold, program, workspace, self.tell, clock=self._clock)

    def work(self, ground: Groundwork) -> None:
        """Carry out what the settings ask for."""
        self._plans = self._own_part(self._choose(ground))
        if self._settings.budget_s is not None:
            self._plans = most_telling_first(self._plans, ground.landscape)
        self._skipper, view = prepare(
            ground, self._settings, [plan for _, plan in self._plans]
        )
        try:
            self._run_trials(ground)
            self._doubt_refuted()
        finally:
            if view is not None:
                view.close()
        if self._settings.find_grace:
            self._found_grace = self._find_grace(ground)

    def _find_grace(self, ground: Groundwork) -> Found:
        """Carry the plans out in ever other windows, in real seconds."""
        whole = replace(self._settings, find_grace=False, time_scale=1.0)

        def holds(window_s: float) -> bool:
            settings = replace(whole, grace_s=window_s)
            stage = replace(ground.stage, settings=settings)
            self.tell(PhaseStarted(f"grace of {window_s:.3g} s"))
            for number, plan in self._plans:
                name = f"grace {window_s:.4g} trial {number}"
                trial = run_trial(stage, plan, number=number, name=name)
                said = judge_trial(settings, ground, trial, plan)
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
            trial, judgement = self._try(ground, plan, number)
            judgement = self._confirm_fresh(ground, plan, trial, judgement)
            is_more_than_a_kill = (
                self._settings.fault
                or self._settings.lose == "machine"
                or ground.stage.store_wanted is not None
            )
            if is_more_than_a_kill:
                return trial, judgement  # a replay for tensors would be another trial
            return trial, pinpointer.locate(trial, plan, judgement)

        return task

    def _try(
        self, ground: Groundwork, plan: Plan, number: int
    ) -> tuple[Trial, Judgement]:
        """Carry out and judge one plan, by what is known already where that is sound."""
        skipper = self._skipper if self._skips else None
        moment = None if skipper is None else skipper.moment(plan)
        if skipper is None or moment is None:
            trial = self._run_plan(ground, plan, number)
            return trial, self._judged(ground, trial, plan)
        is_check = skipper.wants_check()
        try:
            trial = skipper.carry_out(plan, moment, number=number)
        except ZygoteGoneError:
            trial = self._run_plan(ground, plan, number)
        judgement = self._judged(ground, trial, plan)
        if is_requeued(trial.attempts, planned=len(plan.points) + 1, plan=plan):
            # What comes of further starts is not recorded.
            real = self._run_plan(ground, plan, number)
            return real, self._judged(ground, real, plan)
        if not is_check:
            return trial, judgement
        real = self._run_plan(ground, plan, number)
        said = self._judged(ground, real, plan)
        if _names(said) == _names(judgement):
            return real, said
        self._skips = False
        return real, _doubted(
            said, f"built from a recorded run it showed {sorted(_names(judgement))}"
        )

    def _judged(self, ground: Groundwork, trial: Trial, plan: Plan) -> Judgement:
        """Judge a trial; where whole components are of no step, tensor by tensor."""
        said = judge_trial(self._settings, ground, trial, plan)
        if not may_be_torn(said):
            return said
        tensors = self._tensors_of(ground)
        baseline = replace(ground.baseline, tensors=tensors)
        return judge_trial(
            self._settings, replace(ground, baseline=baseline), trial, plan
        )

    def _tensors_of(self, ground: Groundwork) -> AllTensors:
        """Run without interruption once more, for a digest of each tensor at each step."""
        with self._tensors_lock:
            if self._tensors is None:
                self._tensors = {}
                self.tell(PhaseStarted("baseline, tensor by tensor"))
                view = ground.stage.new_view("tensors")
                try:
                    attempt = run_attempt(
                        ground.stage, view, None, orders={"tensors": "all"}
                    )
                finally:
                    view.close()
                if unlike(ground.baseline.first, attempt) is None:
                    ranks = attempt.trace.ranks.items()
                    self._tensors = {rank: trace.tensors for rank, trace in ranks}
            return self._tensors

    def _run_plan(self, ground: Groundwork, plan: Plan, number: int) -> Trial:
        """Carry out one plan, in fresh processes if the zygote is gone."""
        stage = ground.stage
        if self._zygote_lost is None:
            try:
                return run_trial(stage, plan, number=number)
            except ZygoteGoneError as error:
                self._zygote_lost = error.message
        return run_trial(replace(stage, zygote=None), plan, number=number)

    def _confirm_fresh(
        self, ground: Groundwork, plan: Plan, trial: Trial, judgement: Judgement
    ) -> Judgement:
        """Have each class of finding shown once by fresh processes alone."""
        if judgement.verdict is not Verdict.VIOLATED or trial.path != "warm":
            return judgement
        with self._lock:
            new = _names(judgement) - self._shown_fresh
            self._shown_fresh |= new
        if not new:
            return judgement
        stage = replace(ground.stage, zygote=None)
        name = f"trial {trial.number} fresh"
        self.tell(PhaseStarted(name, str(plan)))
        fresh = run_trial(stage, plan, number=trial.number, name=name)
        said = self._judged(ground, fresh, plan)
        if new <= _names(said):
            message = f"a fresh process showed {', '.join(sorted(new))} as well"
            note = Note("confirmed-cold", message)
            return replace(judgement, notes=(*judgement.notes, note))
        self._skips = False
        self._refuted |= new - _names(said)
        return _doubted(
            judgement, f"in fresh processes it showed {sorted(_names(said))}"
        )

    def _doubt_refuted(self) -> None:
        """Let no trial be convicted of what fresh processes did not show elsewhere."""
        for index, (trial, judgement) in enumerate(self.done):
            names = _names(judgement) & self._refuted
            if names and judgement.verdict is Verdict.VIOLATED and trial.path == "warm":
                doubted = _doubted(
                    judgement, "another trial was refuted when run fresh"
                )
                self.done[index] = trial, doubted

    def _is_too_late_for_a_trial(self) -> bool:
        """Tell whether a trial as long as the longest so far would pass the budget."""
        budget_s = self._settings.budget_s
        if budget_s is None:
            return False
        longest_s = max((trial.wall_s for trial, _ in self.done), default=0.0)
        return self._clock.monotonic() - self._begun_s + longest_s >= budget_s

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
            "skipped_as_equal": 0 if self._skipper is None else self._skipper.skipped,
            "spot_checked": 0 if self._skipper is None else self._skipper.checked,
            "not_run": [str(plan) for plan in self._not_run],
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


def jobs_for(ground: Groundwork) -> int:
    """Return how many trials fit side by side: by cores, ranks and memory."""
    import psutil  # slow to import, and not for `--help`

    cores = len(os.sched_getaffinity(0)) // max(1, ground.baseline.world_size)
    cores //= max(1, ground.stage.settings.threads)
    need = LEAST_MEMORY_BYTES * max(1, ground.baseline.world_size)
    room = int(psutil.virtual_memory().available) // need
    return max(1, min(cores, room))


def most_telling_first(
    plans: Sequence[tuple[int, Plan]], land: Landscape
) -> list[tuple[int, Plan]]:
    """Order plans for a short budget: named ones, edges, new kinds, then the rest."""
    known = {plan.points[0] for plan in edges(land) if plan.points}
    kinds: set[object] = set()

    def rank(plan: Plan) -> int:
        kind = (len(plan.points), plan.points[0].site if plan.points else None)
        is_new = kind not in kinds
        kinds.add(kind)
        if not plan.drawn:
            return 0
        if plan.after_finish or plan.points[0] in known:
            return 1
        return 2 if is_new else 3

    ranked = [(rank(plan), number, plan) for number, plan in plans]
    ranked.sort(key=lambda entry: entry[:2])
    return [(number, plan) for _, number, plan in ranked]


def _names(judgement: Judgement) -> set[str]:
    return {finding.name for finding in judgement.findings}


def _doubted(judgement: Judgement, message: str) -> Judgement:
    """Return a judgement that two ways of carrying out one plan do not agree on."""
    shown = ", ".join(sorted(_names(judgement))) or "nothing"
    finding = Finding("not-repeatable", f"it showed {shown}; {message}")
    return replace(
        judgement, verdict=Verdict.UNKNOWN, findings=(finding,), holds_up_to=None
    )


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
