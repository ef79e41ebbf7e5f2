"""Three wires to one notice: `requests` in this process, loopback HTTP, files and signals.

All of them ask the same `NoticeService`, so they answer alike.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from spotchaos.errors import UsageError
from spotchaos.providers import ADDRESSES
from spotchaos.providers.control import PREFIX, carry_out
from spotchaos.providers.exchange import Delivery, Request
from spotchaos.providers.loopback import (
    LoopbackServer,
    connection,
    drop,
    is_connected,
    read_body,
    wait_for_goodbye,
)
from spotchaos.providers.machine_profile import url_host
from spotchaos.providers.notice import Notice
from spotchaos.providers.service import NoticeService
from spotchaos.providers.service_faults import ServiceFault

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment
    from requests import PreparedRequest

_METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE")
_LOOPBACK = re.compile(r"https?://(127\.0\.0\.1|localhost|\[::1\])(:\d+)?(/|$)")


@contextmanager
def in_process(service: NoticeService) -> Iterator[str]:
    """Answer `requests` made by this process; yield the provider's base URL.

    Requests to other hosts than the provider's and the loopback raise an error: none
    leaves the machine. Children and urllib3 (boto3) are not caught: use `on_loopback`.
    Never enter this inside moto's `mock_aws`, nor that inside this: moto registers a
    metadata service of its own, the one entered last wins, and moto's knows no notice.
    """
    import responses  # here, so that training programs start without it

    addresses = _addresses(service)

    def answer(prepared: PreparedRequest) -> tuple[int, Mapping[str, str], Any]:
        return _answer_requests(service, prepared)

    hosts = "|".join(re.escape(url_host(address)) for address in addresses)
    with responses.RequestsMock(assert_all_requests_are_fired=False) as mock:
        mock.add_passthru(_LOOPBACK)
        for method in _METHODS:
            url = re.compile(rf"http://({hosts})(:80)?/.*")
            mock.add_callback(method, url, answer)
        try:
            yield f"http://{url_host(addresses[0])}"
        finally:
            service.close()


@contextmanager
def on_loopback(
    service: NoticeService, *, port: int = 0, listener: socket.socket | None = None
) -> Iterator[str]:
    """Answer over HTTP on 127.0.0.1, orders included; yield the base URL.

    Args:
        service: what to play.
        port: 0 for a free one.
        listener: a listening socket to take instead, such as one made in the network
            namespace of the attempt, where it may have the cloud's real address.

    Raises:
        UsageError: the port is in use.
    """
    server = LoopbackServer(MetadataApp(service), port=port, listener=listener)
    with server:
        try:
            yield server.base_url
        finally:
            service.close()


class MetadataApp:
    """The WSGI application of one service: the provider's paths, and `/_spotchaos/`."""

    def __init__(self, service: NoticeService) -> None:
        self.service = service

    def __call__(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> list[bytes]:
        path = environ["PATH_INFO"]
        query = dict(parse_qsl(environ["QUERY_STRING"], keep_blank_values=True))
        method = environ["REQUEST_METHOD"]
        if path.startswith(PREFIX):
            told = read_body(environ)
            status, body = carry_out(self, method, path, query, told)
            start_response(_status(status), _headers("application/json", body))
            return [body]
        request = Request(
            method=method,
            path=path,
            received_at=self.service.clock.now(),
            query=query,
            headers={
                name[5:].replace("_", "-").lower(): value
                for name, value in environ.items()
                if name.startswith("HTTP_")
            },
            body=read_body(environ),
        )
        sock = connection(environ)
        response = self.service.answer(request, is_connected=lambda: is_connected(sock))
        if response.delivery is Delivery.SILENCE:
            wait_for_goodbye(environ, lambda: not self.service.is_closing)
        if response.delivery is not Delivery.ANSWER:
            raise drop(environ, is_reset=False)
        body = b"" if method == "HEAD" else response.body
        headers = _headers(response.content_type, response.body)
        headers += list(response.headers.items())
        start_response(_status(response.status), headers)
        return [body]

    def order_announce(self, query: Mapping[str, str]) -> Mapping[str, Any]:
        notices = self.service.announce(after_s=_seconds(query, "after"))
        return self._state(notices)

    def order_withdraw(self) -> Mapping[str, Any]:
        self.service.withdraw()
        return self._state(self.service.notices)

    def order_fault(self, text: str) -> Mapping[str, Any]:
        fault = ServiceFault.parse(text)
        self.service.arm(fault)
        return {"armed": str(fault)}

    def order_reset(self) -> Mapping[str, Any]:
        self.service.reset()
        return self._state(())

    def order_log(self) -> Sequence[Mapping[str, Any]]:
        return [
            {
                "number": entry.number,
                "at": entry.at.isoformat(),
                "method": entry.method,
                "path": entry.path,
                "status": entry.status,
                "note": entry.note,
            }
            for entry in self.service.log
        ]

    def _state(self, notices: Sequence[Notice]) -> Mapping[str, Any]:
        due = self.service.reclaim_at
        return {
            "phase": self.service.phase,
            "deadline": notices[-1].deadline.isoformat() if notices else None,
            "reclaim_at": None if due is None else due.isoformat(),
        }


class FileWire:
    """Keeps a folder as the notice stands: a file for each item, absent as the item is.

    Args:
        service: whose notice it shows.
        folder: created if need be; only files of its own are touched.
    """

    def __init__(self, service: NoticeService, folder: Path) -> None:
        self.service = service
        self.folder = folder
        self._lock = threading.Lock()

    def sync(self) -> None:
        """Make every file say what its item says now, each one atomically."""
        with self._lock:
            now = self.service.clock.now()
            for name, response in self.service.documents(now).items():
                path = self.folder / name
                if response.status != HTTPStatus.OK:
                    path.unlink(missing_ok=True)
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                sibling = path.with_name(f".{path.name}.partial")
                sibling.write_bytes(response.body)
                sibling.replace(path)

    def follow(self) -> None:
        """Sync at every change until the service closes."""
        self.sync()
        while self.service.wait_for_change(at_most_s=3600):
            self.sync()


@contextmanager
def on_files(service: NoticeService, folder: Path) -> Iterator[FileWire]:
    """Show the notice as files below `folder` while entered; they stay afterwards."""
    wire = FileWire(service, folder)
    with _in_background(service, wire.follow):
        yield wire


@contextmanager
def by_signal(service: NoticeService, send: Callable[[str], None]) -> Iterator[None]:
    """Call `send` with the signal's name when a notice becomes readable.

    A late notice is sent late, a duplicated one twice, a missing one never; a withdrawn
    one is not taken back, since no signal can be.
    """
    name = service.story.signal or "TERM"

    def follow() -> None:
        told: set[Notice] = set()
        is_open = True
        while is_open:
            now = service.clock.now()
            for notice in service.notices:
                mark = _unsent(notice)
                if notice.is_readable(now) and mark not in told:
                    told.add(mark)
                    send(name)
            is_open = service.wait_for_change(at_most_s=3600)

    with _in_background(service, follow):
        yield


@contextmanager
def _in_background(
    service: NoticeService, follow: Callable[[], None]
) -> Iterator[None]:
    thread = threading.Thread(target=follow, name="notice-wire", daemon=True)
    thread.start()
    try:
        yield
    finally:
        service.close()
        thread.join()


def _answer_requests(
    service: NoticeService, prepared: PreparedRequest
) -> tuple[int, Mapping[str, str], Any]:
    """Answer one request of the `requests` library, as `responses` wants it."""
    import requests

    body = prepared.body or b""
    request = Request.of(
        str(prepared.method),
        str(prepared.url),
        at=service.clock.now(),
        headers=dict(prepared.headers),
        body=body.encode() if isinstance(body, str) else bytes(body),
    )
    patience = getattr(prepared, "req_kwargs", {}).get("timeout")
    patience_s = patience[-1] if isinstance(patience, tuple) else patience
    response = service.answer(request, patience_s=patience_s)
    if response.delivery is Delivery.SILENCE:
        # The client's own wait is not played: only its end.
        return 0, {}, requests.ReadTimeout(response.note)
    if response.delivery is Delivery.CLOSE:
        return 0, {}, requests.ConnectionError(response.note)
    headers = {"Content-Type": response.content_type, **response.headers}
    content = b"" if request.method == "HEAD" else response.body
    return response.status, headers, content


def _addresses(service: NoticeService) -> tuple[str, ...]:
    provider = service.story.provider
    if provider not in ADDRESSES:
        raise UsageError(
            f"{provider!r} has no metadata service",
            hint="play its notice by signal or as a file",
        )
    return ADDRESSES[provider]


def _unsent(notice: Notice) -> Notice:
    """Return what stays the same of a notice when it is withdrawn or acknowledged."""
    return replace(notice, withdrawn_at=None, acknowledged_at=None, reclaim_at=None)


def _seconds(query: Mapping[str, str], name: str) -> float:
    text = query.get(name, "0")
    try:
        return float(text.removesuffix("s"))
    except ValueError:
        raise UsageError(
            f"{name} is {text!r}, not a number of seconds", hint="write 12.5"
        ) from None


def _status(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"{status} Unknown"


def _headers(content_type: str, body: bytes) -> list[tuple[str, str]]:
    return [("Content-Type", content_type), ("Content-Length", str(len(body)))]
