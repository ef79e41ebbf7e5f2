"""What this process leaves behind if it dies: told to a cleaner that outlives it.

See `cleaner`. It is started with the first thing that is told, and costs nothing before.
Without it, where no process can be started, the next run's sweep does the same.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

SCRIPT = Path(__file__).with_name("cleaner.py")
# How long the interpreter waits at its end for the cleaner's.
END_BOUND_S = 2.0
# It reads at once, unless it was stopped.
SAY_BOUND_S = 1.0


class Leaving:
    """Tells the cleaner; one for each process, `LEAVING`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._tried = False

    def keep(self, path: Path) -> None:
        """Have a file or folder removed; said before it is made."""
        self._say({"keep": str(path)})

    def group(self, path: Path) -> None:
        """Have a control group removed; said before it is made."""
        self._say({"group": str(path)})

    def hold(self, path: Path, lock: int) -> None:
        """Have the lock of a path held until that is forgotten."""
        self._say({"hold": str(path)}, lock)

    def forget(self, path: Path) -> None:
        """Tell that a file, folder or group is gone."""
        self._say({"forget": str(path)})

    def kill(self, leader: int) -> None:
        """Have a process group killed, by its leader's number."""
        self._say({"kill": leader})

    def wait_for(self, pid: int) -> None:
        """Have nothing removed before this process has ended, which it does by itself."""
        self._say({"await": pid})

    def close(self) -> None:
        """Have what was not forgotten put away now, and wait for it; safe to call twice."""
        with self._lock:
            connection, self._connection = self._connection, None
            process, self._process = self._process, None
            self._tried = False
        if connection is not None:
            connection.close()
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_BOUND_S)

    def disown(self) -> None:
        """Leave the cleaner to the process that this one was forked from."""
        self._lock = threading.Lock()
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.returncode = 0  # not a child of this process
        self._connection = self._process = None
        self._tried = False

    def _say(self, message: dict[str, str | int], *descriptors: int) -> None:
        with self._lock:
            if not self._tried:
                self._tried = True
                self._start()
            if self._connection is not None:
                content = [json.dumps(message).encode()]
                with contextlib.suppress(OSError):
                    if descriptors:
                        socket.send_fds(self._connection, content, descriptors)
                    else:
                        self._connection.sendmsg(content)

    def _start(self) -> None:
        harness = None
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:
            return
        try:
            with contextlib.suppress(OSError):
                harness = os.pidfd_open(os.getpid())
            passed = [theirs.fileno()] + ([] if harness is None else [harness])
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(SCRIPT), *map(str, passed)],
                pass_fds=passed,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
            )
            ours.settimeout(SAY_BOUND_S)
            self._connection = ours
        except OSError:
            ours.close()
        finally:
            theirs.close()
            if harness is not None:
                os.close(harness)


LEAVING = Leaving()
atexit.register(LEAVING.close)
os.register_at_fork(after_in_child=LEAVING.disown)
