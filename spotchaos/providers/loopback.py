"""A WSGI application on a loopback port: started, stopped, and never in anyone's way.

Serves the metadata wire and the object stores alike. It prints nothing, accepts hundreds
of connections at once, and lets a request drop its connection, cut or unanswered.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from spotchaos.errors import UsageError

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

# Pollers of a whole cluster may connect in the same instant.
BACKLOG = 1024
# How long `stop` waits for requests under way, in seconds.
DRAIN_S = 5.0
# Nothing that is said to a metadata service, or ordered of us, is longer.
LONGEST_BODY = 1 << 20
_HANDLER = "spotchaos.handler"


class DroppedError(ConnectionError):
    """Raised by an application that has dropped its own connection."""


class QuietHandler(WSGIRequestHandler):
    """Says nothing on the terminal; what was asked is in the application's own log."""

    def make_environ(self) -> WSGIEnvironment:
        """Let the application reach its handler, so that it can drop the connection."""
        return super().make_environ() | {_HANDLER: self}

    def send_response(self, code: int, message: str | None = None) -> None:
        """Leave the Server header to the application: the clouds have names of their own."""
        self.send_response_only(code, message)
        self.send_header("Date", self.date_time_string())

    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 - werkzeug's
        """Leave out what werkzeug would print for each request."""


class LoopbackServer:
    """A threaded WSGI server that is listening once it is made.

    Args:
        app: the application.
        host: where to listen.
        port: 0 for a free one.
        listener: a listening socket to take instead of host and port, such as one that
            was made in another network namespace; it stays the caller's to close.
        handler: werkzeug's request handler; applications bring their own as a subclass.

    Raises:
        UsageError: the port is in use, out of range, or not allowed.
    """

    def __init__(
        self,
        app: WSGIApplication,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        listener: socket.socket | None = None,
        handler: type[QuietHandler] = QuietHandler,
    ) -> None:
        self._app = app
        self._under_way = 0
        self._idle = threading.Condition()
        with contextlib.ExitStack() as open_here:
            if listener is None:
                listener = open_here.enter_context(_listening(host, port))
            host = str(listener.getsockname()[0])
            # werkzeug would print and exit by itself if it could not bind; so it gets
            # a socket that is bound already, of which it keeps its own copy.
            self._server: BaseWSGIServer = make_server(
                host,
                port,
                self._counted,
                threaded=True,
                request_handler=handler,
                fd=listener.fileno(),
            )
        self.port: int = self._server.port
        self.base_url = f"http://{host}:{self.port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.02},
            name=f"loopback-{self.port}",
            daemon=True,
        )
        self._is_stopped = False

    def start(self) -> Self:
        """Begin to answer."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop answering, let requests under way end, free the port; safe twice."""
        if self._is_stopped:
            return
        self._is_stopped = True
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        with self._idle:
            self._idle.wait_for(lambda: self._under_way == 0, timeout=DRAIN_S)
        self._server.server_close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _counted(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        with self._idle:
            self._under_way += 1
        try:
            return self._app(environ, start_response)
        except OSError as error:
            # Chunks that break off, as of a program that was killed while it sent them.
            if isinstance(error, ConnectionError) or not is_chunked(environ):
                raise
            raise drop(environ, is_reset=False) from error
        finally:
            with self._idle:
                self._under_way -= 1
                self._idle.notify_all()


@contextlib.contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    if not 0 <= port <= 65_535:
        raise UsageError(f"there is no port {port}", hint="ports are 0 to 65535")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(BACKLOG)
        except OSError as refused:
            raise UsageError(
                f"cannot listen on port {port}: {_why(refused)}",
                hint="choose another port, or 0 for a free one",
            ) from refused
        yield listener


def _why(refused: OSError) -> str:
    return (
        "it is in use" if refused.errno == errno.EADDRINUSE else str(refused.strerror)
    )


def connection(environ: WSGIEnvironment) -> socket.socket:
    """Return the socket on which this request came."""
    sock: socket.socket = environ["werkzeug.socket"]
    return sock


def is_chunked(environ: WSGIEnvironment) -> bool:
    """Tell whether the body comes in chunks, without a length."""
    return bool(environ.get("wsgi.input_terminated"))


def read_body(environ: WSGIEnvironment) -> bytes:
    """Return the body of a request, in chunks or not, of LONGEST_BODY bytes at most.

    One that ends before its time, or is no body at all, is what came of it.
    """
    length = environ.get("CONTENT_LENGTH") or "0"
    left = LONGEST_BODY
    if not is_chunked(environ):
        # More digits than these are too many bytes, and int() has a limit of its own.
        left = int(length[:9]) if length.isdecimal() else 0
    left = min(left, LONGEST_BODY)
    parts = []
    with contextlib.suppress(OSError):
        while left > 0 and (part := environ["wsgi.input"].read(left)):
            parts.append(part)
            left -= len(part)
    return b"".join(parts)


def is_connected(sock: socket.socket) -> bool:
    """Tell whether the other side still waits for an answer."""
    try:
        return not _is_readable(sock, wait_s=0) or bool(sock.recv(1, socket.MSG_PEEK))
    except (OSError, ValueError):
        return False


def _is_readable(sock: socket.socket, *, wait_s: float) -> bool:
    # Not select(): it knows no descriptor from 1024 on, and there may be as many pollers.
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(wait_s * 1000))


def drop(environ: WSGIEnvironment, *, is_reset: bool) -> DroppedError:
    """Let this request's connection end without an answer; raise what is returned.

    Args:
        environ: of the request.
        is_reset: True: the client sees "connection reset"; False: an orderly end.
    """
    sock = connection(environ)
    # Else the handler would wait for the next request on a connection of HTTP/1.1.
    environ[_HANDLER].close_connection = True
    with contextlib.suppress(OSError):
        if is_reset:
            # Lingering for no time at all makes the server's close a reset.
            linger = struct.pack("ii", 1, 0)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        else:
            sock.shutdown(socket.SHUT_RDWR)
    return DroppedError("dropped on purpose")


def wait_for_goodbye(environ: WSGIEnvironment, goes_on: Callable[[], bool]) -> None:
    """Hold the connection without an answer until its client leaves or `goes_on` ends."""
    sock = connection(environ)
    while goes_on() and is_connected(sock):
        # Whether to go on is looked at four times a second; nobody is in a hurry here.
        _is_readable(sock, wait_s=0.25)
