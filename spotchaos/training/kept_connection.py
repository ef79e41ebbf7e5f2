"""Ask one server again and again, at little cost: what polls of metadata services go by."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from email.message import Message
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

from spotchaos.errors import SpotchaosError


class PollError(SpotchaosError):
    """The metadata service did not answer, or not as its contract says."""


class Answer(NamedTuple):
    """What a server said; names of headers are found in any case."""

    status: int
    headers: Message
    text: str


class KeptConnection:
    """One connection to a server, kept from call to call; it knows no proxies.

    Metadata services have link-local addresses. Written on the standard library's client,
    which costs a seventh of what `requests` does: a poll may come every second for weeks.

    Args:
        base_url: of the server, with `http://`.
        timeout_s: of one exchange, unless the call says otherwise.
    """

    def __init__(self, base_url: str, timeout_s: float) -> None:
        self._connection: http.client.HTTPConnection | None = None
        parts = urlsplit(base_url)
        self._where = parts.netloc
        self._prefix = parts.path.rstrip("/")
        self._timeout_s = timeout_s

    def __call__(
        self, method: str, path: str, *, headers: Mapping[str, str],
        timeout_s: float | None = None, params: Mapping[str, str] | None = None,
        body: str | None = None,
    ) -> Answer:  # fmt: skip
        """Make one exchange, without following redirections.

        Raises:
            PollError: no answer came within the time.
        """
        target = self._prefix + path
        if params:
            target += f"?{urlencode(params)}"
        bound_s = timeout_s or self._timeout_s
        is_kept = self._connection is not None
        try:
            try:
                return self._exchange(method, target, headers, body, bound_s)
            except (http.client.RemoteDisconnected, ConnectionError):
                # The server may have closed a connection that was idle since the last
                # poll, as it may at any time.
                if not is_kept:
                    raise
                self._forget()
                return self._exchange(method, target, headers, body, bound_s)
        except (http.client.HTTPException, OSError) as error:
            self._forget()  # a connection in an unknown state is not used again
            raise PollError(f"{method} {path}: {type(error).__name__}") from error

    def __del__(self) -> None:
        self._forget()  # or the socket would complain that nobody closed it

    def _exchange(
        self, method: str, target: str, headers: Mapping[str, str], body: str | None,
        timeout_s: float,
    ) -> Answer:  # fmt: skip
        connection = self._connection
        if connection is None:
            connection = http.client.HTTPConnection(self._where, timeout=timeout_s)
            self._connection = connection
        connection.timeout = timeout_s
        if connection.sock is not None:
            connection.sock.settimeout(timeout_s)
        connection.request(method, target, body=body, headers=dict(headers))
        response = connection.getresponse()
        text = response.read().decode("utf-8", "replace")
        return Answer(response.status, response.headers, text)

    def _forget(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
