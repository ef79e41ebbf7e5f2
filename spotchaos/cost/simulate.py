"""The simulation of one run of one policy: a pure function of what machines it can have.

Events are the beginnings and ends of leases, and the moments at which a policy changes
its mind; what happens within a lease has a closed form (`lease.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from spotchaos.cost.capacity import Endless, Source
from spotchaos.cost.job import Job
from spotchaos.cost.lease import AttemptController, Done, Pace, use
from spotchaos.cost.policies import Policy
from spotchaos.cost.runs import Lease, Market, Run

# So many leases in a row that bring nothing: it never finishes. A lease that brings
# something once in a hundred times is given up by mistake in one run of 20,000.
MOST_IN_VAIN = 1000
MOST_LEASES = 100_000
NO_CAPACITY = "there is never enough capacity"
TOO_MANY = f"it is interrupted more than {MOST_LEASES:,} times"


def simulate(
    job: Job, policy: Policy, source: Source, *, deadline_us: int | None = None
) -> Run:
    """Return one run of a job under a policy.

    Args:
        job: what is trained.
        policy: how.
        source: where its spot machines come from; it is used up.
        deadline_us: by when it has to be finished, for the policies that mind.

    Raises:
        ValueError: the policy needs a deadline and there is none.
    """
    if policy.rule == "on-demand":
        source = Endless(job.nodes)
    if policy.is_timed:
        if deadline_us is None:
            raise ValueError(f"the policy {policy.name!r} needs a deadline")
        return _Timed(job, policy, source, deadline_us).run()
    return _Simulation(job, policy, source).run()


@dataclass(slots=True)
class _State:
    at: int = 0
    kept: int = 0
    in_vain: int = 0
    since: int = 0  # when the last progress was made
    has_run: bool = False


class _Simulation:
    """A run on machines of one source, taken whenever they can be had."""

    def __init__(self, job: Job, policy: Policy, source: Source) -> None:
        self.job = job
        self.policy = policy
        self.source = source
        self.leases: list[Lease] = []
        self.state = _State()
        stall = job.save_stall_us if policy.stall_us is None else policy.stall_us
        self.pace = Pace(
            job.steps, job.step_us, policy.every, stall, max(stall, job.save_end_us)
        )
        self.is_remembered = policy.rule == "hybrid"
        warns = policy.on_notice and 0 < job.need_us <= job.notice_us
        self.warned = job.notice_us if warns else None
        self.react = max(0, job.need_us - self.pace.end)
        self.market: Market = "on-demand" if policy.rule == "on-demand" else "spot"

    def run(self) -> Run:
        state, job = self.state, self.job
        while state.kept < job.steps:
            window = self.source.next(self.asked())
            if window is None:
                return self.over(NO_CAPACITY)
            why = self._why_never()
            if why:
                return self.over(why)
            done = self.lease(
                window.nodes, window.start, window.end, is_planned=window.is_planned
            )
            self.note(done, window.nodes, window.start, window.zone, self.market)
            if window.is_planned and not done.is_finished:
                self.leave()
        return self.over()

    def asked(self) -> int:
        """Return from when on machines can be there."""
        # Who goes on with fewer gets more later, and does not wait for them.
        goes_on = self.job.is_elastic and self.state.has_run
        return self.state.at + (0 if goes_on else self.job.queue_us)

    def lease(
        self, nodes: int, start: int, end: int | None, *, is_planned: bool = False
    ) -> Done:
        """Return what machines from `start` on bring."""
        pace, job = self.pace, self.job
        if nodes < job.nodes and job.is_elastic:
            pace = pace._replace(step=-(-pace.step * job.nodes // nodes))
        warned, react = self.warned, self.react
        if is_planned and (pace.every or self.policy.on_notice):
            warned, react = pace.end, 0
        return use(
            pace,
            self.state.kept,
            start=self.start_us(start),
            room=None if end is None else end - start,
            warned=warned,
            react=react,
            is_remembered=self.is_remembered,
        )

    def start_us(self, at: int) -> int:
        """Return the time from getting machines at `at` to the first step."""
        state, job = self.state, self.job
        knows = state.kept or (self.is_remembered and state.has_run)
        start = job.resume_us if knows else job.cold_us
        # Those that live on when others come or go need no boot.
        lives_on = job.is_elastic and state.has_run and state.at == at
        return start if lives_on else start + job.provision_us

    def note(
        self, done: Done, nodes: int, start: int, zone: str, market: Market
    ) -> None:
        """Add a lease, and move on to its end."""
        state = self.state
        end = start + done.length
        self.leases.append(
            Lease(
                market,
                zone,
                nodes,
                start,
                end,
                done.useful,
                done.lost,
                done.saving,
                done.restarting,
                done.idle,
                done.made,
                done.kept,
                "finished" if done.is_finished else "reclaimed",
            )
        )
        state.at = end
        state.kept += done.kept
        state.has_run = state.has_run or done.made > 0
        state.in_vain = 0 if done.kept else state.in_vain + 1
        if done.kept:
            state.since = state.at

    def leave(self) -> None:
        """Note that the last lease ended as planned: nothing was taken."""
        self.leases[-1] = self.leases[-1]._replace(ended="left")

    def _why_never(self) -> str:
        """Say why nothing more can come of this; empty: something can."""
        state, period = self.state, self.source.period
        round_is_over = period is not None and state.at - state.since > 2 * period
        if state.in_vain < MOST_IN_VAIN and not round_is_over:
            return "" if len(self.leases) < MOST_LEASES else TOO_MANY
        longest = max(lease.end - lease.start for lease in self.leases[-MOST_IN_VAIN:])
        first = (
            self.start_us(-1)
            + AttemptController(self.pace, state.kept).first
            + self.pace.end
        )
        what = "save" if self.policy.every else "step"
        return (
            f"its {'first' if self.policy.every else 'last'} {what} is done"
            f" {span(first)} after machines are there, and in {len(self.leases)} tries"
            f" none stayed longer than {span(longest)}"
        )

    def over(self, why_not: str = "") -> Run:
        state = self.state
        return Run(
            leases=tuple(self.leases),
            elapsed=state.at,
            steps=state.kept,
            finished=not why_not,
            why_not=why_not,
            escort=1 if self.policy.rule == "hybrid" else 0,
            repeats=self.source.repeats(state.at),
        )


class _Timed(_Simulation):
    """A run that has a deadline, and takes on-demand machines to meet it.

    The rules are those of "Can't Be Late" (Wu et al., NSDI 2024), with progress counted
    as what is saved, and the time that a lost lease costs in place of their changeover:
    a run that sits idle goes on demand for good when a start there and the work left
    need the time left (safety net); it stays on spot machines until they are taken
    (exploitation). With uniform progress it also goes on demand when it is idle and
    behind an even pace, and stays until it is ahead by two changeovers (hysteresis).
    """

    def __init__(
        self, job: Job, policy: Policy, source: Source, deadline_us: int
    ) -> None:
        super().__init__(job, policy, source)
        self.deadline = deadline_us
        self.is_even = policy.rule == "uniform-progress"

    def run(self) -> Run:
        state, job = self.state, self.job
        while state.kept < job.steps:
            safe = self._safe_until(state.kept)
            window = self.source.next(self.asked())
            here = None if window is None else max(state.at, window.start)
            behind = self._behind_from() if self.is_even else safe
            # What can be had now is taken, also by who is behind.
            latest = min(safe, max(self.asked(), behind))
            if state.at >= safe:
                self._on_demand(until=None)
            elif here is not None and window is not None and here <= latest:
                done = self.lease(window.nodes, here, window.end)
                self.note(done, window.nodes, here, window.zone, "spot")
            elif behind < safe:
                state.at = max(state.at, behind)
                self._on_demand(until=self._ahead_on_spot())
            else:
                state.at = max(state.at, safe)
        return self.over()

    def _safe_until(self, kept: int) -> int:
        """Return until when a try on spot machines can be lost, just before a save."""
        start = self.start_us(-1)
        course = AttemptController(self.pace, kept)
        between = course.cycle if course.middle else 0
        lost = start + max(course.first, between) + self.pace.end
        return self.deadline - lost - start - course.length

    def _behind_from(self) -> int:
        """Return when what is kept falls behind an even pace."""
        even = self.state.kept * self.deadline // self.job.steps
        return max(self.state.at, even)

    def _ahead_on_spot(self) -> int | None:
        """Return when it can leave on-demand machines: ahead, and spot can be had."""
        state, job = self.state, self.job
        # Kept steps at t: those now and what was trained since the start. It is to be
        # what an even pace has two changeovers later.
        start = self.start_us(-1)
        gained = job.step_us * job.steps
        cost = 2 * (start + self.pace.end)
        have = state.kept * job.step_us - start
        if self.deadline <= gained:
            return None
        target = gained * (state.at + cost) / self.deadline - have
        ahead = state.at + round(target / (1 - gained / self.deadline))
        ahead = max(ahead, state.at + start + job.step_us)
        window = self.source.next(ahead)
        return None if window is None else max(ahead, window.start)

    def _on_demand(self, until: int | None) -> None:
        """Run on demand until the end, or until a moment at which it saves and leaves."""
        state, job = self.state, self.job
        start = self.start_us(-1)
        done = use(self.pace, state.kept, start=start, room=None)
        if until is not None:
            end = self.pace.end
            room = until - state.at + end
            part = use(self.pace, state.kept, start=start, room=room, warned=end)
            # Who could not lose a try on spot machines then stays.
            kept = state.kept + part.kept
            if kept < job.steps and state.at + part.length <= self._safe_until(kept):
                done = part
        self.note(done, job.nodes, state.at, "", "on-demand")
        if not done.is_finished:
            self.leave()


def span(microseconds: int) -> str:
    """Return a duration as people say it."""
    total = microseconds / 1e6
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if total >= 2 * size:
            return f"{total / size:.3g} {unit}"
    return f"{total:.3g} s" if total >= 1 else f"{1000 * total:.3g} ms"
