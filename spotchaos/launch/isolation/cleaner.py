"""A small process that outlives the harness and puts away what it left.

The harness tells it of each folder, lock and process before or as it makes them, one JSON
object a message on a SEQPACKET socket, a lock's descriptor beside it:

    {"keep": PATH}      remove it at the end; {"forget": PATH} when that is done
    {"group": PATH}     a control group, removed at the end; "forget" as above
    {"hold": PATH}      with a descriptor: the lock of PATH, held until it is forgotten
    {"kill": PID}       the leader of a process group, killed at the end
    {"await": PID}      it ends by itself with the harness, and all it started with it

The end is when the harness's side is closed or the harness is dead, however that came:
what is not forgotten by then is put away, and this process ends.

Run by path with `python -I -S`: standard library only.
"""

# Paths here are handed to system calls as they are.
# ruff: noqa: PTH106, PTH118, PTH120

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spotchaos.launch.isolation import removal
else:
    _described = importlib.util.spec_from_file_location(
        "removal", os.path.join(os.path.dirname(__file__), "removal.py")
    )
    removal = importlib.util.module_from_spec(_described)
    _described.loader.exec_module(removal)

# An attempt's own processes need some milliseconds; on a loaded machine a thousand times
# that. What is not gone then will not go, and a later run tries again.
AWAIT_BOUND_S = 10.0
END_BOUND_S = 30.0
POLL_S = 0.02
MOST_DESCRIPTORS = 8


class Left:
    """What is to be put away if the harness ends now."""

    def __init__(self) -> None:
        self._paths: dict[str, None] = {}
        self._groups: dict[str, None] = {}
        self._locks: dict[str, int] = {}
        self._processes: dict[int, tuple[str, int]] = {}  # pid -> what to do, pidfd

    def take(self, message: dict[str, Any], descriptors: list[int]) -> None:
        """Take one message in."""
        for what, value in message.items():
            if what == "keep":
                self._paths[value] = None
            elif what == "group":
                self._groups[value] = None
            elif what == "hold" and descriptors:
                self._locks[value] = descriptors.pop()
            elif what == "forget":
                self._paths.pop(value, None)
                self._groups.pop(value, None)
                if value in self._locks:
                    os.close(self._locks.pop(value))
            elif what in ("kill", "await"):
                self._forget_dead()
                with contextlib.suppress(OSError):  # it has ended already
                    self._processes[value] = (what, os.pidfd_open(value))
        for descriptor in descriptors:
            os.close(descriptor)

    def put_away(self) -> None:
        """End processes, then remove what they wrote; tried again until nothing is left."""
        for pid, (what, descriptor) in self._processes.items():
            if what == "kill" and _lives(descriptor):
                with contextlib.suppress(OSError):
                    os.killpg(pid, signal.SIGKILL)
        begun_s = time.monotonic()
        while self._processes and time.monotonic() < begun_s + AWAIT_BOUND_S:
            self._forget_dead()
            select.select([], [], [], POLL_S)
        while not self._is_all_gone() and time.monotonic() < begun_s + END_BOUND_S:
            select.select([], [], [], POLL_S)

    def _is_all_gone(self) -> bool:
        groups = [_remove_group(path) for path in self._groups]
        # A folder comes before its lock: that is how a later run knows it is ours.
        removed = [removal.remove_tree(path) for path in self._paths]
        return all(groups) and all(removed)

    def _forget_dead(self) -> None:
        for pid, (_, descriptor) in list(self._processes.items()):
            if not _lives(descriptor):
                os.close(descriptor)
                del self._processes[pid]


def _lives(descriptor: int) -> bool:
    return not select.select([descriptor], [], [], 0)[0]


def _remove_group(path: str) -> bool:
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def main(connection: socket.socket, harness: int | None) -> None:
    """Listen until the harness ends, and put away what it left.

    Args:
        connection: whose other side only the harness has.
        harness: a descriptor of its process; None: there are none here.
    """
    # Whoever ends the harness by its terminal or session does not mean us.
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGPIPE"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    left = Left()
    poller = select.poll()
    poller.register(connection, select.POLLIN)
    if harness is not None:
        poller.register(harness, select.POLLIN)
    connection.settimeout(0.0)
    while True:
        poller.poll()
        try:
            content, descriptors, _, _ = socket.recv_fds(
                connection, 1 << 16, MOST_DESCRIPTORS
            )
        except BlockingIOError:  # all was said, and the harness is dead
            break
        except OSError:
            break
        if not content:
            break
        with contextlib.suppress(ValueError):
            left.take(json.loads(content), descriptors)
    left.put_away()


if __name__ == "__main__":
    main(
        socket.socket(fileno=int(sys.argv[1])),
        int(sys.argv[2]) if len(sys.argv) > 2 else None,
    )
