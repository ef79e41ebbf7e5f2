"""The attempt's Unix socket: who says hello, who halts, and who is told to go on.

One JSON object a line. From the probe: `{"hello": MARK}` with the keys of the mark of that
name, and `{"halt": POINT, "pid", "rank", "step", "id"}`. To it: `{"go": true, "id"}` with
the id of the halt, and `"kill"` if there is a next kill point. The supervisor of file ops
speaks the same, without hello, step and id.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotchaos.errors import HarnessError

_CREDENTIALS = struct.Struct("3i")
# Of sun_path, with its final zero (unix(7)).
LONGEST_PATH = 107


@dataclass(frozen=True, slots=True)
class Hello:
    """A process of the program that may train."""

    pid: int  # as the program sees it
    host_pid: int  # here
    rank: int
    world_size: int


@dataclass(frozen=True, slots=True)
class Halt:
    """A rank that holds still."""

    point: str
    pid: int
    rank: int
    step: int
    number: int


class Conversation:
    """Listens where the probes of one attempt connect.

    Args:
        path: of the socket.

    Raises:
        HarnessError: the path is too long for a Unix socket.
    """

    def __init__(self, path: Path) -> None:
        if len(str(path)) > LONGEST_PATH:
            raise HarnessError(
                f"{str(path)!r} is too long for the name of a Unix socket",
                hint="set TMPDIR to a shorter path",
            )
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(128)
        self._listener.settimeout(0.0)
        self._peers: list[_Peer] = []
        self.hellos: dict[int, Hello] = {}  # by pid here

    def sources(self) -> list[int]:
        """Return the descriptors to wait for."""
        if self._listener.fileno() < 0:
            return []
        return [self._listener.fileno(), *(p.socket.fileno() for p in self._peers)]

    def receive(self) -> Iterator[Halt]:
        """Take in all that has arrived; yield each halt."""
        while True:
            try:
                self._peers.append(_Peer(self._listener.accept()[0]))
            except OSError:
                break
        for peer in list(self._peers):
            for message in peer.messages():
                if "hello" in message:
                    self._greet(peer, message["hello"])
                if "halt" in message:
                    halt = Halt(
                        point=str(message["halt"]),
                        pid=int(message.get("pid") or 0),
                        rank=int(message.get("rank") or 0),
                        step=int(message.get("step") or 0),
                        number=int(message.get("id") or 0),
                    )
                    peer.halts.append(halt)
                    yield halt
            if peer.is_closed:
                self._peers.remove(peer)
                peer.socket.close()

    def holding(self) -> set[int]:
        """Return the ranks that hold still now."""
        return {halt.rank for peer in self._peers for halt in peer.halts}

    def release(self, rank: int | None, *, kill: str | None) -> None:
        """Tell ranks to go on: one, or all."""
        for peer in self._peers:
            for halt in [h for h in peer.halts if rank is None or h.rank == rank]:
                peer.halts.remove(halt)
                answer: dict[str, Any] = {"go": True, "id": halt.number}
                if kill is not None:
                    answer["kill"] = kill
                # A process that died meanwhile needs no answer.
                with contextlib.suppress(OSError):
                    peer.socket.sendall(json.dumps(answer).encode() + b"\n")

    def close(self) -> None:
        """Hang up; whoever still holds goes on."""
        self._listener.close()
        for peer in self._peers:
            peer.socket.close()
        self._peers.clear()

    def _greet(self, peer: _Peer, mark: dict[str, Any]) -> None:
        self.hellos[peer.pid] = Hello(
            pid=int(mark.get("pid", 0)),
            host_pid=peer.pid,
            rank=int(mark.get("rank") or 0),
            world_size=int(mark.get("world_size") or 1),
        )


class _Peer:
    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(0.0)
        self.socket = connection
        packed = connection.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
        )
        # The kernel translates it into our PID namespace (unix(7), SO_PEERCRED).
        self.pid = int(_CREDENTIALS.unpack(packed)[0])
        self.halts: list[Halt] = []
        self.is_closed = False
        self._unread = b""

    def messages(self) -> Iterator[dict[str, Any]]:
        while True:
            try:
                received = self.socket.recv(65536)
            except BlockingIOError:
                break
            except OSError:
                received = b""
            if not received:
                self.is_closed = True
                break
            self._unread += received
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError):
                message = json.loads(line)
                if isinstance(message, dict):
                    yield message
