"""One attempt from its launch to its halt and its end; who strikes it is `course`."""

from __future__ import annotations

from abc import ABC, abstractmethod

from spotchaos.clock import Clock
from spotchaos.config.plan import KillPoint
from spotchaos.config.settings import Settings
from spotchaos.errors import HarnessError
from spotchaos.injectors.attempt_environment import AttemptEnvironment
from spotchaos.injectors.storage_layer import Hold
from spotchaos.launch.attempt.attempt import Exited, Halted, RunningAttempt
from spotchaos.launch.isolation.workspace import View
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
# How often what is waited for outside the program is looked at.
LOOK_S = 0.05


class AttemptRun(ABC):
    """Waits until an attempt halts where it is to be struck, and bounds every wait."""

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
    ) -> None:
        self._settings = settings
        self._running = running
        self._view = view
        self._point = point
        self._attempt_environment = attempt_environment
        self._clock = clock  # of moments; bounds are by that of the attempt
        self._fair = running.fair_clock
        self._fair_begun_s = self._fair.monotonic() - (clock.monotonic() - begun_s)
        self._hang_s = hang_s
        self._quiet = quiet
        self.begun_s = begun_s
        self.landed: str | None = None
        self.reclaimed_at_s: float | None = None
        self.stacks = ""
        self.trouble: str | None = None
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
        self._upload = self._attempt_environment.hold_upload(point.occurrence)
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
        self._inject()

    def _follow_clock(self, after_s: float) -> None:
        event = self._wait(after_s)
        if event is not None:
            return
        self._running.freeze()
        done = self._steps()
        self.landed = f"step-end:{done}" if done else "start:1"
        self._inject()

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
        self._inject()

    @abstractmethod
    def _inject(self) -> None:
        """Interrupt what has halted, or go on without, and follow it to its end."""

    def _wait(self, timeout_s: float) -> Halted | Exited | None:
        """Return the next event; None if none came in so many seconds of the attempt."""
        return self._running.wait(max(0.0, timeout_s))

    def _remaining_s(self) -> float:
        return self._fair_begun_s + self._hang_s - self._fair.monotonic()

    def _steps(self) -> int:
        return min((s for s, _ in self._running.progress().values()), default=0)

    def _most_steps(self) -> int:
        return max((s for s, _ in self._running.progress().values()), default=0)

    @property
    def _is_gone(self) -> bool:
        return self.reclaimed_at_s is not None

    def _reclaim(self) -> None:
        self._running.reclaim("all")
        self.reclaimed_at_s = self._clock.monotonic()

    # --- bounds ---

    def _hang(self) -> None:
        self._hung = True
        self.stacks = self._running.stacks()
        self._running.reclaim("all")

    def _upload_is_refused(self) -> bool:
        """Tell whether the store has refused an upload that no thread tries again.

        Threads in the background get the time to.
        """
        deadline_s = self._fair.monotonic() + UPLOAD_BOUND_S
        begun_delayed_s = self._fair.delayed_s
        while self._fair.monotonic() < deadline_s:
            waited_s = self._attempt_environment.upload_waited_s()
            delayed_s = self._fair.delayed_s - begun_delayed_s
            if waited_s is None or waited_s - delayed_s >= UPLOAD_RETRY_S:
                return waited_s is not None
            self._clock.sleep(LOOK_S)
        return True

    def _wait_for_quiet(self) -> None:
        """Let background writers finish: no file changes for a while, or the bound."""
        deadline_s = self._fair.monotonic() + QUIET_BOUND_S
        seen, since_s = None, self._fair.monotonic()
        while self._fair.monotonic() < deadline_s:
            now = sorted(self._view.changed())
            if now != seen:
                seen, since_s = now, self._fair.monotonic()
            elif self._fair.monotonic() - since_s >= QUIET_S:
                return
            self._clock.sleep(QUIET_S / 3)
        raise HarnessError(
            f"files below the folder still change {QUIET_BOUND_S:g} s after a save",
            hint="a program that writes for ever has no quiet moment; see --halt run",
        )
