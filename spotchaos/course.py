"""The course of one attempt: wait, halt, strike, and how it ended.

It strikes as the plan says, by signal, notice or kill, and notes what it did and when.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial

from spotchaos.clock import Clock
from spotchaos.errors import HarnessError
from spotchaos.injectors.storage_layer import Hold
from spotchaos.injectors.surroundings import Pace, Surroundings
from spotchaos.launch.attempt import Exited, Halted, RunningAttempt
from spotchaos.launch.workspace import View
from spotchaos.model import Ended, NoticePlayed
from spotchaos.plan import KillPoint
from spotchaos.providers.notice import Follows, Notice
from spotchaos.providers.service import Entry
from spotchaos.settings import Settings
from spotchaos.trace.format import STORE_SITES

# How long other ranks may take to reach their own kill point, or to block, once the
# first has halted. Collectives time out after minutes, a step takes far less.
SETTLE_S = 10.0
# Writes are quiet when no file changed for this long; a background writer of a toy
# finishes in milliseconds, one of gigabytes changes its file's size all the time.
QUIET_S = 0.3
QUIET_BOUND_S = 60.0
# Clients wait up to so long between two tries of one upload, and try for so long in all.
UPLOAD_RETRY_S = 10.0
UPLOAD_BOUND_S = 60.0
# ... and an error of a thread is noticed by the next step or the one after it.
STEPS_TO_NOTICE = 2
DEFAULT_GRACE_S = 30.0
# How long a stopped or hibernated machine stands still: long enough for every clock and
# timer of a program to notice, short enough for peers not to give up.
FROZEN_S = 1.0
# How often a machine that is about to be lost is looked at.
LOOK_S = 0.05
# How long a launcher may take to end once all its ranks have.
LAUNCHER_S = 10.0


class Course:
    """What happens to one attempt from its launch to its end."""

    def __init__(
        self,
        settings: Settings,
        running: RunningAttempt,
        view: View,
        point: KillPoint | None,
        *,
        surroundings: Surroundings,
        clock: Clock,
        hang_s: float,
        quiet: bool,
        begun_s: float,
        pace: Pace | None = None,
        done_before: int = 0,
    ) -> None:
        self._settings = settings
        self._running = running
        self._view = view
        self._point = point
        self._surroundings = surroundings
        self._clock = clock
        self._hang_s = hang_s
        self._quiet = quiet
        self.begun_s = begun_s
        self._pace = pace
        self._done_before = done_before
        self.fired = False
        self.landed: str | None = None
        self.signal: str | None = None
        self.signalled_step: int | None = None
        self.signalled_at_s: float | None = None
        self.notice: NoticePlayed | None = None
        self.notice_at_s: float | None = None
        self._news_at: datetime | None = None  # by the clock of the service
        self.reclaimed_at_s: float | None = None
        self.stacks = ""
        self.trouble: str | None = None
        self.stuck = False
        self._hung = False
        self._upload: Hold | None = None  # held before the store

    def follow(self) -> None:
        """Return when the attempt has ended, by itself or by us."""
        if self._point is not None and self._point.after_s is not None:
            self._follow_clock(self._point.after_s)
            return
        if self._point is not None and self._point.site in STORE_SITES:
            self._follow_store(self._point)
            return
        event = self._wait(self._remaining_s())
        if isinstance(event, Halted):
            self._fire(event)
        elif event is None:
            self._hang()

    def _follow_store(self, point: KillPoint) -> None:
        """Strike while a request waits before the store."""
        self._upload = self._surroundings.hold_upload(point.occurrence)
        while self._upload is not None and not self._upload.is_reached:
            event = self._wait(min(LOOK_S, self._remaining_s()))
            if isinstance(event, Exited):
                return
            if self._remaining_s() <= 0:
                self._hang()
                return
        if self._upload is None:
            self.trouble = "there is no object store whose uploads could be counted"
            self._reclaim()
            return
        self.landed = str(point)
        if self._settings.halt == "freeze":
            self._running.freeze()
        self._strike()

    def _follow_clock(self, after_s: float) -> None:
        event = self._wait(after_s)
        if event is not None:
            return
        self._running.freeze()
        done = self._steps()
        self.landed = f"step-end:{done}" if done else "start:1"
        self._strike()

    @property
    def has_struck(self) -> bool:
        """Whether its kill point was reached, if it had one."""
        return self._point is None or self.fired

    def ended(self) -> Ended:
        """Say how it ended, from who ended it and with which status."""
        if self._hung:
            return Ended.HUNG
        if self.reclaimed_at_s is not None:
            return Ended.RECLAIMED
        was_told = self.signal is not None or self.notice_at_s is not None
        if self._running.exit_code == 0:
            # A signal that a program answers with status 0 did not let it finish; how
            # many steps are missing is the oracle's business. After a mere pause, or
            # advice, it goes on as if nothing had been.
            goes_on = self.signal == "STOP" or (
                self.notice is not None and not self.notice.reclaimed
            )
            return Ended.EXITED if was_told and not goes_on else Ended.FINISHED
        return Ended.EXITED if was_told else Ended.FAILED

    @property
    def whom(self) -> str:
        """Who gets the signal, in the words of `--to`, or "ours": no program's doing."""
        is_ours = self._settings.ranks is not None
        told = self._settings.to
        return "ours" if is_ours and told in {"leader", "launcher"} else told

    def _wait(self, timeout_s: float) -> Halted | Exited | None:
        return self._running.wait(max(0.0, timeout_s))

    def _remaining_s(self) -> float:
        return self.begun_s + self._hang_s - self._clock.monotonic()

    def _steps(self) -> int:
        return min((s for s, _ in self._running.progress().values()), default=0)

    def _most_steps(self) -> int:
        return max((s for s, _ in self._running.progress().values()), default=0)

    def _fire(self, halted: Halted) -> None:
        """Freeze what is to be interrupted, then interrupt it."""
        # The user's own spelling says more than the site (a part, all processes).
        self.landed = str(self._point) if self._point else halted.kill_point
        self._running.settle(halted.kill_point, SETTLE_S)
        if self._point is not None and self._upload_is_refused():
            # It may repeat the upload, or end for it when it next looks.
            self._running.go_on(kill=f"step-end:{self._steps() + STEPS_TO_NOTICE}")
            event = self._wait(self._remaining_s())
            if event is None:
                self._hang()
            if not isinstance(event, Halted):
                return
            self.landed = event.kill_point
            self._running.settle(event.kill_point, SETTLE_S)
        if self._quiet:
            self._wait_for_quiet()
        elif self._settings.halt == "freeze":
            self._running.freeze()
        self._strike()

    def _strike(self) -> None:
        settings = self._settings
        self.fired = True
        if self._quiet:
            self._kill("all")
        elif self._surroundings.service is not None:
            self._give_notice()
        elif settings.signal == "KILL":
            self._kill(settings.to)
        elif settings.signal == "STOP":
            self._stand_still()
        else:
            self._send()

    # --- kills and signals ---

    def _kill(self, whom: str) -> None:
        self.signal = "KILL" if whom != "all" else None
        if whom == "all":
            self._reclaim()
            return
        self._mark()
        alone = self._keep_launcher_out()
        self._running.reclaim(whom)
        # The rest of the attempt lives on, as after the loss of one process; it has the
        # grace window to notice.
        self._let_go()
        self._await_end(
            self._grace_s(), peers=self._strikes_a_rank, launcher_waits=alone
        )

    def _send(self) -> None:
        self.signal = self._settings.signal
        self._mark()
        alone = self._keep_launcher_out()
        self._running.signal(self._settings.signal, self._settings.to)
        self._let_go()
        self._await_end(
            self._grace_s(), peers=self._strikes_a_rank, launcher_waits=alone
        )

    @property
    def _strikes_a_rank(self) -> bool:
        return self._settings.to.startswith("rank:")

    def _keep_launcher_out(self) -> bool:
        """Stop a launcher of ours where one rank is struck; tell whether there is one.

        On the machines of a real job nobody ends the peers of a rank that is gone.
        """
        alone = self._strikes_a_rank and self._settings.ranks is not None
        if alone:
            self._running.signal("STOP", "launcher")
        return alone

    def _stand_still(self) -> None:
        """Stop processes and thaw them: a machine that hibernates, or is paused."""
        self.signal = "STOP"
        self._mark()
        self._running.signal("STOP", self._settings.to)
        self._let_go()
        self._clock.sleep(FROZEN_S)
        self._running.signal("CONT", self._settings.to)
        self._await_end(self._grace_s())

    def _mark(self) -> None:
        self.signalled_step = self._steps()
        self.signalled_at_s = self._clock.monotonic()

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
        if self._surroundings.service is None:
            return True
        return (
            self.notice_at_s is not None
            and self.notice is not None
            and self.notice.reclaimed
        )

    def _reclaim(self) -> None:
        self._running.reclaim("all")
        self.reclaimed_at_s = self._clock.monotonic()

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
        now_s = self._clock.monotonic()
        deadline_s = now_s + grace_s
        # Whoever makes no step in the second half of the window waits for something.
        looks_at_s = now_s + grace_s / 2
        seen: int | None = None
        in_steps = self._settings.grace_steps is not None
        while True:
            now_s = self._clock.monotonic()
            if peers and seen is None and now_s >= looks_at_s:
                seen = self._most_steps()
            until_s = looks_at_s if peers and seen is None else deadline_s
            if launcher_waits:
                until_s = min(until_s, now_s + LOOK_S)
            event = self._wait(until_s - now_s)
            if launcher_waits and not self._running.ranks_alive():
                launcher_waits = False
                _if_it_lives(partial(self._running.signal, "CONT", "launcher"))
                deadline_s = max(deadline_s, self._clock.monotonic() + LAUNCHER_S)
            if isinstance(event, Exited):
                return
            if isinstance(event, Halted) and not in_steps:
                self._running.go_on(event.rank)
            elif isinstance(event, Halted) or self._clock.monotonic() >= deadline_s:
                if seen is not None and self._most_steps() == seen:
                    self.stuck = True
                    self.stacks = self._running.stacks()
                self._reclaim()
                return

    # --- notices ---

    def _give_notice(self) -> None:
        """Let the story of the notice begin now, and follow it to its end."""
        service = self._surroundings.service
        assert service is not None
        done = self._done_before + self._steps()
        self.notice = self._surroundings.announce(
            self._pace, done=done, is_patient=self._can_wait
        )
        told: set[Notice] = set()
        paused: set[Notice] = set()
        self._tell(told)
        # Who trains waits at its kill point; threads and processes beside it go on.
        waits_until_s = self._clock.monotonic() + self._surroundings.patience_s
        waits = self._surroundings.patience_s > 0 and bool(told)
        if waits:
            self._running.thaw()
        else:
            self._let_go()
        in_steps = self._counts_in_steps
        while True:
            now = self._clock.now()
            due = [n for n in service.notices if n.reclaim_at and now >= n.reclaim_at]
            if not in_steps and any(n.follows is Follows.RECLAIM for n in due):
                self._reclaim()
                break
            for notice in due:
                mark = replace(notice, acknowledged_at=None, reclaim_at=None)
                if notice.follows is Follows.FREEZE and mark not in paused:
                    paused.add(mark)
                    self._running.freeze()
                    self._clock.sleep(FROZEN_S)
                    self._running.thaw()
            if waits and (
                any(not entry.is_refusal for entry in self._asked_since())
                or self._clock.monotonic() >= waits_until_s
            ):
                waits = False
                self._let_go()
            event = self._wait(LOOK_S)
            if isinstance(event, Exited):
                break
            if isinstance(event, Halted) and in_steps:
                self._reclaim()
                # That step is the deadline, however long it took to get there.
                at_s = min(self.notice.deadline_at_s, self.reclaimed_at_s or 0.0)
                self.notice = replace(self.notice, deadline_at_s=at_s)
                break
            if isinstance(event, Halted):
                self._running.go_on(event.rank)
            self._tell(told)
            if self._remaining_s() <= 0:
                self._hang()
                break
        self._count_requests()

    def _tell(self, told: set[Notice]) -> None:
        """Note which notices can be read by now, and send the signal of each."""
        service = self._surroundings.service
        assert service is not None
        now = self._clock.now()
        for notice in service.notices:
            mark = replace(
                notice, withdrawn_at=None, acknowledged_at=None, reclaim_at=None
            )
            if not notice.is_for_us or mark in told or not notice.is_readable(now):
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
                _if_it_lives(partial(self._running.signal, name, self._settings.to))

    def _count_requests(self) -> None:
        service = self._surroundings.service
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
        service = self._surroundings.service
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

    # --- bounds ---

    def _hang(self) -> None:
        self._hung = True
        self.stacks = self._running.stacks()
        self._running.reclaim("all")

    def _upload_is_refused(self) -> bool:
        """Tell whether the store has refused an upload that no thread tries again.

        Threads in the background get the time to.
        """
        deadline_s = self._clock.monotonic() + UPLOAD_BOUND_S
        while self._clock.monotonic() < deadline_s:
            waited_s = self._surroundings.upload_waited_s()
            if waited_s is None or waited_s >= UPLOAD_RETRY_S:
                return waited_s is not None
            self._clock.sleep(LOOK_S)
        return True

    def _wait_for_quiet(self) -> None:
        """Let background writers finish: no file changes for a while, or the bound."""
        deadline_s = self._clock.monotonic() + QUIET_BOUND_S
        seen, since_s = None, self._clock.monotonic()
        while self._clock.monotonic() < deadline_s:
            now = sorted(self._view.changed())
            if now != seen:
                seen, since_s = now, self._clock.monotonic()
            elif self._clock.monotonic() - since_s >= QUIET_S:
                return
            self._clock.sleep(QUIET_S / 3)
        raise HarnessError(
            f"files below the folder still change {QUIET_BOUND_S:g} s after a save",
            hint="a program that writes for ever has no quiet moment; see --halt run",
        )


def _if_it_lives(act: Callable[[], object]) -> None:
    try:
        act()
    except HarnessError:
        return
