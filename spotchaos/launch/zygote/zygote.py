"""Zygotes, as the harness sees them: started once for a program, asked for attempts.

A zygote serves what one interpreter would have started: a script, `-m`, or a console
script. Whatever it cannot serve, or does not serve faithfully, takes the cold path.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spotchaos.clock import SystemClock
from spotchaos.errors import HarnessError
from spotchaos.launch.isolation.addresses import own_addresses
from spotchaos.launch.isolation.delays import Delays
from spotchaos.launch.isolation.environment import environment_of
from spotchaos.launch.isolation.leaving import LEAVING
from spotchaos.launch.isolation.program import Program
from spotchaos.launch.isolation.workspace import View, Workspace
from spotchaos.launch.zygote.forkable import Start
from spotchaos.trace.format import ORDERS_VARIABLE

CHILD = Path(__file__).parent / "zygote_child.py"
INSIDE = Path(__file__).parents[1] / "isolation" / "inside.py"
PACKAGE = Path(__file__).parents[2]
# Importing what a framework imports takes a few seconds, on a loaded machine many.
READY_BOUND_S = 180.0
ANSWER_BOUND_S = 30.0
LOOK_S = 0.5  # at how long it was kept from running
# Without it in advance, a forked run is hardly faster than a fresh one.
INDISPENSABLE = "torch"
# Each costs the imports once more, and nearly every program needs none or one.
TURNS = 3


def preloadable(modules: Sequence[tuple[str, str]], folder: Path) -> list[str]:
    """Return what a zygote may import: not the program itself, nor anything of its folder.

    Args:
        modules: name and file of each module of the first run, in order of import.
        folder: the program's working folder, whose files may change between runs.
    """
    own = str(folder.resolve()) + os.sep
    return [
        name
        for name, file in modules
        if not name.startswith(("_spotchaos_", "spotchaos.probe", "__"))
        and name not in ("spotchaos", "sitecustomize", "usercustomize")
        and (not file.startswith(own) or "site-packages" in file)
    ]


def raised_for(
    program: Program,
    start: Start,
    workspace: Workspace,
    modules: Sequence[str],
    *,
    is_forecast: bool = False,
    without: frozenset[str] = frozenset(),
    turns: int = TURNS,
) -> Zygote:
    """Return a zygote of a program, whose imports touch nothing of the user's.

    Args:
        program: whose environment it has.
        start: interpreter and flags.
        workspace: where it has a view of its own while it imports.
        modules: what to import, in order.
        is_forecast: see `Zygote`.
        without: packages and modules that each attempt imports for itself.
        turns: how often it may be raised without more of them.

    Raises:
        HarnessError: it did not come up, or nothing may be forked from it.
    """
    kept = [
        name
        for name in modules
        if name not in without and not any(name.startswith(f"{w}.") for w in without)
    ]
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:  # a sandbox, or a kernel before 5.3
        raise HarnessError(
            f"no warm path: forks cannot be waited for here: {error.strerror}"
        ) from None
    view = workspace.view(f"zygote-{secrets.token_hex(3)}")
    isolation = isolation_in(view, program)
    try:
        return Zygote(
            start,
            environment_for(program, view),
            kept,
            workspace.scratch / "zygote.err",
            is_forecast=is_forecast,
            isolation=isolation,
            on_imported=view.close,
            has_ranks=bool(program.ranks or start.ranks),
            folder=program.folder if isolation and isolation["root"] else None,
            beside=start.beside(program.folder),
        )
    except ImportsDrewError as error:
        if turns == 0 or INDISPENSABLE in error.packages:
            raise
        return raised_for(
            program,
            start,
            workspace,
            modules,
            without=without | error.packages,
            turns=turns - 1,
        )


def isolation_in(view: View, program: Program) -> dict[str, Any] | None:
    """Return how a zygote is isolated while it imports: as an attempt in a view is.

    Its processes stay those of the machine, since the harness must know their numbers.
    """
    mechanisms = view.workspace.mechanisms
    left = {"pid"} | ({"network"} if program.allow_network else set())
    if not view.is_overlay:
        left.add("mount")  # a copy of the folder protects nothing else
    names = [name for name in mechanisms.namespaces if name not in left]
    if not set(names) - {"user"}:
        return None
    mounts = []
    if "mount" in names:
        mounts = view.mount_steps(view.attempt_folder(0), tmp_elsewhere=False)
    return {
        "unshare": names,
        "root": None if "mount" not in names else str(view.root()),
        "mounts": mounts,
        "host_name": view.host_name,
        "addresses": own_addresses() if "network" in names else [],
    }


def environment_for(program: Program, view: View) -> dict[str, str]:
    """Return the attempts' environment, without the orders that each has of its own."""
    offline = "network" in view.workspace.mechanisms.namespaces
    environment = environment_of(
        program,
        orders=Path(os.devnull),
        temporary=view.temporary,
        generation=1,
        host_name=view.host_name,
        offline=offline and not program.allow_network,
        extra={},
    )
    del environment[ORDERS_VARIABLE]
    return environment


class ImportsDrewError(HarnessError):
    """Imports drew what a fresh process draws anew; without them, it may be forked.

    Args:
        drawn: what each package drew.
        packages: these, and packages and modules whose import imports them.
    """

    def __init__(self, drawn: Mapping[str, str], packages: Sequence[str]) -> None:
        said = ", ".join(f"{name} ({what})" for name, what in sorted(drawn.items()))
        super().__init__(f"no warm path: imports drew what each run draws anew: {said}")
        self.packages = frozenset(packages)


class ZygoteGoneError(HarnessError):
    """A zygote died or hangs; what it was to start can be started fresh."""


class Zygote:
    """A running zygote.

    Args:
        start: interpreter and flags.
        environment: the attempts', without what differs between them.
        modules: what to import, in order.
        complaints: file for what it prints.
        is_forecast: `modules` are a guess; it imports them meanwhile, and can be asked
            for nothing until `complete` has said what else.
        isolation: what `inside.SPEC` says of namespaces and mounts, for its imports;
            None: they run as they would on the machine.
        on_imported: called once, when it imports no more.
        has_ranks: the program has several, each with variables of its own.
        folder: where it imports; None: where nothing of the user's is.
        beside: the folder that comes first on the program's path.

    Attributes:
        confirmed: names of findings about its forks that fresh processes showed as well.
        is_vouched_for: what its forks show needs no confirming: a test has shown that
            each of its programs is judged alike in fresh processes.

    Raises:
        ImportsDrewError: some packages are to be left out.
        HarnessError: it did not come up, or nothing may be forked from it.
    """

    def __init__(
        self,
        start: Start,
        environment: Mapping[str, str],
        modules: Sequence[str],
        complaints: Path,
        *,
        is_forecast: bool = False,
        isolation: Mapping[str, Any] | None = None,
        on_imported: Callable[[], None] = lambda: None,
        has_ranks: bool = False,
        folder: Path | None = None,
        beside: Path = Path(os.devnull).parent,
    ) -> None:
        self._on_imported: Callable[[], None] | None = on_imported
        self._lock = threading.Lock()
        self._start = start
        self.gone: str | None = None  # why it can be asked no more
        self.confirmed: set[str] = set()
        self.is_vouched_for = False
        self.answer_bound_s = ANSWER_BOUND_S
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
        self._connection = ours
        with complaints.open("wb") as file:
            self._process = subprocess.Popen(
                [start.interpreter, *start.flags, str(CHILD), str(theirs.fileno())],
                env=dict(environment),
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                cwd="/",
            )
        LEAVING.kill(self._process.pid)
        theirs.close()
        begin = {
            "inside": str(INSIDE),
            "package": str(PACKAGE),
            "modules": list(modules),
            "isolation": None if isolation is None else dict(isolation),
            "has_ranks": has_ranks,
            "folder": None if folder is None else str(folder),
            "argv": list(start.argv),
            "command": start.command,
            "beside": str(beside),
        }
        self.forecast = frozenset(modules)
        try:
            ours.send(json.dumps(begin).encode())
        except BaseException:
            self.close()
            raise
        if not is_forecast:
            self.complete(())

    def complete(self, modules: Sequence[str]) -> None:
        """Have it import these as well, in order, and wait until it can be asked.

        Raises:
            ImportsDrewError: some packages are to be left out.
            HarnessError: it did not come up, or nothing may be forked from it.
        """
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                # One that has ended may have said why before.
                self._connection.send(json.dumps({"modules": list(modules)}).encode())
            said = self._answer(READY_BOUND_S)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise HarnessError(f"the zygote ended: {error}") from None
            raise
        self.failed: tuple[str, ...] = tuple(said.get("failed", ()))
        if said.get("drawn"):
            self.close()
            raise ImportsDrewError(said["drawn"], said["led_by"])
        if not said.get("ready"):
            self.close()
            raise HarnessError(f"no warm path: {said.get('reason')}")
        self._end_imports()

    def _end_imports(self) -> None:
        imported, self._on_imported = self._on_imported, None
        if imported is not None:
            imported()

    def serves(self, start: Start) -> bool:
        """Tell whether a program of this start can be forked from here."""
        own = self._start
        return (start.interpreter, start.flags) == (own.interpreter, own.flags)

    def fork(
        self, start: Start, *, spec: int, control: int, lifeline: int, complaints: int
    ) -> Forked:
        """Have the zygote fork the first process of an attempt.

        Args:
            start: what the program is.
            spec: descriptor of a file with the attempt's spec, at its beginning.
            control: descriptor on which the attempt reports.
            lifeline: descriptor whose end of file ends the attempt.
            complaints: descriptor for what its first processes print.

        Raises:
            ZygoteGoneError: it died, or does not answer; it is not asked again.
        """
        packed = struct.pack("4i", spec, control, lifeline, complaints)
        request = json.dumps({"started": start.as_request()}).encode()
        with self._lock:
            if self.gone is not None:
                raise ZygoteGoneError(self.gone)
            try:
                self._connection.sendmsg(
                    [request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, packed)]
                )
                return Forked(int(self._answer(self.answer_bound_s)["pid"]))
            except (OSError, HarnessError) as error:
                # An answer that comes late would be taken for that of the next request.
                self.gone = f"the zygote is gone: {error}"
                raise ZygoteGoneError(self.gone) from None

    def give_up(self, why: str) -> ZygoteGoneError:
        """Return why it is asked no more: what it forks does not even begin."""
        with self._lock:
            self.gone = self.gone or f"what the zygote forked did not begin: {why}"
            return ZygoteGoneError(self.gone)

    def _answer(self, bound_s: float) -> dict[str, Any]:
        clock = SystemClock()
        delays = Delays(lambda: [self._process.pid], clock.monotonic)
        deadline_s = clock.monotonic() + bound_s
        content: bytes | None = None
        # What others take of the processor is added to the bound.
        while content is None:
            left_s = deadline_s + delays.total_s() - clock.monotonic()
            if left_s <= 0:
                raise HarnessError(f"the zygote did not answer within {bound_s:g} s")
            self._connection.settimeout(min(left_s, LOOK_S))
            try:
                content = self._connection.recv(1 << 20)
            except TimeoutError:
                continue
            except ConnectionResetError:
                # It ended without reading what we sent; what it said comes after that.
                content = self._connection.recv(1 << 20)
        if not content:
            raise HarnessError("the zygote ended")
        answer: dict[str, Any] = json.loads(content)
        return answer

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """End it; attempts that it forked go on. Safe to call twice."""
        self.gone = self.gone or "the zygote was ended"
        self._connection.close()
        if self._process.poll() is None:
            # Its attempts have sessions of their own; what imports started has not.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._end_imports()


@dataclass(slots=True)
class Forked:
    """The first process of an attempt that a zygote forked; waited for like a child."""

    pid: int
    _descriptor: int | None = field(default=None)

    def wait(self, timeout: float) -> None:
        """Return when it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not within `timeout` seconds.
        """
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            poller = select.poll()
            poller.register(descriptor, select.POLLIN)
            if not poller.poll(timeout * 1000):
                raise subprocess.TimeoutExpired("zygote", timeout)
        finally:
            os.close(descriptor)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Warm:
    """A zygote, and what it is to fork."""

    zygote: Zygote
    start: Start
