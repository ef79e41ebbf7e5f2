"""The supervisor's loop: receive a call, count it, carry it out or hold it, answer."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from spotchaos.launch.supervisor import notify_log
from spotchaos.launch.supervisor.frames import FrameTable
from spotchaos.launch.supervisor.notify_data import ALL_CALLS, RefusedError
from spotchaos.launch.supervisor.notify_jobs import Context, Job
from spotchaos.launch.supervisor.notify_log import OpLogWriter
from spotchaos.launch.supervisor.notify_nodes import IGNORED, Nodes
from spotchaos.launch.supervisor.notify_reads import question
from spotchaos.launch.supervisor.notify_rules import UNNUMBERED, FilePoint, Gate, Rule
from spotchaos.launch.supervisor.seccomp import (
    QUESTIONS,
    Listener,
    Request,
    SeccompError,
)

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
        records: patterns of labels of output files.
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
        injected: a file that is there once the attempt's first signal has been sent.
    """

    roots: tuple[str, ...]
    oplog: str | None = None
    control: int | None = None
    points: tuple[FilePoint, ...] = ()
    records: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    ignore: tuple[str, ...] = IGNORED
    discard_data: bool = False
    real_fsync: bool = True
    others: str = "hold"
    frames: str | None = None
    observe_reads: bool = False
    break_links: bool = False
    injected: str | None = None


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
        self._gate = Gate(
            list(options.points),
            list(options.rules),
            self._first_signal_is_sent,
            options.records,
        )
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
        if job.kind not in UNNUMBERED:
            self._number += 1
            job.number = self._number
        if decision.rule is not None or decision.delay_s:
            # A line of its own: of most faults the op itself shows nothing.
            self._context.log.add(op="fault", path=job.path, to=job.to, sys=job.kind)
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

    def _first_signal_is_sent(self) -> bool:
        injected = self._options.injected
        return injected is not None and Path(injected).exists()

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
        self._emit(
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

    def _emit(self, message: dict[str, object]) -> None:
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


def _reap() -> None:
    # Orphans come to us; as zombies they would keep the filter alive for ever.
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
