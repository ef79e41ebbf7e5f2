"""Processes of an attempt as the harness sees them: who they are, stopped or not.

Everything here reads /proc or sends signals, from outside, with pids of the harness's own
namespace.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from spotchaos.launch.isolation.children import argv_of, descendants
from spotchaos.launch.isolation.leaving import LEAVING

PROC = Path("/proc")
GROUP_ROOTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))


@dataclass(frozen=True, slots=True)
class Process:
    """One live process."""

    pid: int  # here
    inner_pid: int  # in its own PID namespace
    parent: int
    group: int
    state: str
    cpu_ticks: int


def read_process(pid: int) -> Process | None:
    """Return what /proc says of a process; None if it is gone or a zombie."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
        fields = text.rpartition(")")[2].split()
        status = (PROC / str(pid) / "status").read_text(errors="replace")
    except OSError:
        return None
    if fields[0] in ("Z", "X"):
        return None
    inner = pid
    for line in status.splitlines():
        if line.startswith("NSpid:"):
            inner = int(line.split()[-1])
    return Process(
        pid=pid,
        inner_pid=inner,
        parent=int(fields[1]),
        group=int(fields[2]),
        state=fields[0],
        cpu_ticks=int(fields[11]) + int(fields[12]),
    )


def processes_below(root: int) -> list[Process]:
    """Return all live descendants of a process, without itself."""
    found = (read_process(pid) for pid in descendants(root))
    return [process for process in found if process is not None]


def command_line(pid: int) -> list[str]:
    """Return the arguments of a process; empty if it is gone."""
    return argv_of(pid)


def send(pids: Iterable[int], number: int) -> int:
    """Send a signal to each; return how many were still there to get it."""
    count = 0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            count += 1
    return count


def thread_states(pid: int) -> str:
    """Return the state letters of all threads of a process; empty if it is gone."""
    letters = ""
    with contextlib.suppress(OSError):
        for task in os.scandir(PROC / str(pid) / "task"):
            with contextlib.suppress(OSError):
                text = Path(task.path, "stat").read_text(errors="replace")
                letters += text.rpartition(")")[2].split()[0]
    return letters


def is_stopped(pid: int) -> bool:
    """Tell whether every thread of a process is stopped, or it is gone."""
    return all(letter in "TtZX" for letter in thread_states(pid))


def catches(pid: int, number: int) -> bool:
    """Tell whether a process has a handler for a signal (proc_pid_status(5), SigCgt)."""
    return _is_in_mask(pid, "SigCgt:", number)


def all_ignore(pids: Collection[int], number: int) -> bool:
    """Tell whether there are processes that all ignore a signal (SigIgn)."""
    return bool(pids) and all(_is_in_mask(pid, "SigIgn:", number) for pid in pids)


def _is_in_mask(pid: int, mask: str, number: int) -> bool:
    with contextlib.suppress(OSError):
        for line in (PROC / str(pid) / "status").read_text().splitlines():
            if line.startswith(mask):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def has_open(pid: int, path: Path) -> bool:
    """Tell whether a process has a file open."""
    with contextlib.suppress(OSError):
        wanted = path.stat()
        for entry in (PROC / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                if os.path.samestat(entry.stat(), wanted):
                    return True
    return False


def find_control_group(name: str) -> Path | None:
    """Return a version 2 control group below which we may make others; or None.

    Args:
        name: of one that is made there to try, and removed.
    """
    for root in GROUP_ROOTS:
        place = _own_group(root)
        if place is None:
            continue
        group = place / name
        LEAVING.group(group)
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if _can_hold_a_process(group):
                return place
        finally:
            with contextlib.suppress(OSError):
                group.rmdir()
            LEAVING.forget(group)
    return None


def _own_group(root: Path) -> Path | None:
    if not (root / "cgroup.procs").exists():
        return None
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("0::"):
            return root / line[3:].lstrip("/")
    return None


def _can_hold_a_process(group: Path) -> bool:
    if not (group / "cgroup.freeze").exists():
        return False
    # It ends by itself with us, whose end of its pipe is the only one.
    with subprocess.Popen(
        ["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as child:
        try:
            (group / "cgroup.procs").write_text(str(child.pid))
            return str(child.pid) in (group / "cgroup.procs").read_text().split()
        except OSError:
            return False
        finally:
            child.kill()


def any_lives(pids: Iterable[int]) -> bool:
    """Tell whether any of these processes, by pid here, lives."""
    return any(read_process(pid) is not None for pid in pids)
