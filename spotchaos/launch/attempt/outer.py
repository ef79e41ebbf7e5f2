"""The first process of an attempt: started or forked, heard, and ended with its lifeline."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spotchaos.launch.isolation.credentials import without_secrets
from spotchaos.launch.isolation.leaving import LEAVING
from spotchaos.launch.zygote.zygote import Forked, Warm

INSIDE = Path(__file__).parents[1] / "isolation" / "inside.py"


class Outer:
    """The process around an attempt, which ends everything when its lifeline is cut.

    Attributes:
        listeners: sockets of ours that it sent, in the order in which they came.
        is_silent: it closed its side, so that nothing more will come.
    """

    def __init__(
        self, spec: Mapping[str, Any], errors: Path, warm: Warm | None
    ) -> None:
        """Start it.

        Args:
            spec: what it is to do (`launch.spec`).
            errors: file for what it says on its standard error.
            warm: the zygote that forks it; None starts a fresh process.
        """
        self.listeners: list[socket.socket] = []
        self.is_silent = False
        self._errors = errors
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(0.0)  # recv_fds of Python 3.11 ignores its flags
        reader, lifeline = os.pipe()
        self._lifeline: int | None = lifeline
        described = os.memfd_create("spotchaos-spec")
        try:
            content = {**spec, "control": theirs.fileno(), "lifeline": reader}
            with os.fdopen(os.dup(described), "w") as file:
                json.dump(content, file)
            os.lseek(described, 0, os.SEEK_SET)
            with errors.open("wb") as complaints:
                if warm is not None:
                    self._process = warm.zygote.fork(
                        warm.start,
                        spec=described,
                        control=theirs.fileno(),
                        lifeline=reader,
                        complaints=complaints.fileno(),
                    )
                else:
                    self._process = subprocess.Popen(
                        [sys.executable, "-I", "-S", str(INSIDE), str(described)],
                        pass_fds=(described, theirs.fileno(), reader),
                        # An attempt can read it at /proc/1/environ.
                        env=without_secrets(os.environ),
                        start_new_session=True,
                        stdin=subprocess.DEVNULL,
                        stdout=complaints,
                        stderr=complaints,
                        cwd="/",
                    )
            LEAVING.wait_for(self._process.pid)
        except BaseException:
            self.cut()
            self._control.close()
            raise
        finally:
            os.close(described)
            os.close(reader)
            theirs.close()

    @property
    def pid(self) -> int:
        """Its process id, here."""
        assert self._process is not None
        return self._process.pid

    def sources(self) -> list[int]:
        """Return the descriptors that become readable when it reports."""
        return [] if self.is_silent else [self._control.fileno()]

    def reports(self) -> list[dict[str, Any]]:
        """Return what has come since the last call, without waiting."""
        found: list[dict[str, Any]] = []
        while not self.is_silent:
            try:
                content, descriptors, _, _ = socket.recv_fds(self._control, 1 << 20, 64)
            except BlockingIOError:
                break
            self.listeners += [socket.socket(fileno=number) for number in descriptors]
            if content:
                found.append(json.loads(content))
            else:
                self.is_silent = True
        return found

    def last_words(self) -> str | None:
        """Return the last line that it wrote to its standard error."""
        with contextlib.suppress(OSError):
            lines = self._errors.read_text().splitlines()
            return lines[-1] if lines else None
        return None

    def wait(self, bound_s: float) -> None:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: it has not ended within `bound_s` seconds.
        """
        assert self._process is not None
        self._process.wait(bound_s)

    def cut(self) -> None:
        """Cut the lifeline: it ends all that it started, and itself. From any thread."""
        if self._lifeline is None:
            return
        lifeline, self._lifeline = self._lifeline, None
        os.close(lifeline)

    def end(self, bound_s: float) -> None:
        """Cut the lifeline and wait; after `bound_s` seconds it is killed."""
        self.cut()
        try:
            self.wait(bound_s)
        except subprocess.TimeoutExpired:
            # It hangs before it has started anything, or it would have been heard.
            assert self._process is not None
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.wait(bound_s)

    def close(self) -> None:
        """Let go of the sockets; nothing is heard any more."""
        self.is_silent = True
        for listener in self.listeners:
            listener.close()
        self._control.close()
