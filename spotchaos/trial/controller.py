"""The course of one attempt: how it is struck, and how it ended.

It strikes as the plan says, by signal, notice or kill, and notes what it did and when.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from spotchaos.clock import Clock
from spotchaos.config.follow_ups import FollowUp, ranks_in_order
from spotchaos.config.plan import KillPoint
from spotchaos.config.settings import Settings
from spotchaos.errors import HarnessError
from spotchaos.injectors.attempt_environment import AttemptEnvironment, Pace
from spotchaos.launch.attempt.attempt import Exited, Halted, RunningAttempt
from spotchaos.launch.isolation.workspace import View
from spotchaos.model import Ended, NoticePlayed, Sent
from spotchaos.providers.notice import Follows, Notice
from spotchaos.providers.service import Entry
from spotchaos.trial.attempt_run import LOOK_S, SETTLE_S, AttemptRun

DEFAULT_GRACE_S = 30.0
# How long a stopped or hibernated machine stands still: long enough for every clock and
# timer of a program to notice, short enough for peers not to give up.
FROZEN_S = 1.0
# How long a launcher may take to end once all its ranks have.
LAUNCHER_S = 10.0


class AttemptController(AttemptRun):
    """What happens to one attempt from its launch to its end."""

    def __init__(
        self,
        settings: Settings,
        running: RunningAttempt,
        view: View,
        point: KillPoint | None,
        *,
        attempt_environment: AttemptEnvironment,
        clock: Clock,
        hang_s: float,
        quiet: bool,
        begun_s: float,
        pace: Pace | None = None,
        done_before: int = 0,
        follow_ups: tuple[FollowUp, ...] = (),
    ) -> None:
        super().__init__(
            settings,
            running,
            view,
            point,
            attempt_environment=attempt_environment,
            clock=clock,
            hang_s=hang_s,
            quiet=quiet,
            begun_s=begun_s,
        )
        self._pace = pace
        self._done_before = done_before
        self._follow_ups = list(follow_ups)  # those that are still to be sent
        self.fired = False
        self.signal: str | None = None
        self.signalled_step: int | None = None
        self.signalled_at_s: float | None = None
        self._fair_signalled_s: float | None = None
        self.sent: list[Sent] = []
        self.notice: NoticePlayed | None = None
        self.notice_at_s: float | None = None
        self._news_at: datetime | None = None  # by the clock of the service
        self.stuck = False

    @property
    def was_injected(self) -> bool:
        """Whether its kill point was reached, if it had one."""
        return self._point is None or self.fired

    def ended(self) -> Ended:
        """Say how it ended, from who ended it and with which status."""
        if self._hung:
            return Ended.HUNG
        if self.reclaimed_at_s is not None:
            return Ended.RECLAIMED
        was_notified = self.signal is not None or self.notice_at_s is not None
        if self._running.exit_code == 0:
            # A signal that a program answers with status 0 did not let it finish; how
            # many steps are missing is the oracle's business. After a mere pause, or
            # advice, it goes on as if nothing had been.
            goes_on = self.signal == "STOP" or (
                self.notice is not None and not self.notice.reclaimed
            )
            return Ended.EXITED if was_notified and not goes_on else Ended.FINISHED
        return Ended.EXITED if was_notified else Ended.FAILED

    @property
    def target(self) -> str:
        """Who gets the signal, in the words of `--to`, or "ours": no program's doing."""
        is_ours = self._settings.ranks is not None
        told = self._settings.to
        return "ours" if is_ours and told in {"leader", "launcher"} else told

    def _inject(self) -> None:
        settings = self._settings
        self.fired = True
        if self._quiet:
            self._kill("all")
        elif self._attempt_environment.service is not None:
            self._give_notice()
        elif settings.signal == "KILL":
            self._kill(settings.to)
        elif settings.signal == "STOP":
            self._stand_still()
        else:
            self._send(settings.signal, partial(self._running.signal, settings.signal))

    # --- kills and signals ---

    def _kill(self, target: str) -> None:
        self.signal = "KILL" if target != "all" else None
        if target == "all":
            self._reclaim()
            return
        # The rest of the attempt lives on, as after the loss of one process; it has the
        # grace window to notice.
        self._send("KILL", self._running.reclaim)

    def _send(self, name: str, act: Callable[[str], object]) -> None:
        """Strike whom `--to` names, at once or one after the other; await the end."""
        self.signal = name
        self._mark()
        alone = self._keep_launcher_out()
        told, stagger_s = self._settings.to, self._settings.stagger_s
        act_on = [told] if stagger_s is None else ranks_in_order(told)
        for turn, target in enumerate(act_on):
            if turn == 0:
                act(target)
                self._note_sent(name, target)
                self._let_go()
            elif self._ends_within(stagger_s or 0.0):
                return
            elif _if_it_lives(partial(act, target)):
                self._note_sent(name, target)
        self._await_end(
            self._grace_s(), peers=self._injects_one_rank, launcher_waits=alone
        )

    def _note_sent(self, name: str, target: str) -> None:
        now_s = self._clock.monotonic()
        self.sent.append(Sent(name, target, at_s=now_s, step=self._steps()))

    def _ends_within(self, bound_s: float) -> bool:
        """Let the attempt go on for so many seconds; tell whether it came to its end."""
        deadline_s = self._fair.monotonic() + bound_s
        while True:
            if self._send_what_is_due():
                return True
            left_s = min(deadline_s, self._next_due_s()) - self._fair.monotonic()
            event = self._wait(left_s)
            if isinstance(event, Exited):
                return True
            if isinstance(event, Halted) and self._is_end_of_window(
                event, in_steps=self._counts_in_steps
            ):
                self._reclaim()
            if self._is_gone:
                return True
            if self._fair.monotonic() >= deadline_s:
                return False

    # --- what follows the first signal ---

    @property
    def unsent(self) -> tuple[str, ...]:
        """What was to follow the first signal, and was never reached."""
        return tuple(map(str, self._follow_ups)) if self.fired else ()

    def _next_due_s(self) -> float:
        """When the next signal that follows by time is due; infinity: there is none.

        By the clock of the attempt, as the first signal.
        """
        began_s = self._fair_signalled_s
        if began_s is None:
            return math.inf
        return began_s + min((wait_s for wait_s, _ in self._timed()), default=math.inf)

    def _timed(self) -> list[tuple[float, FollowUp]]:
        """Return what follows by time, each with its seconds from the first signal."""
        given = [(one.point.after_s, one) for one in self._follow_ups]
        return [(wait_s, one) for wait_s, one in given if wait_s is not None]

    def _send_what_is_due(self) -> bool:
        """Send what follows by time; tell whether that took the machine away."""
        while self._fair.monotonic() >= self._next_due_s():
            self._follow_up(min(self._timed(), key=lambda timed: timed[0])[1])
        return self._is_gone

    def _is_end_of_window(self, event: Halted, *, in_steps: bool) -> bool:
        """Deal with a halt after the strike; tell whether the grace window ends at it."""
        if not event.kill_point.startswith("+"):
            if not in_steps:
                self._running.go_on(event.rank)
            return in_steps
        due = [f for f in self._follow_ups if f"+{f.point}" == event.kill_point]
        if not due:
            self._running.go_on(event.rank)
            return False
        self._running.settle(event.kill_point, SETTLE_S)
        if self._settings.halt == "freeze":
            self._running.freeze()
        for follow_up in due:
            if not self._is_gone:
                self._follow_up(follow_up)
        if not self._is_gone:
            self._running.thaw()
            self._running.go_on()
        return False

    def _follow_up(self, one: FollowUp) -> None:
        self._follow_ups.remove(one)
        if one.signal == "KILL":
            self._note_sent("KILL", "all")
            self._reclaim()
            return
        target = self._settings.to
        if _if_it_lives(partial(self._running.signal, one.signal, target)):
            self._note_sent(one.signal, target)

    @property
    def _injects_one_rank(self) -> bool:
        return self._settings.to.startswith("rank:")

    def _keep_launcher_out(self) -> bool:
        """Stop a launcher of ours where one rank is struck; tell whether there is one.

        On the machines of a real job nobody ends the peers of a rank that is gone.
        """
        alone = self._injects_one_rank and self._settings.ranks is not None
        if alone:
            self._running.signal("STOP", "launcher")
        return alone

    def _stand_still(self) -> None:
        """Stop processes and thaw them: a machine that hibernates, or is paused."""
        self.signal = "STOP"
        self._mark()
        self._running.signal("STOP", self._settings.to)
        self._note_sent("STOP", self._settings.to)
        self._let_go()
        self._clock.sleep(FROZEN_S)
        self._running.signal("CONT", self._settings.to)
        self._await_end(self._grace_s())

    def _mark(self) -> None:
        self._running.report_injected()
        self.signalled_step = self._steps()
        self.signalled_at_s = self._clock.monotonic()
        self._fair_signalled_s = self._fair.monotonic()

    def _let_go(self) -> None:
        """Let everybody go on, up to the end of a grace window that counts in steps."""
        if self._upload is not None:
            self._upload.release(goes_on=True)
        self._running.thaw()
        if self._counts_in_steps:
            steps = self._settings.grace_steps or 0
            last = max(1, (self.signalled_step or 0) + steps)
            self._running.go_on(kill=f"step-end:{last}")
        else:
            self._running.go_on()

    @property
    def _counts_in_steps(self) -> bool:
        """Whether the window ends at a step; a notice that is not yet out has its time."""
        if self._settings.grace_steps is None:
            return False
        if self._attempt_environment.service is None:
            return True
        return (
            self.notice_at_s is not None
            and self.notice is not None
            and self.notice.reclaimed
        )

    def _grace_s(self) -> float:
        grace_s = self._settings.grace_s
        return DEFAULT_GRACE_S if grace_s is None else grace_s

    def _await_end(
        self, grace_s: float, *, peers: bool = False, launcher_waits: bool = False
    ) -> None:
        """Wait for the end; when the grace window closes, the machine is gone.

        Args:
            grace_s: until then.
            peers: a rank is gone; what the others do in the meantime is looked at.
            launcher_waits: it is stopped until no rank lives any more.
        """
        now_s = self._fair.monotonic()
        deadline_s = now_s + grace_s
        # Whoever makes no step in the second half of the window waits for something.
        looks_at_s = now_s + grace_s / 2
        seen: int | None = None
        is_restarted = False
        while True:
            if self._send_what_is_due():
                return
            now_s = self._fair.monotonic()
            if peers and seen is None and now_s >= looks_at_s:
                seen = self._most_steps()
            until_s = looks_at_s if peers and seen is None else deadline_s
            if launcher_waits:
                until_s = min(until_s, now_s + LOOK_S)
            until_s = min(until_s, self._next_due_s())
            event = self._wait(until_s - now_s)
            if launcher_waits and not self._running.ranks_alive():
                launcher_waits = False
                _if_it_lives(partial(self._running.signal, "CONT", "launcher"))
                deadline_s = max(deadline_s, self._fair.monotonic() + LAUNCHER_S)
            if isinstance(event, Exited):
                return
            if not is_restarted and self._running.is_restarted():
                # Whoever did that waits no longer: it is a start like any other.
                is_restarted, peers = True, False
                deadline_s = self._fair.monotonic() + self._hang_s
            is_end = isinstance(event, Halted) and self._is_end_of_window(
                event, in_steps=self._counts_in_steps and not is_restarted
            )
            if self._is_gone:
                return
            if is_restarted and self._fair.monotonic() >= deadline_s:
                self._hang()
                return
            if is_end or self._fair.monotonic() >= deadline_s:
                if seen is not None and self._most_steps() == seen:
                    self.stuck = True
                    self.stacks = self._running.stacks()
                self._reclaim()
                return

    # --- notices ---

    def _give_notice(self) -> None:
        """Let the story of the notice begin now, and follow it to its end."""
        service = self._attempt_environment.service
        assert service is not None
        done = self._done_before + self._steps()
        self.notice = self._attempt_environment.announce(
            self._pace, done=done, is_patient=self._can_wait
        )
        told: set[Notice] = set()
        paused: set[Notice] = set()
        self._emit(told)
        # Who trains waits at its kill point; threads and processes beside it go on.
        self._hang_s += self._attempt_environment.patience_s
        waits_until_s = self._fair.monotonic() + self._attempt_environment.patience_s
        waits = self._attempt_environment.patience_s > 0 and bool(told)
        if waits:
            self._running.thaw()
        else:
            self._let_go()
        in_steps = self._counts_in_steps
        delayed_s = self._fair.delayed_s
        while True:
            if self._send_what_is_due():
                break
            # A provider may be late; who was kept from running has not had its time.
            late_s = self._fair.delayed_s - delayed_s
            now = self._clock.now() - timedelta(seconds=late_s)
            due = [n for n in service.notices if n.reclaim_at and now >= n.reclaim_at]
            losses = [n for n in due if n.follows is Follows.RECLAIM]
            if losses and not in_steps:
                self._reclaim()
                early = any(n.reclaim_at and n.reclaim_at < n.deadline for n in losses)
                self.notice = replace(self.notice, is_cut_short=early)
                break
            for notice in due:
                mark = replace(notice, acknowledged_at=None, reclaim_at=None)
                if notice.follows is Follows.FREEZE and mark not in paused:
                    paused.add(mark)
                    self._running.freeze()
                    self._clock.sleep(FROZEN_S)
                    self._running.thaw()
                    self.notice = replace(self.notice, paused=True)
            if waits and (
                any(not entry.is_refusal for entry in self._asked_since())
                or self._fair.monotonic() >= waits_until_s
            ):
                waits = False
                self._let_go()
            event = self._wait(LOOK_S)
            if isinstance(event, Exited):
                break
            if isinstance(event, Halted) and self._is_end_of_window(
                event, in_steps=in_steps
            ):
                self._reclaim()
                # That step is the deadline, however long it took to get there.
                at_s = min(self.notice.deadline_at_s, self.reclaimed_at_s or 0.0)
                self.notice = replace(self.notice, deadline_at_s=at_s)
                break
            if self._is_gone:
                break
            self._emit(told)
            if self._remaining_s() <= 0:
                self._hang()
                break
        self._count_requests()

    def _emit(self, told: set[Notice]) -> None:
        """Note which notices can be read by now, and send the signal of each."""
        service = self._attempt_environment.service
        assert service is not None
        now = self._clock.now()
        for notice in service.notices:
            mark = replace(
                notice, withdrawn_at=None, acknowledged_at=None, reclaim_at=None
            )
            if mark in told or not notice.is_readable(now):
                continue
            if not notice.is_for_us:
                self._news_at = self._news_at or notice.readable_at
                continue
            told.add(mark)
            if self.notice_at_s is None:
                self._mark()
                self.notice_at_s = self.signalled_at_s
                # A hanging GET is answered then, before anything else is done.
                self._news_at = notice.readable_at
            name = service.story.signal
            if name is not None:
                self.signal = name
                # It may have ended between the look and the signal.
                target = self._settings.to
                if _if_it_lives(partial(self._running.signal, name, target)):
                    self._note_sent(name, target)

    def _count_requests(self) -> None:
        service = self._attempt_environment.service
        if service is None or self.notice is None:
            return
        since = self._asked_since()
        refused = [entry for entry in since if entry.is_refusal]
        self.notice = replace(
            self.notice,
            asked=len(service.log),
            asked_after=len(since),
            refused=len(refused),
            refusal=refused[-1].refusal if refused else "",
        )

    def _asked_since(self) -> list[Entry]:
        """Return the requests that were answered after the notice could be read."""
        service = self._attempt_environment.service
        if service is None or self._news_at is None:
            return []
        return [
            entry
            for entry in service.log
            if (entry.answered_at or entry.at) >= self._news_at and not entry.gave_token
        ]

    @property
    def _can_wait(self) -> bool:
        """Whether the training is held at a site, in a window that steps do not end."""
        by_steps = self._settings.grace_steps is not None
        at_site = self._point is not None and self._point.after_s is None
        return at_site and self._upload is None and not by_steps


def _if_it_lives(act: Callable[[], object]) -> bool:
    try:
        act()
    except HarnessError:
        return False
    return True
