"""Zygotes, as the harness sees them: started once for a program, asked for attempts.

A zygote serves what one interpreter would have started: a script, `-m`, or a console
script. Whatever it cannot serve, or does not serve faithfully, takes the cold path.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import secrets
import select
import shutil
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spotchaos.errors import HarnessError
from spotchaos.launch.addresses import own_addresses
from spotchaos.launch.environment import environment_of
from spotchaos.launch.program import Program
from spotchaos.launch.workspace import View, Workspace
from spotchaos.trace.format import ORDERS_VARIABLE

CHILD = Path(__file__).parent / "zygote_child.py"
INSIDE = Path(__file__).parent / "inside.py"
PACKAGE = Path(__file__).parent.parent
# Importing what a framework imports takes a few seconds, on a loaded machine many.
READY_BOUND_S = 180.0
ANSWER_BOUND_S = 30.0

# Options of the interpreter that a zygote can be started with as well.
_FLAGS = re.compile(r"^-([uOBPqsvb]+|W.+|X.+)$")
_TAKING_A_WORD = ("-W", "-X")
_TORCHRUN = re.compile(r"^--(nproc[-_]per[-_]node|standalone|nnodes)(?:=(\w+))?$")


@dataclass(frozen=True, slots=True)
class Start:
    """How a command starts Python: by which interpreter, with which flags, what."""

    interpreter: str
    flags: tuple[str, ...]
    argv: tuple[str, ...]  # the program's sys.argv
    script: str | None = None
    module: str | None = None
    ranks: int | None = None  # of a torchrun that only starts ranks

    @property
    def command(self) -> list[str]:
        """Return the command line of one process of the program."""
        what = ["-m", self.module] if self.module else [self.script or ""]
        return [self.interpreter, *self.flags, *what, *self.argv[1:]]

    def as_request(self) -> dict[str, Any]:
        return {
            "script": self.script,
            "module": self.module,
            "argv": list(self.argv),
            "command": self.command,
            "flags": list(self.flags),
        }


def start_of(
    command: Sequence[str], environment: Mapping[str, str], folder: Path
) -> Start | None:
    """Return how a zygote would start a command; None if it takes the cold path."""
    path = _which(command[0], environment, folder)
    if path is None:
        return None
    if re.match(r"^python[\d.]*$", path.name):
        interpreter = _interpreter(path, environment, folder)
        return None if interpreter is None else _of_arguments(interpreter, command[1:])
    shebang = _shebang(path)
    if shebang is None:
        return None
    if path.name == "torchrun":
        return _of_torchrun(shebang, command[1:])
    # As the kernel hands a script to its interpreter: found on PATH, by its full name.
    name = command[0] if "/" in command[0] else str(path)
    return Start(shebang, (), (name, *command[1:]), script=name)


def _of_arguments(interpreter: str, arguments: Sequence[str]) -> Start | None:
    flags: list[str] = []
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "-m" and rest:
            if rest[0] in ("torch.distributed.run", "torch.distributed.launch"):
                return _of_torchrun(interpreter, rest[1:])
            return Start(interpreter, tuple(flags), tuple(rest), module=rest[0])
        if word in _TAKING_A_WORD and rest:
            flags += [word, rest.pop(0)]
        elif _FLAGS.match(word):
            flags.append(word)
        else:
            return None
    if not rest:
        return None
    return Start(interpreter, tuple(flags), tuple(rest), script=rest[0])


def _of_torchrun(interpreter: str, arguments: Sequence[str]) -> Start | None:
    """Serve a torchrun that does nothing but start N ranks on this machine."""
    rest = list(arguments)
    ranks = 1
    is_module = False
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word in ("-m", "--module"):
            is_module = True
            continue
        found = _TORCHRUN.match(word)
        if found is None:
            return None
        name, value = found[1].replace("_", "-"), found[2]
        if name == "standalone":
            continue
        if value is None:
            if not rest:
                return None
            value = rest.pop(0)
        if not value.isdecimal() or (name == "nnodes" and value != "1"):
            return None
        if name == "nproc-per-node":
            ranks = int(value)
    if not rest:
        return None
    flags, argv = ("-u",), tuple(rest)
    if is_module:
        return Start(interpreter, flags, argv, module=rest[0], ranks=ranks)
    if not rest[0].endswith(".py"):
        return None
    return Start(interpreter, flags, argv, script=rest[0], ranks=ranks)


def _which(name: str, environment: Mapping[str, str], folder: Path) -> Path | None:
    if "/" in name:
        path = folder / name
        return path if path.is_file() else None
    found = shutil.which(name, path=environment.get("PATH", os.defpath))
    return None if found is None else Path(found)


def _shebang(path: Path) -> str | None:
    """Return the Python interpreter that a script names; None if it names another."""
    with path.open("rb") as file:
        line = file.readline(500)
    found = re.match(rb"#!\s*(/\S*python[\d.]*)\s*$", line)
    return None if found is None else found[1].decode()


def _interpreter(
    path: Path, environment: Mapping[str, str], folder: Path
) -> str | None:
    """Return the interpreter behind a name: version managers put scripts in front."""
    with path.open("rb") as file:
        if file.read(2) != b"#!":
            return str(path)
    return _ask_interpreter(path, tuple(sorted(environment.items())), folder)


@functools.cache
def _ask_interpreter(
    path: Path, environment: tuple[tuple[str, str], ...], folder: Path
) -> str | None:
    code = "import sys; print(sys.executable)"
    try:
        said = subprocess.run(
            [str(path), "-c", code],
            env=dict(environment),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.strip() or None


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
) -> Zygote:
    """Return a zygote of a program, whose imports touch nothing of the user's.

    Args:
        program: whose environment it has.
        start: interpreter and flags.
        workspace: where it has a view of its own while it imports.
        modules: what to import, in order.
        is_forecast: see `Zygote`.

    Raises:
        HarnessError: it did not come up, or nothing may be forked from it.
    """
    view = workspace.view(f"zygote-{secrets.token_hex(3)}")
    return Zygote(
        start,
        environment_for(program, view),
        modules,
        workspace.scratch / "zygote.err",
        is_forecast=is_forecast,
        isolation=isolation_in(view, program),
        on_imported=view.close,
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

    Attributes:
        confirmed: names of findings about its forks that fresh processes showed as well.
        is_vouched_for: what its forks show needs no confirming: a test has shown that
            each of its programs is judged alike in fresh processes.

    Raises:
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
        theirs.close()
        begin = {
            "inside": str(INSIDE),
            "package": str(PACKAGE),
            "modules": list(modules),
            "isolation": None if isolation is None else dict(isolation),
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
            HarnessError: it did not come up, or nothing may be forked from it.
        """
        try:
            self._connection.send(json.dumps({"modules": list(modules)}).encode())
            said = self._answer(READY_BOUND_S)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise HarnessError(f"the zygote ended: {error}") from None
            raise
        self.failed: tuple[str, ...] = tuple(said.get("failed", ()))
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

    def _answer(self, bound_s: float) -> dict[str, Any]:
        self._connection.settimeout(bound_s)
        try:
            content = self._connection.recv(1 << 20)
        except TimeoutError:
            raise HarnessError(
                f"the zygote did not answer within {bound_s:g} s",
                hint="is the machine overloaded?",
            ) from None
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


@dataclass(frozen=True, slots=True)
class Warm:
    """A zygote, and what it is to fork."""

    zygote: Zygote
    start: Start
