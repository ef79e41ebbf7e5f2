"""The children of an attempt's own processes: starting ranks, reaping, who descends from whom.

Standard library only, Python 3.9 and newer: `inside.py`, which runs on the program's side,
loads this file by its path.
"""

# Paths here are handed to system calls as they are.
# ruff: noqa: PTH115, PTH123, PTH208

from __future__ import annotations

import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

Become = Callable[[dict[str, str]], Any]

# As torchrun: from the first failure, or a forwarded signal, to SIGKILL.
RANK_GRACE_S = 30.0


def launch_ranks(
    count: int,
    port: int,
    environment: dict[str, str],
    become: Become,
    *,
    clock_of_children: Callable[[], Callable[[], float]],
) -> int:
    """Start every rank in a session of its own, as torchrun does, and wait for them.

    Args:
        count: of ranks.
        port: at which they meet.
        environment: of all of them.
        become: has a child become its rank.
        clock_of_children: makes the clock of what they are given to end.

    Returns:
        0 if every rank ended with 0, else the status of the first that did not, with
        128 added to the number of a signal.
    """
    wake = wake_on_sigchld()
    caught: list[int] = []
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"):
        number = getattr(signal, name)
        signal.signal(number, lambda number, frame: caught.append(number))
    ranks: dict[int, int] = {}
    for rank in range(count):
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for name in ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGCHLD"):
                signal.signal(getattr(signal, name), signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.setsid()
            environment.update(_rank_environment(rank, count, port))
            exit_after(lambda: become(environment))
        ranks[pid] = rank
    first_bad = 0
    fair_s: Callable[[], float] = time.monotonic
    deadline: float | None = None
    while ranks:
        left_s = None if deadline is None else max(0.0, deadline - fair_s())
        if select.select([wake], [], [], left_s)[0]:
            os.read(wake, 4096)
        for pid, status in iter(reap_one, None):
            if ranks.pop(pid, None) is None:
                continue
            code = exit_code(status)
            if code != 0 and first_bad == 0:
                first_bad = code if code > 0 else 128 - code
                caught.append(signal.SIGTERM)
        while caught:
            _signal_each(ranks, caught.pop(0))
            if deadline is None:
                fair_s = clock_of_children()
                deadline = fair_s() + RANK_GRACE_S
        if deadline is not None and fair_s() >= deadline:
            _signal_each(ranks, signal.SIGKILL)
    return first_bad


def _signal_each(pids: Any, number: int) -> None:
    for pid in list(pids):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _rank_environment(rank: int, count: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "ROLE_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "ROLE_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def descendants(root: int) -> list[int]:
    """Return the pids of all live descendants of `root`, zombies left out."""
    children: dict[int, list[int]] = {}
    zombies: set[int] = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = _stat_of(int(name))
            if fields is not None:
                children.setdefault(int(fields[1]), []).append(int(name))
                if fields[0] in ("Z", "X"):
                    zombies.add(int(name))
    found: list[int] = []
    waiting = [root]
    while waiting:
        for child in children.get(waiting.pop(), []):
            waiting.append(child)
            found.append(child)
    return sorted(pid for pid in found if pid not in zombies)


def argv_of(pid: int) -> list[str]:
    """Return the command line of a process; empty if it is gone."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return [a.decode("utf-8", "replace") for a in file.read().split(b"\0")[:-1]]
    except OSError:
        return []


def ports_of(pid: int) -> list[int]:
    """Return the TCP ports at which a process listens; empty if it is gone.

    Source: the Linux kernel's Documentation/networking/proc_net_tcp.rst; 0A is LISTEN.
    """
    inodes = set()
    found = set()
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            target = os.readlink(f"/proc/{pid}/fd/{name}")
            if target.startswith("socket:["):
                inodes.add(target[len("socket:[") : -1])
        for table in ("tcp", "tcp6"):
            with open(f"/proc/{pid}/net/{table}", encoding="ascii") as file:
                for line in file.readlines()[1:]:
                    fields = line.split()
                    if fields[3] == "0A" and fields[9] in inodes:
                        found.add(int(fields[1].rpartition(":")[2], 16))
    except OSError:  # it has ended, or there is no IPv6
        pass
    return sorted(found)


def wake_on_sigchld() -> int:
    """Return a descriptor that becomes readable when a signal arrives."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader


def exit_after(action: Callable[[], Any]) -> NoReturn:
    """Run the rest of a forked child; its errors go to its stderr, never up the stack."""
    status = 0
    try:
        action()
    except SystemExit as exit_:
        status = exit_.code if isinstance(exit_.code, int) else int(bool(exit_.code))
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)


def reap_one() -> tuple[int, int] | None:
    """Return pid and wait status of a child that has ended; None if none has."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None


def exit_code(status: int) -> int:
    """Return the exit status, negative for the signal that ended it."""
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _stat_of(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the state on; None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode().split()
    except OSError:
        return None


def kill(pid: int) -> None:
    """Send SIGKILL; to a process that is gone, nothing."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
