"""The first processes of an attempt: they isolate it, start the program and outlive it.

Two processes stand between the harness and the program. The *outer* one waits for the
death of the harness or of the init, and tells the harness when nothing lives any more.
The *init* is process 1 of the attempt: it sets up namespaces and mounts, starts the
program, reaps, and reports how the program's first process ended. When either of them or
the harness dies, everything dies.

    enter(spec)   namespaces, mounts, network, host name (in the init)
    start(spec)   supervisor, then program; returns their pids (in the init)
    main(spec)    all of it; returns when nothing of the attempt lives

Standard library only, Python 3.9 and newer, one file: it is run by path with `python -I`,
and a zygote calls `main(spec, body=...)` in a forked child instead.

`spec` is a plain dictionary (JSON), made by `spotchaos.launch.attempt.attempt`; see `SPEC`.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import importlib.util
import json
import os
import select
import signal
import socket
import struct
import sys
import termios
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn


def _load(path: str) -> Any:
    """Import one file by its path; the program's side has no package of ours."""
    name = "_spotchaos_" + os.path.basename(path).partition(".")[0]
    if name not in sys.modules:
        specification = importlib.util.spec_from_file_location(name, path)
        if specification is None or specification.loader is None:
            raise ImportError(f"{path} is no Python file")
        module = importlib.util.module_from_spec(specification)
        sys.modules[name] = module
        specification.loader.exec_module(module)
    return sys.modules[name]


if TYPE_CHECKING:
    from spotchaos.launch.isolation import capabilities, children, delays, namespaces
else:
    capabilities = _load(os.path.join(os.path.dirname(__file__), "capabilities.py"))
    delays = _load(os.path.join(os.path.dirname(__file__), "delays.py"))
    children = _load(os.path.join(os.path.dirname(__file__), "children.py"))
    namespaces = _load(os.path.join(os.path.dirname(__file__), "namespaces.py"))

SPEC: dict[str, Any] = {
    "control": None,  # descriptor of a SEQPACKET socket on which we report
    "lifeline": None,  # descriptor of a pipe; anything on it, or its end, means: die
    "unshare": [],  # of user, mount, pid, network, ipc, uts
    "root": None,  # folder that becomes the root; None: the root stays
    "mounts": [],  # steps, see `_mount_step`
    "host_name": None,
    "addresses": [],  # for the loopback device, besides its own
    "listen": [],  # [host, port] to listen on inside, passed to the harness
    "last_pid": None,  # the next process gets this number plus one
    "capabilities": None,  # bit mask of those that the program keeps; None: all
    "cgroup": None,  # folder of a version 2 control group that the program joins
    "command": [],
    "environment": {},
    "folder": "/",
    "output": None,  # file that takes stdout and stderr
    "pty": False,
    "ranks": None,
    "master_port": 29500,
    "linger_s": 1.0,  # for others to follow the leader before they count as survivors
    "supervisor": None,  # {"path": FILE, "serve": NAME, "prepare": NAME, "options": {}}
}
Spec = dict[str, Any]
Body = Callable[[dict[str, str]], Any]
Hook = Callable[[socket.socket, Any], Any]

PTY_ROWS, PTY_COLUMNS = 24, 80


def main(
    spec: Spec,
    *,
    body: Body | None = None,
    supervise: Hook | None = None,
    prepare: Hook | None = None,
) -> int:
    """Carry one attempt out, and return when nothing of it lives.

    Args:
        spec: see `SPEC`.
        body: runs in the program's process instead of an exec, with its environment.
        supervise: runs in a process of its own inside the attempt; the socket leads to
            `prepare`. Taken from `spec["supervisor"]` if left out.
        prepare: runs in the program's process before its first instruction.

    Returns:
        0, or 1 if the attempt could not be set up (the reason went to the harness).
    """
    spec = {**SPEC, **spec}
    if supervise is None and spec["supervisor"] is not None:
        supervise, prepare = _load_supervisor(spec["supervisor"])
    namespaces.prctl(namespaces.PR_SET_CHILD_SUBREAPER, 1)
    try:
        namespaces.unshare_first(spec["unshare"])
    except OSError as error:
        _emit(spec, {"error": f"could not isolate the attempt: {error}"})
        return 1
    if spec["cgroup"] is not None:
        # Opened here: inside, control groups are read-only.
        path = os.path.join(spec["cgroup"], "cgroup.procs")
        spec["cgroup_procs"] = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    wake = children.wake_on_sigchld()
    init = os.fork()
    if init == 0:
        _run_init(spec, body, supervise, prepare)
    _emit(spec, {"init": init})
    return _watch(spec, init, wake)


def enter(spec: Spec) -> list[str]:
    """Move this process into namespaces of its own and put the view's root in place.

    Returns:
        Mount points that could only be made read-only although more was asked for.

    Raises:
        OSError: a step failed; the process must exit.
    """
    namespaces.unshare_rest(spec["unshare"])
    if "network" in spec["unshare"]:
        namespaces.bring_up_loopback(spec["addresses"])
    if spec["last_pid"] is not None and "pid" in spec["unshare"]:
        # Before /proc/sys becomes read-only; it counts for our own PID namespace.
        _write_quietly("/proc/sys/kernel/ns_last_pid", str(spec["last_pid"]))
    refused: list[str] = []
    if "mount" in spec["unshare"]:
        refused = namespaces.mount_all(spec)
    if "uts" in spec["unshare"] and spec["host_name"]:
        socket.sethostname(spec["host_name"])
    return refused


def start(
    spec: Spec,
    *,
    body: Body | None = None,
    supervise: Hook | None = None,
    prepare: Hook | None = None,
) -> tuple[int, int | None, int | None]:
    """Fork the supervisor, if any, and the program.

    Returns:
        Pid of the program's first process, of the supervisor, and the pty's master.
    """
    options = (spec["supervisor"] or {}).get("options", {})
    ours: socket.socket | None = None
    supervisor = None
    if supervise is not None:
        ours, theirs = socket.socketpair()
        supervisor = os.fork()
        if supervisor == 0:
            _become_plain_child(spec)
            ours.close()
            children.exit_after(lambda: supervise(theirs, options))
        theirs.close()
    master, slave = _open_pty() if spec["pty"] else (None, None)
    sys.stdout.flush()
    leader = os.fork()
    if leader == 0:
        _become_plain_child(spec)
        children.exit_after(
            lambda: _run_leader(spec, body, prepare, ours, options, slave)
        )
    if ours is not None:
        ours.close()
    if slave is not None:
        os.close(slave)
    return leader, supervisor, master


# --- the outer process -----------------------------------------------------------------


def _watch(spec: Spec, init: int, wake: int) -> int:
    """Wait for the end of the init, or bring it about when the harness is gone."""
    poller = select.poll()
    poller.register(spec["lifeline"], select.POLLIN)
    poller.register(wake, select.POLLIN)
    usage: Any = None
    while usage is None:
        for descriptor, _ in poller.poll():
            if descriptor == wake:
                os.read(wake, 4096)
            else:
                poller.unregister(spec["lifeline"])
                children.kill(init)
        pid = -1
        while pid != 0 and usage is None:
            # Without a PID namespace orphans come to us; they end below.
            pid, _, reaped = os.wait4(-1, os.WNOHANG)
            if pid == init:
                usage = reaped
    left = end_all()
    cpu_s = usage.ru_utime + usage.ru_stime
    _remove_group(spec["cgroup"])
    _emit(spec, {"gone": True, "cpu_s": cpu_s, "left": left})
    return 0


def end_all() -> list[int]:
    """Kill our descendants until none is left; return those that do not die in 5 s.

    We adopt every orphan, so that nothing lives when we have no child any more.
    """
    fair_s = _clock_of_others()
    deadline = fair_s() + 5.0
    while _has_children():
        left = children.descendants(os.getpid())
        if fair_s() >= deadline:
            return left
        for pid in left:
            children.kill(pid)
        while children.reap_one() is not None:
            pass
        select.select([], [], [], 0.002)
    return []


def _clock_of_others() -> Callable[[], float]:
    """Return a clock that stands still while others keep our descendants from running."""
    waits = delays.Delays(lambda: children.descendants(os.getpid()), time.monotonic)
    return lambda: time.monotonic() - waits.total_s()


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


# --- the init --------------------------------------------------------------------------


def _run_init(
    spec: Spec,
    body: Body | None,
    supervise: Hook | None,
    prepare: Hook | None,
) -> NoReturn:
    namespaces.prctl(namespaces.PR_SET_PDEATHSIG, signal.SIGKILL)
    namespaces.prctl(namespaces.PR_SET_CHILD_SUBREAPER, 1)
    try:
        wake = children.wake_on_sigchld()
        refused = enter(spec)
        listeners = [_listen(host, port) for host, port in spec["listen"]]
        leader, supervisor, master = start(
            spec, body=body, supervise=supervise, prepare=prepare
        )
        _emit(
            spec,
            {
                "leader": leader,
                "supervisor": supervisor,
                "refused": refused,
                "listeners": len(listeners),
            },
            [listener.fileno() for listener in listeners],
        )
        for listener in listeners:
            listener.close()
    except OSError as error:
        _emit(spec, {"error": f"could not set up the attempt: {error}"})
        os._exit(1)
    try:
        _serve(spec, leader, supervisor, master, wake)
    finally:
        os._exit(0)


def _serve(
    spec: Spec, leader: int, supervisor: int | None, master: int | None, wake: int
) -> None:
    """Reap, pump the terminal, and report, until the harness ends us."""
    poller = select.poll()
    poller.register(spec["lifeline"], select.POLLIN)
    poller.register(wake, select.POLLIN)
    output = None
    if master is not None:
        output = os.open(spec["output"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        poller.register(master, select.POLLIN)
    fair_s: Callable[[], float] = time.monotonic
    report_at: float | None = None
    reported = False
    while True:
        timeout = None
        if report_at is not None and not reported:
            timeout = max(0.0, report_at - fair_s()) * 1000
        for descriptor, _ in poller.poll(timeout):
            if descriptor == wake:
                os.read(wake, 4096)
            elif descriptor == spec["lifeline"]:
                return
            elif output is not None and not _pump(descriptor, output):
                poller.unregister(descriptor)
        for pid, status in iter(children.reap_one, None):
            if pid == leader:
                fair_s = _clock_of_others()
                report_at = fair_s() + spec["linger_s"]
                code = children.exit_code(status)
                _emit(spec, {"ended": code, "t": time.monotonic()})
        if report_at is not None and not reported:
            living = _others(supervisor)
            if not living or fair_s() >= report_at:
                reported = True
                _emit(
                    spec,
                    {
                        "survivors": [[pid, children.argv_of(pid)] for pid in living],
                        "ports": [[pid, children.ports_of(pid)] for pid in living],
                    },
                )


def _others(supervisor: int | None) -> list[int]:
    """Return who lives; looked at twice, since a child may be born while we look."""
    for _ in range(2):
        living = [pid for pid in children.descendants(os.getpid()) if pid != supervisor]
        if living:
            return living
    return []


def _pump(master: int, output: int) -> bool:
    try:
        content = os.read(master, 65536)
    except OSError:  # EIO: nobody holds the other side any more
        return False
    os.write(output, content)
    return bool(content)


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen(64)
    return listener


# --- the program -----------------------------------------------------------------------


def _become_plain_child(spec: Spec) -> None:
    """Give up what only the init needs: signals, descriptors."""
    signal.set_wakeup_fd(-1)
    # The program starts as from a terminal, whatever nohup, a shell's `&` or Python
    # itself has set for us: a signal that is ignored from the start proves nothing.
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) is not None:  # else the C library's own
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for descriptor in (spec["control"], spec["lifeline"]):
        if descriptor is not None:
            os.close(descriptor)


def _run_leader(
    spec: Spec,
    body: Body | None,
    prepare: Hook | None,
    connection: socket.socket | None,
    options: Any,
    slave: int | None,
) -> None:
    os.setsid()
    if spec["cgroup"] is not None:
        os.write(spec["cgroup_procs"], b"0")
        os.close(spec["cgroup_procs"])
    os.chdir(spec["folder"])
    _redirect(spec, slave)
    if prepare is not None and connection is not None:
        prepare(connection, options)
        connection.close()
    if spec["capabilities"] is not None:
        capabilities.keep_only(spec["capabilities"])
    environment = dict(spec["environment"])
    if spec["ranks"] is None:
        _become_program(spec, environment, body)
    else:
        become = functools.partial(_become_program, spec, body=body)
        count, port = spec["ranks"], spec["master_port"]
        status = children.launch_ranks(
            count, port, environment, become, clock_of_children=_clock_of_others
        )
        os._exit(status)


def _redirect(spec: Spec, slave: int | None) -> None:
    if slave is not None:
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        for descriptor in (0, 1, 2):
            os.dup2(slave, descriptor)
        os.close(slave)
        return
    null = os.open("/dev/null", os.O_RDONLY)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    output = os.open(spec["output"] or "/dev/null", flags, 0o600)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    for descriptor in (null, output):
        if descriptor > 2:
            os.close(descriptor)


def _become_program(spec: Spec, environment: dict[str, str], body: Body | None) -> None:
    if body is not None:
        body(environment)
        return
    command = spec["command"]
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        message = f"{command[0]}: {error.strerror}\n"
        os.write(2, message.encode())
        os._exit(126 if error.errno == errno.EACCES else 127)


def _open_pty() -> tuple[int, int]:
    master, slave = os.openpty()
    size = struct.pack("HHHH", PTY_ROWS, PTY_COLUMNS, 0, 0)
    fcntl.ioctl(slave, termios.TIOCSWINSZ, size)
    return master, slave


# --- small things ----------------------------------------------------------------------


def _load_supervisor(described: dict[str, Any]) -> tuple[Hook, Hook | None]:
    module = _load(described["path"])
    prepare = described.get("prepare")
    return (
        getattr(module, described.get("serve", "serve")),
        None if prepare is None else getattr(module, prepare),
    )


def _emit(spec: Spec, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send one report; a harness that is gone needs none."""
    content = json.dumps(message).encode()
    with socket.socket(fileno=os.dup(spec["control"])) as control:
        try:
            if descriptors:
                packed = struct.pack(f"{len(descriptors)}i", *descriptors)
                control.sendmsg(
                    [content], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, packed)]
                )
            else:
                control.send(content)
        except OSError:
            return


def _remove_group(path: str | None) -> None:
    if path is not None:
        try:
            os.rmdir(path)
        except OSError:
            return


def _write_quietly(path: str, text: str) -> None:
    try:
        with open(path, "w") as file:
            file.write(text)
    except OSError:
        return


def _run_from_command_line() -> int:
    descriptor = int(sys.argv[1])
    with open(descriptor) as file:
        spec = json.load(file)
    return main(spec)


if __name__ == "__main__":
    sys.exit(_run_from_command_line())
