# pathlib costs the program 10 ms at its start, and this may run in its process.
# ruff: noqa: PTH102, PTH105, PTH118, PTH123, PTH208
"""Supervise a program's file ops: carry each out, record it, hold it at its kill point.

The program runs under a seccomp filter. Every call that could change a watched folder
stops and asks; the supervisor, one process beside it, does the work itself and answers
with the result. So there is one total order over all threads and processes, with the
data, and an exact stop before, after or within any op.

It runs where the program runs: same mount and PID namespace, standard library only,
Python 3.9 and newer. It never judges; what it could not see it says so in the log.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Union

from spotchaos.launch.supervisor.notify_loop import Options as Options, Supervisor
from spotchaos.launch.supervisor.seccomp import LIBC, SeccompError, install_filter

Program = Union[Sequence[str], Callable[[], int]]  # noqa: UP007 - for Python 3.9
EXIT_BROKEN = 70  # the supervisor itself failed; the verdict is unknown


@dataclass
class Supervised:
    """A supervisor and the program it has started, seen from their parent.

    Attributes:
        supervisor: process id of the supervisor, the parent of the program.
        program: process id of the program.
    """

    supervisor: int
    program: int
    _reports: socket.socket = field(repr=False)

    def wait(self) -> int:
        """Wait for the program; return its wait status, as `os.waitpid` would.

        The supervisor goes on serving what the program left running, until nothing
        lives under the filter or until it is killed.

        Raises:
            SeccompError: the supervisor died first or broke; nothing is known then.
        """
        line = _read_line(self._reports)
        if line is None or "status" not in line:
            why = (line or {}).get("error", "the supervisor died")
            raise SeccompError(errno.EPROTO, str(why))
        return int(line["status"])

    def finish(self) -> None:
        """Wait for the supervisor to end; it ends when all it watches has."""
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.supervisor, 0)
        self._reports.close()


def start(program: Program, options: Options) -> Supervised:
    """Start a supervisor, and under it the program.

    The supervisor is the program's parent and the subreaper of all it starts, so that
    reading their memory is allowed even where only ancestors may.

    Args:
        program: a command line to exec, or a function whose result is the exit status,
            for a program that a forked process runs itself.
        options: what to watch and what to do.

    Raises:
        SeccompError: no filter can be installed here; the message says why. Nothing is
            left running.
    """
    ours, theirs = socket.socketpair()
    supervisor = os.fork()
    if supervisor == 0:
        ours.close()
        _become_supervisor(program, options, theirs)
    theirs.close()
    line = _read_line(ours)
    if line is None or "program" not in line:
        os.waitpid(supervisor, 0)
        ours.close()
        why = line or {"error": "the supervisor died", "errno": errno.EPROTO}
        raise SeccompError(int(why.get("errno", errno.EPROTO)), str(why["error"]))
    return Supervised(supervisor, int(line["program"]), ours)


def run_supervised(program: Program, options: Options) -> int:
    """Run a program under supervision to its end; return its wait status.

    Raises:
        SeccompError: no filter can be installed, or the supervisor broke.
    """
    supervised = start(program, options)
    try:
        return supervised.wait()
    finally:
        supervised.finish()


def supervisor_available() -> tuple[bool, str]:
    """Try a supervisor on a folder of its own.

    Returns:
        Whether it works here, and a clause for `doctor`: what was tried, or what was
        refused (EBUSY: another listener is installed; EPERM: a process's memory or
        descriptors may not be read; ENOSYS, EINVAL: the kernel is too old).
    """
    # Only the harness asks; what runs beside the program has no package of ours.
    from spotchaos.launch.isolation.scratch import Scratch

    with Scratch(Path(tempfile.gettempdir())) as scratch:
        folder = str(scratch.path)
        target = os.path.join(folder, "watched")
        os.mkdir(target)
        log = os.path.join(folder, "ops")

        def program() -> int:
            fd = os.open(os.path.join(target, "a"), os.O_WRONLY | os.O_CREAT)
            os.write(fd, b"tried")
            os.close(fd)
            os.replace(os.path.join(target, "a"), os.path.join(target, "b"))
            return 0

        # Ctrl-C waits until it is over: it is for us, and the two forked here would tell
        # of it in tracebacks.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            status = run_supervised(program, Options(roots=(target,), oplog=log))
        except OSError as error:
            return False, str(error.strerror or error)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        with open(log, "rb") as file:
            kinds = [json.loads(line)["op"] for line in file]
    if status or not {"creat", "write", "rename"} <= set(kinds):
        return False, "a listener is granted, but not what is needed to serve it"
    return True, "seccomp user notification carries out file ops, unprivileged"


def serve(
    listener_fd: int,
    options: Options,
    *,
    program: int | None = None,
    reports: socket.socket | None = None,
) -> None:
    """Serve a listener until nothing lives under its filter.

    Args:
        listener_fd: what `install_filter` returned in the program, brought here.
        options: what to watch and what to do.
        program: process id of the program, if it is a child of this process.
        reports: where the program's wait status is told, as one JSON line.
    """
    Supervisor(listener_fd, options, program=program, reports=reports).run()


def _become_supervisor(
    program: Program, options: Options, reports: socket.socket
) -> None:
    # Never returns. The program is killed when this process ends, however it ends.
    child = -1
    try:
        LIBC.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
        here, there = socket.socketpair()
        child = os.fork()
        if child == 0:
            here.close()
            reports.close()
            _become_program(program, options, there)
        there.close()
        message, fds, _, _ = socket.recv_fds(here, 4096, 1)
        if not fds:
            raise SeccompError(*json.loads(message or b'[71, "the program died"]'))
        line = json.dumps({"program": child}).encode() + b"\n"
        _close_all_but(fds[0], here.fileno(), reports.fileno(), options.control)
        supervisor = Supervisor(fds[0], options, program=child, reports=reports)
        reports.sendall(line)
        here.sendall(b"g")
        here.close()
        supervisor.run()
        os._exit(0)
    except BaseException as error:
        told = {
            "error": getattr(error, "strerror", None) or str(error) or repr(error),
            "errno": getattr(error, "errno", None),
        }
        if child > 0:
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGKILL)
        if not isinstance(error, SeccompError):
            traceback.print_exc()
        with contextlib.suppress(OSError):
            reports.sendall(json.dumps(told).encode() + b"\n")
        os._exit(EXIT_BROKEN)


def _become_program(program: Program, options: Options, there: socket.socket) -> None:
    # Never returns.
    status = EXIT_BROKEN
    try:
        LIBC.prctl(1, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG
        if options.control is not None:
            os.close(options.control)
        try:
            listener = install_filter(observe_reads=options.observe_reads)
        except SeccompError as error:
            there.sendall(json.dumps([error.errno, str(error.strerror)]).encode())
            os._exit(EXIT_BROKEN)
        socket.send_fds(there, [b"ok"], [listener])
        os.close(listener)
        if there.recv(1) != b"g":  # the supervisor is about to serve
            os._exit(EXIT_BROKEN)
        there.close()
        if callable(program):
            status = _status_of(program)
        else:
            os.execvp(program[0], list(program))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _close_all_but(*kept: int | None) -> None:
    # A copy of somebody's pipe or socket here would keep it open after its owner died.
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _status_of(program: Callable[[], int]) -> int:
    try:
        return program() or 0
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return leaving.code or 0
        sys.stderr.write(f"{leaving.code}\n")
        return 1


def _read_line(connection: socket.socket) -> dict[str, Any] | None:
    received = b""
    while not received.endswith(b"\n"):
        # One byte at a time: the next line belongs to the next call.
        part = connection.recv(1)
        if not part:
            return None
        received += part
    line: dict[str, Any] = json.loads(received)
    return line
