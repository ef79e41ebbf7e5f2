"""From the record of a trial to its lineage: what each attempt joined, and how it went on.

The surviving course of training is attempt n up to the step at which attempt n+1 joined,
then attempt n+1. This module only establishes facts; what they mean is said by the
oracles beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from spotchaos.model import (
    Attempt,
    AttemptTrace,
    Baseline,
    Ended,
    RankTrace,
    StepMark,
    Trial,
)
from spotchaos.oracles.discarded_steps import preludes_of, without_discarded_steps
from spotchaos.oracles.numbering import numbered_as
from spotchaos.oracles.resume_points import (
    Habit,
    Saved,
    habit_of,
    is_corrupted,
    lagging,
    newest,
    pattern_of,
    saves_of,
    writes_per_save,
)
from spotchaos.oracles.views import RankView, views_of
from spotchaos.oracles.windows import on_the_way, with_whole_windows
from spotchaos.trace.lookup import (
    Join,
    Line,
    Looked,
    RankReference,
    continued,
    first_columns,
    is_stream,
    join,
    line_of,
    look_up,
)
from spotchaos.trace.training_phases import spelled_as


@dataclass(frozen=True, slots=True)
class ResumedAttempt:
    """One attempt of a trial as a part of the lineage."""

    attempt: Attempt
    join: Join
    line: Line
    views: Mapping[int, RankView]
    previous_end: int  # steps that the lineage had completed when it began
    end: int  # ... and when it ended
    saved: tuple[Saved, ...]  # resume points begun before it began, in order
    is_after_finish: bool
    is_last: bool
    discarded_steps: int = (
        0  # steps that it made and threw away before: not in its trace here
    )
    reached: int = 0  # the furthest step that any rank before it had completed
    # Checkpoints that it loaded before its first step, and that no attempt had written.
    unwritten: frozenset[str] = frozenset()
    # All steps had been done when it began, and what is saved after them begun.
    is_after_last_step: bool = False

    @property
    def is_all_over(self) -> bool:
        """Whether it trains a run from the beginning all of whose steps had been done."""
        is_late = self.is_after_finish or self.is_after_last_step
        return is_late and bool(self.trained) and not self.joined

    @property
    def has_nothing_left(self) -> bool:
        """Whether all steps had been done when it began, and it trained none."""
        return (self.is_after_finish or self.is_after_last_step) and not self.trained

    @property
    def number(self) -> int:
        return self.attempt.number

    @property
    def joined(self) -> int | None:
        return self.join.step

    @property
    def trained(self) -> int:
        """Steps that it completed."""
        return self.attempt.trace.completed

    @property
    def has_begun(self) -> bool:
        """Whether it came as far as training, or finished with nothing left to train."""
        return self.attempt.trace.observed and bool(
            self.trained
            or any(0 in r.states for r in self.attempt.trace.ranks.values())
        )

    @property
    def is_resume(self) -> bool:
        return self.number > 1 and not self.is_after_finish

    def has_other_ranks_than(self, baseline: Baseline) -> bool:
        """Whether none of its ranks is one of the baseline's."""
        return self.attempt.trace.world_size != baseline.world_size

    @property
    def lost(self) -> int:
        """Steps that it had to do again."""
        return 0 if self.joined is None else max(0, self.previous_end - self.joined)

    @property
    def newest(self) -> int | None:
        """The newest resume point that was whole when it began."""
        return newest(self.saved)

    @property
    def starts_afresh(self) -> bool:
        """Whether it rightly began at step 0: nothing had been saved."""
        return self.joined == 0 and not self.saved


@dataclass(frozen=True, slots=True)
class Case:
    """One trial, laid out for the oracles, with what was promised."""

    trial: Trial
    baseline: Baseline
    line: Line
    habit: Habit
    links: tuple[ResumedAttempt, ...]
    course: Mapping[int, Mapping[int, tuple[int | None, StepMark]]]
    max_lost_steps: int | None = None
    accept_refusal: bool = False
    exit_codes: tuple[int, ...] | None = None

    @property
    def horizon(self) -> int:
        return self.baseline.horizon

    @property
    def last(self) -> ResumedAttempt:
        """The last attempt that belongs to the run, a start after the finish apart."""
        return next(
            (k for k in reversed(self.links) if not k.is_after_finish), self.links[-1]
        )

    @property
    def is_finished(self) -> bool:
        """Whether the run came to an end of its own with status 0."""
        return has_succeeded(self.last.attempt, self.last.end, self.horizon)

    def resumes(self) -> Iterator[ResumedAttempt]:
        """Yield each attempt after the first that continues the run."""
        return (resumed for resumed in self.links if resumed.is_resume)


def has_succeeded(attempt: Attempt, end: int, horizon: int) -> bool:
    """Tell whether an attempt said with status 0 that the run is done, and it is.

    It may have been warned before, and have come to its end all the same.
    """
    if attempt.ended is Ended.EXITED:
        return attempt.exit_code == 0 and end >= horizon
    return attempt.ended is Ended.FINISHED


def _of_other_ranks(attempt: Attempt, baseline: Baseline) -> set[str]:
    """Return what is a rank's own, if an attempt has another number of ranks.

    Its ranks are none of the baseline's: they share the same samples otherwise, each
    with a loss and with streams of its own. What all ranks have in common is compared,
    and samples are counted over all of them.
    """
    if attempt.trace.world_size == baseline.world_size:
        return set()
    return {"batch", "samples", "loss"} | {
        component
        for rank in attempt.trace.ranks.values()
        for state in rank.states.values()
        for component in state.components
        if is_stream(component)
    }


@dataclass(slots=True)
class _Builder:
    """What is known while the attempts of a trial are laid out one after another."""

    baseline: Baseline
    line: Line
    habit: Habit
    lag: int = 0
    lines: list[Line] = field(default_factory=list)
    saved: list[Saved] = field(default_factory=list)
    end: int = 0
    reached: int = 0
    furthest: int = 0  # as `reached`, of the foremost rank
    written: set[str] = field(default_factory=set)
    has_unnamed: bool = False  # a kill came before a save had said what it wrote
    has_finished: bool = False
    is_past_last_step: bool = False
    course: dict[int, dict[int, tuple[int | None, StepMark]]] = field(
        default_factory=dict
    )

    def add(
        self,
        attempt: Attempt,
        *,
        discarded_steps: int,
        is_last: bool,
        after_finish: bool,
    ) -> ResumedAttempt:
        is_first = not self.lines
        if is_first:
            self.lines.append(self.line)
        after = after_finish or self.has_finished
        found, line = self._join(attempt, is_first=is_first)
        midway: Mapping[int, frozenset[str]] = {}
        if found.step is not None and not is_first:
            midway = on_the_way(line, attempt, joined=found.step)
            attempt = with_whole_windows(line, attempt, joined=found.step)
        views = views_of(
            attempt,
            found,
            line,
            (*self.baseline.not_compared, *_of_other_ranks(attempt, self.baseline)),
            saves=[one.step for one in self.saved],
            midway=midway,
        )
        end = self.end
        if found.step is not None:
            end = found.step + attempt.trace.completed
        resumed = ResumedAttempt(
            attempt=attempt,
            join=found,
            line=line,
            views=views,
            previous_end=self.end,
            end=end,
            saved=tuple(self.saved),
            is_after_finish=after and not is_first,
            is_last=is_last,
            discarded_steps=discarded_steps,
            reached=self.furthest,
            unwritten=self._unwritten(attempt),
            is_after_last_step=self.is_past_last_step,
        )
        self._go_on(resumed)
        return resumed

    def _join(self, attempt: Attempt, *, is_first: bool) -> tuple[Join, Line]:
        trace = attempt.trace
        if is_first:
            return Join(0, dict.fromkeys(trace.ranks, 0)), self.line
        columns = {
            rank: first
            for rank, each in trace.ranks.items()
            if (first := first_columns(each)) is not None
        }
        fits = None
        if attempt.ended is Ended.FINISHED:
            fits = self.baseline.horizon - trace.completed
        best: tuple[Join, Line] = Join(None, dict.fromkeys(columns)), self.line
        for line in (self.lines[0], *reversed(self.lines[1:])):
            looked = _look_up(line, columns, self.baseline.not_compared)
            steps = [save.step for save in self.saved]
            found = join(
                looked,
                saves=steps,
                fits=fits,
                reached=self.reached,
                sampled={
                    rank: {*one.states, *one.weak} for rank, one in line.ranks.items()
                },
                partly={
                    rank: one.weak.keys() - one.states.keys()
                    for rank, one in line.ranks.items()
                },
            )
            if not found.step and not any(0 in r.states for r in trace.ranks.values()):
                # It trained nothing: a fresh model at the end tells of no place.
                continue
            # The baseline comes first and wins a tie: it alone has a future.
            if found.score > best[0].score:
                best = found, line
        return best

    def _unwritten(self, attempt: Attempt) -> frozenset[str]:
        if self.has_unnamed:
            return frozenset()
        loaded = loaded_at_start(attempt.trace)
        wanted = {p for p in loaded if pattern_of(p) in self.habit.parts}
        return frozenset() if wanted & self.written else frozenset(wanted)

    def _go_on(self, resumed: ResumedAttempt) -> None:
        attempt, joined = resumed.attempt, resumed.joined
        for rank in attempt.trace.ranks.values():
            for save in rank.saves:
                self.written.update(save.paths)
                self.has_unnamed |= not save.paths
            foremost = max(rank.completed, rank.counts.get("step-end", 0))
            # Of who trained on an unknown state nobody knows how far it came.
            before = joined if joined is not None else self.baseline.horizon
            self.furthest = max(self.furthest, before + foremost if foremost else 0)
        self.has_finished |= has_succeeded(attempt, resumed.end, self.baseline.horizon)
        if joined is None:
            return
        last = self.baseline.horizon
        self.is_past_last_step |= resumed.end >= last and (
            not _saves_at(self.baseline.first.trace, last)
            or _saves_at(attempt.trace, last - joined)
        )
        self.end = resumed.end
        self.reached = max(self.reached, resumed.end)
        found = saves_of(
            attempt.trace,
            attempt=attempt.number,
            joined=joined,
            ended=attempt.ended,
            habit=self.habit,
        )
        corrupted = {
            joined + save.of_step
            for rank in attempt.trace.ranks.values()
            for save in rank.saves
            if is_corrupted(save, attempt, writes=self.habit.writes)
        }
        found = [
            replace(one, is_whole=False, is_settled=False)
            if one.step in corrupted
            else one
            for one in found
        ]
        self.saved += lagging(found, self.lag)
        if not resumed.is_after_finish:
            self._continue_course(resumed, joined)
        if not attempt.trace.observed:
            return
        split_at_restarts = any(
            d.matters for v in resumed.views.values() for d in v.differences
        )
        self.lines.append(
            continued(
                resumed.line,
                attempt.trace,
                joined=joined,
                name=f"attempt {attempt.number}",
                split_at_restarts=split_at_restarts,
            )
        )

    def _continue_course(self, resumed: ResumedAttempt, joined: int) -> None:
        if not resumed.trained and not resumed.has_begun:
            return
        # Of ranks that are gone as well, what lies behind the join was done again.
        for rank, before in self.course.items():
            self.course[rank] = {s: entry for s, entry in before.items() if s <= joined}
        for rank, trace in resumed.attempt.trace.ranks.items():
            kept = dict(self.course.get(rank, {}))
            epochs = epoch_shift(resumed.line.ranks.get(rank), trace, joined)
            for mark in trace.steps:
                epoch = None
                if epochs is not None and mark.epoch is not None:
                    epoch = mark.epoch + epochs
                kept[joined + mark.step] = (epoch, mark)
            self.course[rank] = kept


def lay_out(
    trial: Trial,
    baseline: Baseline,
    *,
    max_lost_steps: int | None = None,
    accept_refusal: bool = False,
    exit_codes: Sequence[int] | None = None,
    resume_after_finish: bool = False,
) -> Case:
    """Follow the lineage of a trial's attempts.

    Args:
        trial: one plan carried out.
        baseline: what it is compared with.
        max_lost_steps: steps that a resume may do again; None is no bound.
        accept_refusal: a clear error instead of a wrong resume keeps the promise.
        exit_codes: what an attempt stopped by a signal must exit with; None: not judged.
        resume_after_finish: the last attempt was started after the run had finished.
    """
    trace = baseline.first.trace
    habit = habit_of(trace, baseline.patterns)
    habit = replace(habit, writes=writes_per_save(baseline.first))
    builder = _Builder(baseline, line_of(trace), habit, lag_of(baseline))
    last = len(trial.attempts) - 1
    tables = {rank: each.table for rank, each in builder.line.ranks.items()}
    attempts = [spelled_as(tables, attempt) for attempt in trial.attempts]
    preludes = preludes_of(builder.line, baseline, attempts[1:])
    links = []
    for index, spelled in enumerate(attempts):
        attempt, discarded_steps = without_discarded_steps(
            builder.line, numbered_as(builder.line, spelled), preludes
        )
        links.append(
            builder.add(
                attempt,
                discarded_steps=discarded_steps,
                is_last=index == last,
                after_finish=resume_after_finish and index == last,
            )
        )
    return Case(
        trial=trial,
        baseline=baseline,
        line=builder.line,
        habit=builder.habit,
        links=tuple(links),
        course=builder.course,
        max_lost_steps=max_lost_steps,
        accept_refusal=accept_refusal,
        exit_codes=None if exit_codes is None else tuple(exit_codes),
    )


def loaded_at_start(trace: AttemptTrace) -> set[str]:
    """Return what any rank loaded before its first step."""
    return {
        load.path
        for rank in trace.ranks.values()
        for load in rank.loads
        if load.step == 0
    }


def _saves_at(trace: AttemptTrace, step: int) -> bool:
    """Tell whether a save was begun after a step of an attempt."""
    return any(
        save.step == step for rank in trace.ranks.values() for save in rank.saves
    )


def lag_of(baseline: Baseline) -> int:
    """Return by how many steps a save is behind, as the clean stop's resume shows; or 0.

    It shows it where it joined at a step at which nothing was saved: what it loaded was
    copied there, and written at the next save.
    """
    control = baseline.control
    if control is None or len(control.attempts) < 2:
        return 0
    clean = lay_out(control, replace(baseline, control=None)).links[1]
    later = [one.step for one in clean.saved if one.step > (clean.joined or 0)]
    if not clean.joined or not later or not clean.trained:
        return 0
    if any(one.step == clean.joined or not one.is_opaque for one in clean.saved):
        return 0
    return min(later) - clean.joined


def epoch_shift(
    line: RankReference | None, trace: RankTrace, joined: int
) -> int | None:
    """Return what turns an attempt's own count of epochs into that of its line.

    Where it got the batch with which a later epoch of the line begins, it went on there:
    what was left of the epoch before is not in it. (Unless it then trained on for longer:
    it began its epoch again, in the order that the next one would have had.) A batch of
    an earlier epoch says nothing, since an order that starts again at the seed has those
    batches in any epoch.
    """
    if line is None or not trace.steps:
        return None
    first = trace.steps[0]
    following = line.steps.get(joined + first.step)
    if following is None or following.epoch is None or first.epoch is None:
        return None
    begun = following.epoch
    batch = first.components.get("batch")
    is_longer = joined + trace.completed > max(line.steps)
    if batch is not None and not is_longer:
        begun = max(begun, _begins(line, batch) or 0)
    return begun - first.epoch


def _begins(line: RankReference, batch: str) -> int | None:
    """Return the one epoch of a line that has a batch and begins with it, or None."""
    found = [s for s, m in line.steps.items() if m.components.get("batch") == batch]
    if len(found) != 1:
        return None
    there, before = line.steps[found[0]], line.steps.get(found[0] - 1)
    return there.epoch if before is not None and before.epoch != there.epoch else None


def _look_up(
    line: Line, columns: Mapping[int, Mapping[str, str]], leave_out: Sequence[str]
) -> dict[int, Looked]:
    return {
        rank: look_up(line.ranks[rank], found, leave_out=leave_out)
        for rank, found in columns.items()
        if rank in line.ranks
    }
