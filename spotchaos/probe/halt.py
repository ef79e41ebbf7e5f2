"""Holding still at the kill point until the harness has fired or says go on.

The wait is a `recv`: a signal that arrives meanwhile runs the program's handler
inside it (PEP 475), and what the handler raises passes through unchanged. Sites that the
handler reaches count, and one of them may halt in turn.
"""

from __future__ import annotations

import _socket
import json
import os
from typing import TYPE_CHECKING

from spotchaos.probe.record import identity, raised

if TYPE_CHECKING:
    from typing import Any


# How long a halt waits before it looks whether a halt within it has read its answer.
LOOK_S = 0.1


class Harness:
    """The attempt's Unix socket, as this process sees it.

    Args:
        path: of the socket; None where nobody listens.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._socket: _socket.socket | None = None
        self._identity: tuple[int, int] | None = None
        self._unread = b""
        self._halts = 0
        self._open_halts: list[int] = []
        self._released: set[int] = set()
        self.new_kill: str | None = None  # a next kill point that came with "go"

    def say(self, message: dict[str, Any]) -> bool:
        """Send one line; False if nobody listens."""
        if self._socket is not None and not self._is_ours():
            self._close()  # the program closed it, as one that becomes a daemon
        if self._socket is None and not self._connect():
            return False
        assert self._socket is not None
        try:
            self._socket.settimeout(None)  # of a wait that this interrupts
            self._socket.sendall(json.dumps(message, default=str).encode() + b"\n")
        except OSError:
            self._close()
            return False
        return True

    def hold(self, point: str, *, rank: int, step: int) -> None:
        """Say that `point` is reached, and return when told to go on.

        A lost connection is an order to go on: a harness that is gone fires no more.
        """
        self._halts += 1
        number = self._halts
        message = {"halt": point, "pid": os.getpid(), "rank": rank, "step": step}
        if not self.say({**message, "id": number}):
            return
        self._open_halts.append(number)
        try:
            while number not in self._released:
                line = self._read_line()
                if line is None:
                    return
                if line:
                    self._take(line)
        finally:
            self._open_halts.remove(number)

    def forget(self) -> None:
        """Leave the parent's connection to the parent: called in a forked child."""
        self._close()
        self._open_halts.clear()
        self._unread = b""

    def _take(self, line: bytes) -> None:
        try:
            answer = json.loads(line)
        except ValueError:
            return
        if not isinstance(answer, dict) or not answer.get("go"):
            return
        if answer.get("kill"):
            self.new_kill = str(answer["kill"])
        # An answer without a number is for the outermost halt that has none yet: one
        # that was sent before a signal's handler came to a halt of its own.
        waiting = [n for n in self._open_halts if n not in self._released]
        number = answer.get("id", waiting[0] if waiting else None)
        if number is not None:
            self._released.add(int(number))

    def _read_line(self) -> bytes | None:
        """Return the next line; b"" if none came for a moment, None if nobody is there.

        After a handler the wait goes on, though a halt in the handler may have read what
        it waits for: so it is a short one.
        """
        while b"\n" not in self._unread:
            if self._socket is None:
                return None
            try:
                self._socket.settimeout(LOOK_S)
                received = self._socket.recv(4096)
            except _socket.timeout:  # no TimeoutError before Python 3.10
                return b""
            except OSError:
                received = b""
            if not received:
                self._close()
                return None
            self._unread += received
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _connect(self) -> bool:
        if self._path is None:
            return False
        # The C type: importing `socket` itself would cost each child of the program 8 ms.
        kind = (_socket.AF_UNIX, _socket.SOCK_STREAM, 0)
        connection = _socket.socket(*kind)
        try:
            connection.connect(self._path)
        except OSError:
            connection.close()
            self._path = None
            return False
        self._socket = _socket.socket(*kind, raised(connection.detach()))
        self._identity = identity(self._socket.fileno())
        return True

    def _is_ours(self) -> bool:
        assert self._socket is not None
        return identity(self._socket.fileno()) == self._identity

    def _close(self) -> None:
        if self._socket is not None:
            if self._is_ours():
                self._socket.close()
            else:
                self._socket.detach()  # what has its number now is the program's
            self._socket = None
