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
import select
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

from spotchaos.launch import notify_log
from spotchaos.launch.frames import FrameTable
from spotchaos.launch.notify_data import ALL_CALLS, RefusedError
from spotchaos.launch.notify_jobs import Context, Job
from spotchaos.launch.notify_log import OpLogWriter
from spotchaos.launch.notify_nodes import IGNORED, Nodes
from spotchaos.launch.notify_rules import FilePoint, Gate, Rule
from spotchaos.launch.seccomp import (
    LIBC,
    QUESTIONS,
    Listener,
    Request,
    SeccompError,
    install_filter,
)

Program = Union[Sequence[str], Callable[[], int]]  # noqa: UP007 - for Python 3.9
EXIT_BROKEN = 70  # the supervisor itself failed; the verdict is unknown
_REAP_S = 0.2


@dataclass(frozen=True)
class Options:
    """What one attempt is supervised for.

    Attributes:
        roots: the watched folders, as the program sees them.
        oplog: path of the op log to write; None to write none. The bytes go to the
            same path with `.data` appended. Must lie outside the watched folders.
        control: a connected Unix stream socket's descriptor for halts; None where
            there are no kill points.
        points: kill points, each used once.
        rules: faults without a kill.
        ignore: patterns of names that are left alone.
        discard_data: record lengths, not bytes.
        real_fsync: False answers fsync without doing it: the log is the same and the
            disk is spared.
        others: while one op is held, `hold` serves nobody (the crash state is exact),
            `run` lets the other processes and threads go on.
        frames: path of the table in which the probe notes lines; None for none.
        observe_reads: also log what is looked up and opened for reading.
        break_links: copy a file of before the run that is a hard link to something
            outside, before it is opened for writing: kept blobs stay whole.
    """

    roots: tuple[str, ...]
    oplog: str | None = None
    control: int | None = None
    points: tuple[FilePoint, ...] = ()
    rules: tuple[Rule, ...] = ()
    ignore: tuple[str, ...] = IGNORED
    discard_data: bool = False
    real_fsync: bool = True
    others: str = "hold"
    frames: str | None = None
    observe_reads: bool = False
    break_links: bool = False


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
    with tempfile.TemporaryDirectory(prefix="spotchaos-probe-") as folder:
        target = os.path.join(folder, "watched")
        os.mkdir(target)
        log = os.path.join(folder, "ops")

        def program() -> int:
            fd = os.open(os.path.join(target, "a"), os.O_WRONLY | os.O_CREAT)
            os.write(fd, b"tried")
            os.close(fd)
            os.replace(os.path.join(target, "a"), os.path.join(target, "b"))
            return 0

        try:
            status = run_supervised(program, Options(roots=(target,), oplog=log))
        except OSError as error:
            return False, str(error.strerror or error)
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


class Supervisor:
    """The loop that answers requests; one for each attempt."""

    def __init__(
        self,
        listener_fd: int,
        options: Options,
        *,
        program: int | None = None,
        reports: socket.socket | None = None,
    ) -> None:
        self._options = options
        self._listener = Listener(listener_fd)
        log = OpLogWriter(options.oplog, discard_data=options.discard_data)
        self._context = Context(
            self._listener,
            Nodes(list(options.roots), options.ignore),
            log,
            frames=FrameTable(options.frames) if options.frames else None,
            real_fsync=options.real_fsync,
            break_links=options.break_links,
        )
        self._gate = Gate(list(options.points), list(options.rules))
        self._number = 0
        self._held: list[tuple[Job, bool, FilePoint]] = []
        self._program = program
        self._reports = reports
        self._control = (
            socket.socket(fileno=options.control) if options.control else None
        )
        self._orders = b""
        self._ended = False

    def run(self) -> None:
        """Serve until nothing lives under the filter, or until told to end.

        Raises:
            SeccompError, OSError: supervision broke; the log says so, and the calls
                that still wait will fail with ENOSYS: nothing is known of this attempt.
        """
        try:
            self._loop()
        except BaseException as error:
            with contextlib.suppress(OSError):
                self._context.log.add(op="end", complete=0, error=repr(error))
            raise

    def _loop(self) -> None:
        self._write_header()
        poll = select.poll()
        poll.register(self._listener.fd, select.POLLIN)
        if self._control is not None:
            poll.register(self._control, select.POLLIN)
        pidfd = -1
        if self._program is not None:
            pidfd = os.pidfd_open(self._program)
            poll.register(pidfd, select.POLLIN)
        while not self._ended:
            frozen = bool(self._held) and self._options.others == "hold"
            poll.modify(self._listener.fd, 0 if frozen else select.POLLIN)
            wait_s = None if self._program is not None else _REAP_S
            events = dict(poll.poll(None if wait_s is None else wait_s * 1000))
            if self._control is not None and self._control.fileno() in events:
                self._obey()
                self._insist_on_a_harness()
            if pidfd in events:
                poll.unregister(pidfd)
                pidfd = self._program_ended(pidfd)
            if self._program is None:
                _reap()
            seen = events.get(self._listener.fd, 0)
            if seen & select.POLLIN:
                request = self._listener.receive()
                if request is not None:
                    self._serve(request)
            elif seen & (select.POLLHUP | select.POLLERR):
                # Nothing lives under the filter; the program may not be waited for yet.
                if self._program is not None and pidfd >= 0:
                    self._program_ended(pidfd)
                break
        self._end()

    def _write_header(self) -> None:
        log = self._context.log
        log.add(
            op="header",
            format=notify_log.FORMAT,
            mechanism="seccomp-notify",
            roots=list(self._options.roots),
            ignore=list(self._options.ignore),
            discard_data=self._options.discard_data,
            points=[str(one) for one in self._options.points],
            rules=[str(one) for one in self._options.rules],
            began_s=log.began_s,  # CLOCK_MONOTONIC, as in traces
            python=sys.version.split()[0],
            kernel=os.uname().release,
            machine=os.uname().machine,
        )
        if log.is_kept or self._options.break_links:
            self._context.scan()

    def _serve(self, request: Request) -> None:
        if self._options.observe_reads and self._observe(request):
            return
        prepare = ALL_CALLS.get(request.name)
        try:
            job = prepare(self._context, request) if prepare else None
        except RefusedError as refused:
            self._listener.answer(request, -refused.code)
            return
        except (OSError, ValueError):
            # The kernel will say the same to the program: no such file, bad address.
            job = None
        if job is None:
            self._listener.proceed(request)
            return
        self._carry_out(job)

    def _carry_out(self, job: Job) -> None:
        self._context.flush_maps()
        decision = self._gate.arrive(job.kind, job.names, job.rank)
        if job.kind != "open":
            self._number += 1
            job.number = self._number
        if decision.delay_s:
            select.select([], [], [], decision.delay_s)
        job.rule = decision.rule
        point = decision.point
        if point is None:
            self._finish(job)
        elif point.part == "after":
            self._run(job)
            self._hold(job, point, done=True)
        else:
            cut = point.cut(job.length)
            if cut:
                job.advance(cut)
            self._hold(job, point, done=False)

    def _run(self, job: Job) -> None:
        if job.rule is not None and job.rule.action == "errno":
            job.fail(int(job.rule.value), fault=1)
        else:
            job.advance()

    def _finish(self, job: Job) -> None:
        # A process that was killed while it waited must not act after its death.
        if self._listener.is_waiting(job.request):
            self._run(job)
            job.respond()
        job.release()

    def _hold(self, job: Job, point: FilePoint, *, done: bool) -> None:
        self._held.append((job, done, point))
        self._tell(
            {
                "halt": str(point),
                "op": job.kind,
                "n": job.number,
                "pid": job.process,
                "tid": job.request.tid,
                "rank": job.rank,
                "path": job.path,
                "to": job.to,
                "len": job.length,
                "through": max(job.result, 0) if job.length else None,
                "done": done,
            }
        )

    def _tell(self, message: dict[str, object]) -> None:
        if self._control is None:
            raise SeccompError(
                errno.ENOTCONN, "a kill point was reached with no control"
            )
        self._control.sendall(json.dumps(message).encode() + b"\n")

    def _obey(self) -> None:
        assert self._control is not None
        try:
            received = self._control.recv(65536)
        except ConnectionError:
            received = b""
        if not received:
            self._control.close()
            self._control = None
            return
        *lines, self._orders = (self._orders + received).split(b"\n")
        for line in lines:
            order = json.loads(line)
            if order.get("end"):
                self._ended = True
            if order.get("go"):
                held, self._held = self._held, []
                for job, done, _ in held:
                    self._release(job, done=done)

    @property
    def _has_control(self) -> bool:
        return self._control is not None

    def _insist_on_a_harness(self) -> None:
        # If nobody is left who could say go, an op must not be held for ever.
        if self._held and not self._has_control:
            raise SeccompError(errno.ECONNRESET, "the harness left during a halt")

    def _release(self, job: Job, *, done: bool) -> None:
        if not done:
            self._finish(job)
            return
        job.respond()
        job.release()

    def _observe(self, request: Request) -> bool:
        # Import here: only runs that observe pay for it.
        from spotchaos.launch.notify_reads import question

        asked = question(self._context, request)
        if asked is not None:
            self._context.log.add(**asked)
        if request.name in QUESTIONS:
            self._listener.proceed(request)
            return True
        return False

    def _program_ended(self, pidfd: int) -> int:
        os.close(pidfd)
        assert self._program is not None
        _, status = os.waitpid(self._program, 0)
        self._context.log.add(op="exit", pid=self._program, status=status)
        self._program = None
        if self._reports is not None:
            with contextlib.suppress(OSError):
                self._reports.sendall(json.dumps({"status": status}).encode() + b"\n")
        return -1

    def _end(self) -> None:
        for job, _, _ in self._held:
            job.release()
        self._context.flush_maps()
        self._context.log.add(
            op="end",
            complete=1,
            ops=self._number,
            counts=self._gate.counts(),
            not_reached=[str(one) for one in self._gate.not_reached()],
        )
        self._context.close()
        os.close(self._listener.fd)


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


def _reap() -> None:
    # Orphans come to us; as zombies they would keep the filter alive for ever.
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


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
