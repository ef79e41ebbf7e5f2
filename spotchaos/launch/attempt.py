"""One launch of the program, seen and steered from outside."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotchaos.clock import Clock, SystemClock
from spotchaos.errors import HarnessError
from spotchaos.launch import process_tree
from spotchaos.launch.addresses import free_port, own_addresses
from spotchaos.launch.conversation import Conversation, Hello
from spotchaos.launch.environment import environment_of
from spotchaos.launch.process_tree import Process
from spotchaos.launch.program import Program
from spotchaos.launch.workspace import LEAST_FREE_BYTES, View
from spotchaos.launch.zygote import Forked, Warm
from spotchaos.trace.format import (
    PROBE_SITES,
    STEPS_SLOT,
    Counters,
    site_slot,
)

INSIDE = Path(__file__).with_name("inside.py")
# A cold start of our two processes takes 0.1 s; a loaded machine ten times that.
START_BOUND_S = 60.0
END_BOUND_S = 20.0
FREEZE_BOUND_S = 5.0
# What is blocked without using the processor for this long, holds.
BLOCKED_S = 0.2
POLL_S = 0.01
STACKS_BOUND_S = 3.0
TAIL_LINES = 60
TAIL_BYTES = 64 << 10
STACKS_SIGNAL = signal.SIGRTMIN + 10
MASTER_PORT = 29500
# Pids of two attempts must not be the same by chance, nor grow without bound.
FIRST_PID, PIDS_APART, PID_ROUNDS = 300, 1000, 25


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


def launch(
    program: Program,
    view: View,
    *,
    number: int,
    orders: Mapping[str, Any],
    command: Sequence[str] | None = None,
    environment: Mapping[str, str] | None = None,
    addresses: Sequence[str] = (),
    listen: Sequence[tuple[str, int]] = (),
    supervisor: Mapping[str, Any] | None = None,
    warm: Warm | None = None,
    clock: Clock | None = None,
) -> RunningAttempt:
    """Start the program in a view, isolated, and return once it has begun.

    Args:
        program: what, where and with what.
        view: what it sees of the machine.
        number: of the attempt within its trial, from 1.
        orders: for the probe (`trace.format.ORDERS`); where it finds us is added.
        command: instead of the program's own.
        environment: variables on top, such as the addresses of fakes.
        addresses: further addresses of the loopback device, such as a cloud's own.
        listen: where sockets of ours listen inside the attempt's network; they are
            returned in `RunningAttempt.listeners`, in this order.
        supervisor: of file operations, as `inside.SPEC` has it.
        warm: the zygote that forks it, and as what; None starts fresh processes.
        clock: for waits; the system's if left out.

    Raises:
        HarnessError: the machine refused something, or space is short.
    """
    view.workspace.demand_space()
    folder = view.attempt_folder(number)
    trace = folder / "trace"
    trace.mkdir()
    running = RunningAttempt(program, view, folder, clock or SystemClock())
    try:
        spec = _spec(
            program,
            view,
            folder,
            number=number,
            orders=orders,
            command=command,
            environment=environment or {},
            addresses=addresses,
            listen=listen,
            supervisor=supervisor,
        )
        if warm is not None and warm.start.ranks is not None:
            spec["ranks"] = warm.start.ranks
        running.begin(spec, warm)
    except BaseException:
        running.close()
        raise
    return running


def _spec(
    program: Program,
    view: View,
    folder: Path,
    *,
    number: int,
    orders: Mapping[str, Any],
    command: Sequence[str] | None,
    environment: Mapping[str, str],
    addresses: Sequence[str],
    listen: Sequence[tuple[str, int]],
    supervisor: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Write the orders, and return everything that the attempt's init must know."""
    mechanisms = view.workspace.mechanisms
    names = mechanisms.namespaces
    if program.allow_network and "network" in names:
        names.remove("network")
    has_network = "network" not in names
    own_folder = view.folder if mechanisms.mount_namespace else view.place / "copy"
    orders_file = folder / "orders.json"
    orders_file.write_text(
        json.dumps(
            {
                "threads": program.threads,
                "allow_network": program.allow_network,
                **orders,
                "attempt": number,
                "socket": str(folder / "s"),
                "trace": str(folder / "trace"),
                "folder": str(own_folder),
            }
        )
    )
    group = None
    if mechanisms.control_group is not None:
        group = mechanisms.control_group / f"spotchaos-{os.getpid()}-{id(view):x}"
        group = group.with_name(f"{group.name}-{number}-{folder.parent.name}")
        group.mkdir(exist_ok=True)
    private = environment_of(
        program,
        orders=orders_file,
        temporary=view.temporary,
        generation=view.generation,
        host_name=view.host_name,
        offline=not has_network,
        extra=environment,
    )
    return {
        "unshare": names,
        "root": None if view.root() is None else str(view.root()),
        "mounts": view.mount_steps(folder, tmp_elsewhere=program.tmp_elsewhere)
        if mechanisms.mount_namespace
        else [],
        "host_name": view.host_name,
        "addresses": [*own_addresses(), *addresses],
        "listen": [] if has_network else [list(place) for place in listen],
        "last_pid": FIRST_PID + number % PID_ROUNDS * PIDS_APART,
        "cgroup": None if group is None else str(group),
        "clean": view.workspace.places,
        "command": _command(command or program.command, view),
        "environment": private,
        "folder": str(own_folder),
        "output": str(folder / "output"),
        "pty": program.pty,
        "ranks": program.ranks,
        "master_port": free_port() if has_network else MASTER_PORT,
        "supervisor": None if supervisor is None else dict(supervisor),
    }


def _command(command: Sequence[str], view: View) -> list[str]:
    """Fill in `{out}`, and the new path of a working folder that has moved."""
    old, new = str(view.workspace.folder), str(view.folder)
    filled = [word.replace("{out}", str(view.out)) for word in command]
    if old == new:
        return filled
    return [re.sub(re.escape(old) + r"(?![^/:=,])", new, word) for word in filled]


class RunningAttempt:
    """An attempt that was launched; made by `launch`."""

    def __init__(
        self, program: Program, view: View, folder: Path, clock: Clock
    ) -> None:
        self.program = program
        self.view = view
        self.folder = folder  # where the harness keeps what belongs to the attempt
        self.trace_folder = folder / "trace"
        self.exit_code: int | None = None  # None: killed by us, or not ended
        self.wall_s = 0.0
        self.cpu_s = 0.0
        self.survivors: tuple[str, ...] = ()
        self.readonly: tuple[str, ...] = ()  # mounts that could not be made private
        self.listeners: list[socket.socket] = []
        self._clock = clock
        self._begun_s = clock.monotonic()
        self._lock = threading.RLock()
        self._events: deque[Halted | Exited] = deque()
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self._lifeline: int | None = None
        self._control: socket.socket | None = None
        self._group: Path | None = None
        self._init: int | None = None
        self._leader: int | None = None  # as the program sees it
        self._leader_group: int | None = None  # here
        self._supervisor: int | None = None
        self._ended_at_s: float | None = None
        self._exit_told = False
        self._gone = False
        self._reclaimed = False
        self._refusal: str | None = None
        self._frozen: set[int] = set()
        self._is_frozen = False
        self._conversation = Conversation(folder / "s")
        self._counters: dict[str, Counters] = {}
        self._kept = False

    # --- beginning ---

    def begin(self, spec: dict[str, Any], warm: Warm | None = None) -> None:
        """Start the attempt's own two processes and wait until the program runs."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(0.0)  # recv_fds of Python 3.11 ignores its flags
        self._control = ours
        reader, self._lifeline = os.pipe()
        self._group = None if spec["cgroup"] is None else Path(spec["cgroup"])
        described = os.memfd_create("spotchaos-spec")
        try:
            content = {**spec, "control": theirs.fileno(), "lifeline": reader}
            with os.fdopen(os.dup(described), "w") as file:
                json.dump(content, file)
            os.lseek(described, 0, os.SEEK_SET)
            _RUNNING.add(self)
            self.view.workspace.ends.add(self.end)
            with (self.folder / "inside.err").open("wb") as complaints:
                if warm is not None:
                    self._process = warm.zygote.fork(
                        warm.start,
                        spec=described,
                        control=theirs.fileno(),
                        lifeline=reader,
                        complaints=complaints.fileno(),
                    )
                else:
                    self._process = subprocess.Popen(
                        [sys.executable, "-I", "-S", str(INSIDE), str(described)],
                        pass_fds=(described, theirs.fileno(), reader),
                        start_new_session=True,
                        stdin=subprocess.DEVNULL,
                        stdout=complaints,
                        stderr=complaints,
                        cwd="/",
                    )
        finally:
            os.close(described)
            os.close(reader)
            theirs.close()
        self._until(
            lambda: self._leader is not None or self._gone, START_BOUND_S, "start"
        )
        if self._leader is None:
            raise self._start_error()

    def _start_error(self) -> HarnessError:
        reason = self._refusal
        if reason is None:
            with contextlib.suppress(OSError):
                lines = (self.folder / "inside.err").read_text().splitlines()
                reason = lines[-1] if lines else None
        return HarnessError(
            f"could not start an attempt: {reason or 'its first process ended'}",
            hint="`spotchaos doctor` says what this machine can do",
        )

    # --- waiting ---

    def wait(self, timeout_s: float | None = None) -> Halted | Exited | None:
        """Return the next event; None if none came within `timeout_s` seconds.

        Raises:
            HarnessError: the attempt vanished although nobody ended it.
        """
        deadline_s = None
        if timeout_s is not None:
            deadline_s = self._clock.monotonic() + timeout_s
        while True:
            with self._lock:
                self._pump(0.0)
                if self._events:
                    return self._events.popleft()
                if self._gone:
                    if self._reclaimed or self._exit_told:
                        return None
                    raise HarnessError(
                        "an attempt vanished although nobody ended it",
                        hint="was it out of memory? see the kernel's log",
                    )
            left_s = 3600.0
            if deadline_s is not None:
                left_s = deadline_s - self._clock.monotonic()
                if left_s <= 0:
                    return None
            self._wait_readable(left_s)

    def _until(self, condition: Callable[[], bool], bound_s: float, what: str) -> None:
        """Take in what comes until the condition holds.

        Raises:
            HarnessError: it does not within `bound_s` seconds.
        """
        deadline_s = self._clock.monotonic() + bound_s
        while True:
            with self._lock:
                self._pump(0.0)
                if condition():
                    return
            left_s = deadline_s - self._clock.monotonic()
            if left_s <= 0:
                raise HarnessError(
                    f"an attempt did not {what} within {bound_s:g} s",
                    hint="is the machine overloaded?",
                )
            self._wait_readable(min(left_s, 0.5))

    def _wait_readable(self, timeout_s: float) -> None:
        sources = self._conversation.sources()
        if self._control is not None and not self._gone:
            sources.append(self._control.fileno())
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
        while self._control is not None and not self._gone:
            try:
                content, descriptors, _, _ = socket.recv_fds(self._control, 1 << 20, 64)
            except BlockingIOError:
                break
            self.listeners += [socket.socket(fileno=number) for number in descriptors]
            if not content:
                self._note_gone()
                break
            self._take(json.loads(content))

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
        if "survivors" in report and not self._exit_told:
            self._exit_told = True
            self.survivors = tuple(
                f"pid {pid}: {' '.join(argv) or '(no command line)'}"
                for pid, argv in report["survivors"]
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
        found: dict[int, tuple[int, Mapping[str, int]]] = {}
        for path in self.trace_folder.glob("*.counters"):
            rank = ranks.get(int(path.name.partition("-")[0]))
            page = self._page(path)
            if rank is None or page is None:
                continue
            steps = page.get(STEPS_SLOT)
            if rank not in found or steps >= found[rank][0]:
                sites = {site: page.get(site_slot(site)) for site in PROBE_SITES}
                found[rank] = (steps, sites)
        return found

    def _page(self, path: Path) -> Counters | None:
        if path.name not in self._counters:
            try:
                self._counters[path.name] = Counters(str(path))
            except (OSError, ValueError):  # not yet as long as a page
                return None
        return self._counters[path.name]

    def _ranks(self) -> dict[int, Hello]:
        """Return who trains: the processes that belong to the largest world."""
        hellos = list(self._conversation.hellos.values())
        size = max((hello.world_size for hello in hellos), default=1)
        return {h.rank: h for h in hellos if h.world_size == size}

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
        deadline_s = self._clock.monotonic() + bound_s
        before: dict[int, tuple[int, float]] = {}
        while True:
            with self._lock:
                self._pump(0.0)
                held = self._conversation.holding()
                others = [h for r, h in self._ranks().items() if r not in held]
            now_s = self._clock.monotonic()
            if all(self._is_blocked(h.host_pid, before, now_s) for h in others):
                return True
            if now_s >= deadline_s:
                return False
            self._wait_readable(POLL_S)

    def _is_blocked(
        self, pid: int, before: dict[int, tuple[int, float]], now_s: float
    ) -> bool:
        process = process_tree.read_process(pid)
        if process is None:
            return True
        ticks, since_s = before.setdefault(pid, (process.cpu_ticks, now_s))
        if ticks != process.cpu_ticks or process.state == "R":
            before[pid] = (process.cpu_ticks, now_s)
            return False
        return now_s - since_s >= BLOCKED_S

    def members(self) -> list[Process]:
        """Return every live process of the program, the supervisor of files left out."""
        if self._init is None or self._gone:
            return []
        found = process_tree.processes_below(self._init)
        return [p for p in found if p.inner_pid != self._supervisor]

    def _process_of(self, inner_pid: int | None) -> Process | None:
        return next((p for p in self.members() if p.inner_pid == inner_pid), None)

    @property
    def leader_pid(self) -> int | None:
        """Pid of the program's first process, here; None once it has ended."""
        leader = self._process_of(self._leader)
        return None if leader is None else leader.pid

    @property
    def output_tail(self) -> str:
        """The last lines of what the program printed."""
        try:
            with (self.folder / "output").open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return ""
        lines = text.replace("\r\n", "\n").split("\n")
        return "\n".join(lines[-TAIL_LINES - 1 :]).rstrip("\n")

    @property
    def refused_write(self) -> str | None:
        """A path that isolation did not let the program write to; None: none is known."""
        for path in re.findall(r"Read-only file system: '([^']+)'", self.output_tail):
            if self.view.is_refused(Path(path), also=self.readonly):
                return str(path)
        return None

    @property
    def trouble(self) -> str | None:
        """What went wrong on our side and may look like the program's doing."""
        free = shutil.disk_usage(self.view.workspace.scratch).free
        if free < LEAST_FREE_BYTES // 8:
            return (
                f"the disk of {str(self.view.workspace.scratch)!r}, where private "
                "copies of what the program writes go, is full"
            )
        return None

    def stacks(self) -> str:
        """Ask every Python process of the program where it is; return what they say."""
        asked = {}
        for process in self.members():
            if process_tree.catches(process.pid, STACKS_SIGNAL):
                path = self.trace_folder / f"{process.inner_pid}.stacks"
                asked[process.inner_pid] = path
                process_tree.send([process.pid], STACKS_SIGNAL)
        deadline_s = self._clock.monotonic() + STACKS_BOUND_S
        sizes: dict[int, int] = {}
        while asked and self._clock.monotonic() < deadline_s:
            self._clock.sleep(POLL_S * 5)
            now = {pid: _size(path) for pid, path in asked.items()}
            if now == sizes and all(now.values()):
                break
            sizes = now
        ranks = {hello.pid: rank for rank, hello in self._ranks().items()}
        parts = []
        for pid, path in sorted(asked.items()):
            with contextlib.suppress(OSError):
                who = f"rank {ranks[pid]}, pid {pid}" if pid in ranks else f"pid {pid}"
                parts.append(f"{who}:\n{path.read_text(errors='replace').rstrip()}")
        return "\n\n".join(parts)

    # --- steering ---

    def freeze(self) -> None:
        """Stop every process of the program, and confirm that each is.

        Raises:
            HarnessError: one of them does not stop.
        """
        self._is_frozen = True
        if self._group is not None:
            (self._group / "cgroup.freeze").write_text("1")
        deadline_s = self._clock.monotonic() + FREEZE_BOUND_S
        before: dict[int, tuple[int, float]] = {}
        quiet = 0
        while not self._gone:
            moving, grouped = self._moving()
            # A signal is sent once; a process that forks meanwhile is met again.
            fresh = [p.pid for p in moving if p.pid not in self._frozen | grouped]
            process_tree.send(fresh, signal.SIGSTOP)
            self._frozen.update(fresh)
            now_s = self._clock.monotonic()
            # A thread whose system call our supervisor is carrying out cannot stop
            # before it is done; it runs no instruction either.
            blocked = [self._is_blocked(p.pid, before, now_s) for p in moving]
            # Twice: a child may be born while its parent, not yet stopped, is looked at.
            quiet = quiet + 1 if all(blocked) else 0
            if quiet == 2:
                return
            if now_s >= deadline_s:
                names = ", ".join(str(p.inner_pid) for p in moving)
                raise HarnessError(
                    f"processes {names} of the program did not stop "
                    f"within {FREEZE_BOUND_S:g} s",
                    hint="try `--halt run`",
                )
            with self._lock:
                self._pump(POLL_S / 2)
            self._clock.sleep(POLL_S / 2)

    def _moving(self) -> tuple[list[Process], set[int]]:
        """Return who is not known to be stopped, and whom our control group holds."""
        grouped: set[int] = set()
        is_frozen = False
        if self._group is not None:
            with contextlib.suppress(OSError):
                held = (self._group / "cgroup.procs").read_text().split()
                grouped = {int(pid) for pid in held}
                events = (self._group / "cgroup.events").read_text().split()
                is_frozen = events[events.index("frozen") + 1] == "1"
        moving = [
            p
            for p in self.members()
            if not (is_frozen and p.pid in grouped)
            and not process_tree.is_stopped(p.pid)
        ]
        return moving, grouped

    def thaw(self) -> None:
        """Let go of what `freeze` stopped."""
        if not self._is_frozen:
            return
        self._is_frozen = False
        if self._group is not None:
            with contextlib.suppress(OSError):
                (self._group / "cgroup.freeze").write_text("0")
        living = {p.pid for p in self.members()}
        process_tree.send(self._frozen & living, signal.SIGCONT)
        self._frozen.clear()

    def signal(self, name: str, whom: str = "all") -> int:
        """Send a signal from outside.

        Args:
            name: without SIG: "TERM", "USR1", "STOP".
            whom: "all", "leader", "group", "launcher", "workers" or "rank:R".

        Returns:
            How many processes it was sent to.

        Raises:
            HarnessError: nobody answers to `whom`.
        """
        targets = self._targets(whom)
        number = signal.Signals[f"SIG{name}"]
        if number == signal.SIGSTOP:
            self._frozen.difference_update(targets)
        return process_tree.send(targets, number)

    def go_on(self, rank: int | None = None, *, kill: str | None = None) -> None:
        """Release halted ranks.

        Args:
            rank: only this one; None: all.
            kill: the next kill point, told to whoever is released.
        """
        with self._lock:
            self._pump(0.0)
            self._conversation.release(rank, kill=kill)

    def reclaim(self, whom: str = "all") -> None:
        """Take processes away with SIGKILL and prove that they are gone.

        Args:
            whom: "all", as on a reclaimed machine, or as in `signal`.

        Raises:
            HarnessError: something still lives.
        """
        if whom != "all":
            targets = self._targets(whom)
            process_tree.send(targets, signal.SIGKILL)
            self._until(lambda: not _alive(targets), END_BOUND_S, "lose a process")
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
        if self._process is not None:
            self._process.wait(END_BOUND_S)
        if self.survivors and self.exit_code is None:
            raise HarnessError(
                f"processes outlived their reclaim: {', '.join(self.survivors)}",
                hint="end them by hand; a PID namespace would have",
            )

    def _targets(self, whom: str) -> list[int]:
        members = self.members()
        if whom == "all":
            return [p.pid for p in members]
        if whom == "leader":
            found = [p.pid for p in members if p.inner_pid == self._leader]
        elif whom == "group":
            found = [p.pid for p in members if p.group == self._leader_group]
        elif whom == "launcher":
            found = self._launchers(members)
        elif whom == "workers":
            found = self._workers(members)
        else:
            rank = int(whom.removeprefix("rank:"))
            hello = self._ranks().get(rank)
            found = [p.pid for p in members if hello and p.pid == hello.host_pid]
        if not found:
            raise HarnessError(
                f"the attempt has no process that {whom!r} names",
                hint="`--to all` reaches every process",
            )
        return found

    def _launchers(self, members: Sequence[Process]) -> list[int]:
        """Return the processes that started ranks and train nothing themselves."""
        mains = {hello.host_pid for hello in self._ranks().values()}
        parents = {p.parent for p in members if p.pid in mains}
        found = [p.pid for p in members if p.pid in parents and p.pid not in mains]
        return found or [p.pid for p in members if p.inner_pid == self._leader]

    def _workers(self, members: Sequence[Process]) -> list[int]:
        """Return the children of ranks that are Python: loader workers and the like."""
        known = {hello.host_pid for hello in self._ranks().values()}
        found: list[int] = []
        for process in sorted(members, key=lambda p: p.inner_pid):
            argv = process_tree.command_line(process.pid)
            tracks = any("resource_tracker" in word for word in argv)
            if process.parent in known and process.pid not in known and not tracks:
                found.append(process.pid)
        return found

    # --- ending ---

    def end(self) -> None:
        """End the attempt at once, from any thread; `close` does the rest."""
        self._reclaimed = True
        if self._lifeline is not None:
            lifeline, self._lifeline = self._lifeline, None
            with contextlib.suppress(OSError):
                os.write(lifeline, b"x")  # we live: our files are ours to remove
            os.close(lifeline)
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_BOUND_S)

    def close(self) -> None:
        """End what still runs and let go of everything; the trace stays with the view."""
        if self._process is not None and not self._gone:
            try:
                self.reclaim("all")
            except HarnessError:
                self.end()
        self.end()
        with self._lock:
            self._conversation.close()
            for page in self._counters.values():
                page.close()
            self._counters.clear()
            for listener in self.listeners:
                listener.close()
            if self._control is not None:
                self._control.close()
                self._control = None
            self._gone = True
        if self._group is not None:
            with contextlib.suppress(OSError):
                self._group.rmdir()
        _RUNNING.discard(self)
        self.view.workspace.ends.discard(self.end)
        self._keep()

    def _keep(self) -> None:
        """Copy trace and output to where the user wants them kept."""
        keep = self.view.workspace.keep
        if keep is None or self._kept:
            return
        self._kept = True
        target = keep / self.view.name / self.folder.name.replace("a", "attempt-")
        shutil.copytree(self.trace_folder, target, dirs_exist_ok=True)
        with contextlib.suppress(OSError):
            shutil.copyfile(self.folder / "output", target / "output")


def _alive(pids: Sequence[int]) -> bool:
    return any(process_tree.read_process(pid) is not None for pid in pids)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
