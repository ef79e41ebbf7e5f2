"""One launch of the program, seen and steered from outside."""

from __future__ import annotations

import atexit
import contextlib
import select
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotchaos.clock import Clock
from spotchaos.errors import HarnessError
from spotchaos.launch.attempt.conversation import Conversation, Hello
from spotchaos.launch.attempt.fair_clock import FairClock
from spotchaos.launch.attempt.freezing import Freezer, Stillness
from spotchaos.launch.attempt.liveness import Pages, collect_stacks
from spotchaos.launch.attempt.outer import Outer
from spotchaos.launch.attempt.output import bound, denied_paths, keep_of, tail
from spotchaos.launch.attempt.spec import INJECTED
from spotchaos.launch.attempt.targets import targets_of
from spotchaos.launch.isolation import process_tree
from spotchaos.launch.isolation.leaving import LEAVING
from spotchaos.launch.isolation.process_tree import Process, any_lives
from spotchaos.launch.isolation.program import Program
from spotchaos.launch.isolation.workspace import View
from spotchaos.launch.zygote.zygote import Warm

# A cold start of our two processes takes 0.1 s; a loaded machine ten times that.
START_BOUND_S = 60.0
END_BOUND_S = 20.0
LOOK_EVERY_S, POLL_S = 0.5, 0.01  # at delays and the output's size; at what settles


@dataclass(frozen=True, slots=True)
class Halted:
    """A rank holds still at its kill point."""

    kill_point: str
    rank: int
    pid: int  # as the program sees it
    step: int


@dataclass(frozen=True, slots=True)
class Exited:
    """The program's first process ended: its exit status, negative for a signal."""

    status: int


_RUNNING: set[RunningAttempt] = set()


def end_everything() -> None:
    """End every attempt of this process; for exits that skip `close`."""
    for running in list(_RUNNING):
        running.end()


atexit.register(end_everything)


class RunningAttempt:
    """An attempt that was launched; made by `starting.launch`."""

    def __init__(
        self, program: Program, view: View, folder: Path, clock: Clock
    ) -> None:
        self.program = program
        self.view = view
        self.folder = folder  # where the harness keeps what belongs to the attempt
        self.trace_folder = folder / "trace"
        self.oplog = folder / "ops"  # there if file ops are supervised
        self.exit_code: int | None = None  # None: killed by us, or not ended
        self.wall_s = 0.0
        self.cpu_s = 0.0
        self.survivors: tuple[str, ...] = ()
        self.notified_rank = True  # False: the last signal went past every rank
        self.is_deaf = False  # every rank that the last signal went to ignores it
        self.ports: tuple[tuple[str, int], ...] = ()  # at which survivors listen
        self.readonly: tuple[str, ...] = ()  # mounts that could not be made private
        self._own_listeners: list[socket.socket] = []  # in the machine's own network
        self._clock = clock
        self._begun_s = clock.monotonic()
        self._lock = threading.RLock()
        self._events: deque[Halted | Exited] = deque()
        self._outer: Outer | None = None
        self._group: Path | None = None
        self._init: int | None = None
        self._leader: int | None = None  # as the program sees it
        self._leader_group: int | None = None  # here
        self._supervisor: int | None = None
        self._ended_at_s: float | None = None
        self._exit_reported = False
        self._gone = False
        self._reclaimed = False
        self._refusal: str | None = None
        self._conversation = Conversation(folder / "s")
        self.fair_clock = FairClock(clock, lambda: None if self._gone else self._outer)
        self._freezer = Freezer(self.members, self.fair_clock)
        self._pages = Pages(self.trace_folder)
        self._before: frozenset[int] = frozenset()  # who trained at the first signal
        self._kept = False

    # --- beginning ---

    def begin(self, spec: dict[str, Any], warm: Warm | None = None) -> None:
        """Start the attempt's own two processes and wait until the program runs."""
        self._group = None if spec["cgroup"] is None else Path(spec["cgroup"])
        self._freezer.group = self._group
        _RUNNING.add(self)
        self.view.workspace.ends.add(self.end)
        self._outer = Outer(spec, self.folder / "inside.err", warm)
        self.view.workspace.demand_open()  # or `end` came too early to end it
        self._until(
            lambda: self._leader is not None or self._gone, START_BOUND_S, "start"
        )
        if self._leader is None:
            reason = self._refusal or self._outer.last_words()
            raise HarnessError(
                f"could not start an attempt: {reason or 'its first process ended'}",
                hint="`spotchaos doctor` says what this machine can do",
            )

    def listen(self, places: Sequence[tuple[str, int]]) -> None:
        """Open sockets in the machine's own network, for an attempt without one."""
        self._own_listeners += [socket.create_server(place) for place in places]

    @property
    def listeners(self) -> list[socket.socket]:
        """Sockets of ours that the program reaches, in the order asked for."""
        inside = [] if self._outer is None else self._outer.listeners
        return [*self._own_listeners, *inside]

    # --- waiting ---

    def wait(self, timeout_s: float | None = None) -> Halted | Exited | None:
        """Return the next event; None if none came in `timeout_s` seconds of its clock.

        Raises:
            HarnessError: the attempt vanished although nobody ended it.
        """
        deadline_s = None
        if timeout_s is not None:
            deadline_s = self.fair_clock.monotonic() + timeout_s
        while True:
            with self._lock:
                self._pump(0.0)
                if self._events:
                    return self._events.popleft()
                if self._gone:
                    if self._reclaimed or self._exit_reported:
                        return None
                    raise HarnessError(
                        "an attempt vanished although nobody ended it",
                        hint="was it out of memory? see the kernel's log",
                    )
            bound(self.folder / "output")
            left_s = LOOK_EVERY_S
            now_s = self.fair_clock.monotonic()
            if deadline_s is not None:
                left_s = deadline_s - now_s
                if left_s <= 0:
                    return None
            self._wait_readable(min(left_s, LOOK_EVERY_S))

    def _until(self, condition: Callable[[], bool], bound_s: float, what: str) -> None:
        """Take in what comes until the condition holds.

        Raises:
            HarnessError: it does not within `bound_s` seconds.
        """
        deadline_s = self.fair_clock.monotonic() + bound_s
        while True:
            with self._lock:
                self._pump(0.0)
                if condition():
                    return
            left_s = deadline_s - self.fair_clock.monotonic()
            if left_s <= 0:
                raise HarnessError(f"an attempt did not {what} within {bound_s:g} s")
            self._wait_readable(min(left_s, 0.5))

    def _wait_readable(self, timeout_s: float) -> None:
        sources = self._conversation.sources()
        if self._outer is not None and not self._gone:
            sources += self._outer.sources()
        poller = select.poll()
        for descriptor in sources:
            poller.register(descriptor, select.POLLIN)
        poller.poll(max(0.0, timeout_s) * 1000)

    def _pump(self, timeout_s: float) -> None:
        """Take in every report and every line that has arrived."""
        if timeout_s:
            self._wait_readable(timeout_s)
        for halt in self._conversation.receive():
            self._events.append(Halted(halt.point, halt.rank, halt.pid, halt.step))
        if self._outer is not None and not self._gone:
            for report in self._outer.reports():
                self._take(report)
            if self._outer.is_silent:
                self._note_gone()

    def _take(self, report: dict[str, Any]) -> None:
        if "error" in report:
            self._refusal = report["error"]
        if "init" in report:
            self._init = report["init"]
        if "leader" in report:
            self._leader = report["leader"]
            self._supervisor = report["supervisor"]
            self.readonly = tuple(report["refused"])
            leader = self._process_of(self._leader)
            self._leader_group = None if leader is None else leader.pid
        if "ended" in report:
            self.exit_code = report["ended"]
            self._note_end()
        if "survivors" in report and not self._exit_reported:
            self._exit_reported = True
            self.survivors = tuple(
                f"pid {pid}: {' '.join(argv) or '(no command line)'}"
                for pid, argv in report["survivors"]
            )
            said = dict(report["survivors"])
            self.ports = tuple(
                (" ".join(said[pid]), port)
                for pid, ports in report["ports"]
                for port in ports
            )
            if self.exit_code is not None:
                self._events.append(Exited(self.exit_code))
        if "gone" in report:
            self.cpu_s = report["cpu_s"]
            if report["left"]:
                self.survivors = tuple(f"pid {pid}" for pid in report["left"])
            self._note_gone()

    def _note_end(self) -> None:
        if self._ended_at_s is None:
            self._ended_at_s = self._clock.monotonic()
            self.wall_s = self._ended_at_s - self._begun_s

    def _note_gone(self) -> None:
        self._gone = True
        self._note_end()

    # --- watching ---

    def progress(self) -> Mapping[int, tuple[int, Mapping[str, int]]]:
        """Return, for each rank, the steps done and how often each site was reached."""
        with self._lock:
            self._pump(0.0)
            ranks = {hello.pid: rank for rank, hello in self._ranks().items()}
        return self._pages.by_rank(ranks)

    def _ranks(self) -> dict[int, Hello]:
        """Return who trains: the processes that belong to the largest world."""
        hellos = list(self._conversation.hellos.values())
        size = max((hello.world_size for hello in hellos), default=1)
        return {h.rank: h for h in hellos if h.world_size == size}

    def _trainers(self) -> list[int]:
        return [hello.host_pid for hello in self._ranks().values()]

    def ranks_alive(self) -> bool:
        """Tell whether any process that trains still lives."""
        with self._lock:
            self._pump(0.0)
            return any_lives(self._trainers())

    def settle(self, kill_point: str, bound_s: float) -> bool:
        """Wait until every other rank holds at its own kill point, or is blocked.

        Args:
            kill_point: where the first rank halted; with `@RANK` only that one does,
                and the others need not hold.
            bound_s: seconds to wait at most.

        Returns:
            Whether all had settled within the bound.
        """
        if "@" in kill_point:
            return True
        deadline_s = self.fair_clock.monotonic() + bound_s
        stillness = Stillness(self.fair_clock)
        while True:
            with self._lock:
                self._pump(0.0)
                held = self._conversation.holding()
                others = [h for r, h in self._ranks().items() if r not in held]
            now_s = self.fair_clock.monotonic()
            if stillness.all_hold([hello.host_pid for hello in others]):
                return True
            if now_s >= deadline_s:
                return False
            self._wait_readable(POLL_S)

    def members(self) -> list[Process]:
        """Return every live process of the program, the supervisor of files left out."""
        if self._init is None or self._gone:
            return []
        found = process_tree.processes_below(self._init)
        return [p for p in found if p.inner_pid != self._supervisor]

    def _process_of(self, inner_pid: int | None) -> Process | None:
        return next((p for p in self.members() if p.inner_pid == inner_pid), None)

    @property
    def over_at_s(self) -> float | None:
        """When the first process was seen to have ended by itself; None: it did not."""
        return None if self.exit_code is None else self._ended_at_s

    @property
    def output_tail(self) -> str:
        """The last lines of what the program printed."""
        return tail(self.folder / "output")

    @property
    def refused_write(self) -> str | None:
        """A path that isolation did not let the program write to; None: none is known."""
        for path in denied_paths(self.output_tail):
            if self.view.is_refused(Path(path), also=self.readonly):
                return path
        return None

    def stacks(self) -> str:
        """Ask every Python process of the program where it is; return what they say."""
        ranks = {hello.pid: rank for rank, hello in self._ranks().items()}
        return collect_stacks(
            self.members(), self.trace_folder, ranks=ranks, clock=self.fair_clock
        )

    # --- steering ---

    def freeze(self) -> None:
        """Stop every process of the program, and confirm that each is.

        Raises:
            HarnessError: one of them does not stop.
        """
        self._freezer.freeze()

    def thaw(self) -> None:
        """Let go of what `freeze` stopped."""
        self._freezer.thaw()

    def signal(self, name: str, target: str = "all") -> int:
        """Send a signal from outside.

        Args:
            name: without SIG: "TERM", "USR1", "STOP".
            target: "all", "leader", "group", "launcher", "workers" or "rank:R".

        Returns:
            How many processes it was sent to.

        Raises:
            HarnessError: nobody answers to `target`.
        """
        targets = self._targets(target)
        number = signal.Signals[f"SIG{name}"]
        with self._lock:
            told = set(self._trainers()) & set(targets)
        self.notified_rank = bool(told)
        self.is_deaf = process_tree.all_ignore(told, number)
        if number == signal.SIGSTOP:
            self._freezer.leave_stopped(targets)
        return process_tree.send(targets, number)

    def report_injected(self) -> None:
        """Count sites and ranks anew, for what follows the first signal."""
        (self.folder / INJECTED).touch()
        self._pages.inject()
        with self._lock:
            self._before = frozenset(self._conversation.hellos)

    def is_restarted(self) -> bool:
        """Tell whether a launcher has begun the ranks anew since `report_injected`."""
        with self._lock:
            self._pump(0.0)
            now = self._trainers()
        return bool(now) and self._before.isdisjoint(now) and any_lives(now)

    def go_on(self, rank: int | None = None, *, kill: str | None = None) -> None:
        """Release halted ranks.

        Args:
            rank: only this one; None: all.
            kill: the next kill point, told to whoever is released.
        """
        with self._lock:
            self._pump(0.0)
            self._conversation.release(rank, kill=kill)

    def reclaim(self, target: str = "all") -> None:
        """Take processes away with SIGKILL and prove that they are gone.

        Args:
            target: "all", as on a reclaimed machine, or as in `signal`.

        Raises:
            HarnessError: something still lives.
        """
        if target != "all":
            targets = self._targets(target)
            process_tree.send(targets, signal.SIGKILL)
            self._until(lambda: not any_lives(targets), END_BOUND_S, "lose a process")
            return
        self._reclaimed = True
        if self._init is not None and not self._gone:
            if "pid" not in self.view.workspace.mechanisms.namespaces:
                # Nobody may run on while the others are being killed one by one, by the
                # outer process, once the init is gone.
                with contextlib.suppress(HarnessError):
                    self.freeze()
            process_tree.send([self._init], signal.SIGKILL)
        self._until(lambda: self._gone, END_BOUND_S, "end")
        if self._outer is not None:
            self._outer.wait(END_BOUND_S)
        if self.survivors and self.exit_code is None:
            raise HarnessError(
                f"processes outlived their reclaim: {', '.join(self.survivors)}",
                hint="end them by hand; a PID namespace would have",
            )

    def end_leftovers(self) -> int:
        """Kill what outlived the program's own end; return how many there were."""
        return process_tree.send([p.pid for p in self.members()], signal.SIGKILL)

    def _targets(self, target: str) -> list[int]:
        with self._lock:
            self._pump(0.0)
            ranks = {rank: hello.host_pid for rank, hello in self._ranks().items()}
        return targets_of(
            target,
            self.members(),
            leader=self._leader,
            leader_group=self._leader_group,
            ranks=ranks,
        )

    # --- ending ---

    def end(self) -> None:
        """End the attempt at once, from any thread; `close` does the rest."""
        self._reclaimed = True
        if self._outer is not None:
            self._outer.end(END_BOUND_S)

    def close(self) -> None:
        """End what still runs and let go of everything; the trace stays with the view."""
        if self._init is not None and not self._gone:  # else all hangs on the lifeline
            try:
                self.reclaim("all")
            except HarnessError:
                self.end()
        self.end()
        with self._lock:
            self._conversation.close()
            self._pages.close()
            for listener in self._own_listeners:
                listener.close()
            if self._outer is not None:
                self._outer.close()
            self._gone = True
        if self._group is not None:
            with contextlib.suppress(OSError):
                self._group.rmdir()
            LEAVING.forget(self._group)
        _RUNNING.discard(self)
        self.view.workspace.ends.discard(self.end)
        self._keep()

    def _keep(self) -> None:
        """Copy trace and output to where the user wants them kept."""
        keep = self.view.workspace.keep
        if keep is not None and not self._kept:
            self._kept = True
            name = self.folder.name.replace("a", "attempt-")
            keep_of(self.folder, keep / self.view.name / name)
