"""The fault layer before an object store: a WSGI application around another.

It touches no byte of a request that no fault strikes, so that it costs little; it logs
every request and takes orders under `/_spotchaos/`.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from werkzeug.exceptions import HTTPException

from spotchaos.clock import Clock, SystemClock
from spotchaos.errors import UsageError
from spotchaos.injectors.storage_dialects import Dialect
from spotchaos.injectors.storage_faults import (
    LAG_S,
    SLOW_S,
    Kind,
    Operation,
    StorageFault,
)
from spotchaos.providers.control import PREFIX, carry_out
from spotchaos.providers.loopback import drop, read_body

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

log = logging.getLogger(__name__)

LONGEST_LOG = 1_000_000
_CHUNK_BYTES = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One request in the log of a store."""

    number: int
    at: datetime
    operation: str
    bucket: str
    key: str
    method: str
    status: int  # 0: no answer was sent
    request_bytes: int
    fault: str  # empty: none struck it
    kind: str = ""  # what the operation does, as far as faults tell operations apart
    part: str = ""  # of an upload in parts: its number
    at_s: float = 0.0  # CLOCK_MONOTONIC

    def __str__(self) -> str:
        status = str(self.status) if self.status else "no answer"
        where = "/".join(part for part in (self.bucket, self.key) if part)
        fault = f"  (fault {self.fault})" if self.fault else ""
        return f"{self.at:%H:%M:%S.%f} {self.operation} {where} {status}{fault}"


class Hold:
    """Stops the Nth request that would put something into the store, before it is read.

    Requests count from when it is made, over all clients.
    """

    def __init__(self, number: int) -> None:
        self._left = number
        self._reached = threading.Event()
        self._released = threading.Event()
        self._goes_on = False

    @property
    def is_reached(self) -> bool:
        """Whether a request is held, or was."""
        return self._reached.is_set()

    def release(self, *, goes_on: bool) -> None:
        """Let the request go on, or drop it unanswered; nothing is held from now on."""
        self._goes_on = goes_on
        self._released.set()

    def stops(self, operation: Operation) -> bool:
        """Count an operation; tell whether it is the one, and belongs held."""
        if operation.kind not in (Kind.WRITE, Kind.COMMIT):
            return False
        self._left -= 1
        return self._left == 0 and not self._released.is_set()

    def wait(self) -> bool:
        """Return once it is released: whether the request goes on."""
        self._reached.set()
        self._released.wait()
        return self._goes_on


@dataclass(slots=True)
class _Armed:
    fault: StorageFault
    seen: int = 0
    fired: int = 0


class StorageLayer:
    """Stands before a store and lets faults strike.

    Args:
        app: the store.
        dialect: how the store spells its requests.
        clock: waits for slow answers, and tells what a lagging listing has not seen.
        on_entry: called with each log entry, in the thread of the request.
        on_reset: empties the store itself.
    """

    def __init__(
        self,
        app: WSGIApplication,
        dialect: Dialect,
        *,
        clock: Clock | None = None,
        on_entry: Callable[[Entry], None] | None = None,
        on_reset: Callable[[], None] = lambda: None,
    ) -> None:
        self._app = app
        self._dialect = dialect
        self._clock: Clock = SystemClock() if clock is None else clock
        self._on_entry = on_entry
        self._on_reset = on_reset
        self._lock = threading.Lock()
        self._armed: list[_Armed] = []
        self._entries: deque[Entry] = deque(maxlen=LONGEST_LOG)
        self._count = 0
        self._done: Counter[tuple[Kind, str]] = Counter()  # kind and name
        self._hold: Hold | None = None
        # (bucket, key) of what is being answered.
        self._busy: Counter[tuple[str, str]] = Counter()
        # (bucket, key) -> when it was last written, on the monotonic clock.
        self._written_s: dict[tuple[str, str], float] = {}
        self._resting_since_s: float | None = None

    @property
    def log(self) -> Sequence[Entry]:
        """Every request so far, oldest first."""
        with self._lock:
            return tuple(self._entries)

    def arm(self, fault: StorageFault) -> None:
        """Let `fault` strike, counting from the next operation that it can strike.

        Raises:
            UsageError: it is for another store, or for a last save that nobody named.
        """
        if fault.store != self._dialect.store:
            raise UsageError(
                f"fault {fault} does not fit a store of {self._dialect.store}",
                hint=f"write {self._dialect.store}-{fault.name}",
            )
        if fault.is_on_last_save:
            raise UsageError(
                f"fault {fault} names a save that the store cannot know",
                hint="give a number; only `spotchaos run` knows which save is the last",
            )
        with self._lock:
            self._armed.append(_Armed(fault))

    def disarm(self, *, fired: bool = False) -> None:
        """Let no armed fault strike any more; with `fired`, only those that have struck."""
        with self._lock:
            self._armed = [a for a in self._armed if fired and not a.fired]

    def fired(self) -> dict[str, int]:
        """Return how often each armed fault has struck, by its spelling."""
        with self._lock:
            return {str(armed.fault): armed.fired for armed in self._armed}

    def strikable(self, fault: StorageFault) -> int:
        """Count the operations so far that `fault` could strike, armed or not."""
        with self._lock:
            return sum(
                count
                for (kind, name), count in self._done.items()
                if fault.can_inject(Operation(name=name, kind=kind))
            )

    def hold(self, number: int) -> Hold:
        """Stop the `number`th request from now that puts something into the store."""
        with self._lock:
            self._hold = Hold(number)
            return self._hold

    def is_busy(self, bucket: str, key: str) -> bool:
        """Tell whether a request about an object has come and is not answered yet."""
        with self._lock:
            return self._busy[bucket, key] > 0

    def rest(self) -> None:
        """Let no time pass for what was written, until the next request.

        How long a program takes to start is no matter of the store: a listing that lags
        is as old for one that starts slowly.
        """
        with self._lock:
            self._resting_since_s = self._clock.monotonic()

    def reset(self) -> None:
        """Disarm every fault, empty the log and the store."""
        with self._lock:
            self._armed.clear()
            self._entries.clear()
            self._done.clear()
            self._written_s.clear()
            self._count = 0
        self._on_reset()

    def __call__(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        query = dict(parse_qsl(environ["QUERY_STRING"], keep_blank_values=True))
        if path.startswith(PREFIX):
            told = read_body(environ)
            status, body = carry_out(self, method, path, query, told)
            return _send(start_response, status, "application/json", body)
        operation = self._dialect.operation(method, path, query, _headers(environ))
        with self._lock:
            held = self._hold if self._hold and self._hold.stops(operation) else None
        if held is not None and not held.wait():
            raise drop(environ, is_reset=True)
        fault = self._inject(operation)
        if not fault and operation.kind not in {Kind.LIST, Kind.READ}:
            return self._pass_on(environ, start_response, operation)
        return self._play(fault, environ, start_response, operation)

    def _inject(self, operation: Operation) -> str:
        """Count the operation; return the name of the fault that strikes it, or ""."""
        injected = ""
        with self._lock:
            if self._resting_since_s is not None:
                rested_s = self._clock.monotonic() - self._resting_since_s
                self._resting_since_s = None
                for written in self._written_s:
                    self._written_s[written] += rested_s
            self._done[operation.kind, operation.name] += 1
            self._busy[operation.bucket, operation.key] += 1
            for armed in self._armed:
                if armed.fault.can_inject(operation):
                    armed.seen += 1
                    if armed.fault.injects(armed.seen) and not injected:
                        armed.fired += 1
                        injected = armed.fault.name
        return injected

    def _play(
        self,
        fault: str,
        environ: WSGIEnvironment,
        start_response: StartResponse,
        operation: Operation,
    ) -> Iterable[bytes]:
        match fault:
            case "":
                return self._pass_on(environ, start_response, operation)
            case "slow":
                self._clock.sleep(SLOW_S)
                return self._pass_on(environ, start_response, operation, fault)
            case "cut" if operation.kind is Kind.WRITE:
                _swallow_half(environ)
                self._note(environ, operation, 0, fault)
                raise drop(environ, is_reset=True)
            case "cut" | "truncated-get":
                return self._half_of_answer(fault, environ, start_response, operation)
            case "lost-complete":
                self._answer_of_store(environ, operation)
                self._note(environ, operation, 0, fault)
                raise drop(environ, is_reset=False)
            case "lagging-list":
                return self._lagging(environ, start_response, operation)
        _swallow(environ)
        status, content_type, body = self._dialect.error(fault, operation)
        self._note(environ, operation, status, fault)
        if environ["REQUEST_METHOD"] == "HEAD":
            body = b""
        return _send(start_response, status, content_type, body)

    def _pass_on(
        self,
        environ: WSGIEnvironment,
        start_response: StartResponse,
        operation: Operation,
        fault: str = "",
    ) -> Iterable[bytes]:
        def started(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            self._note(environ, operation, int(status[:3]), fault)
            return start_response(status, headers, *more)

        return self._ask(environ, started, operation)

    def _ask(
        self,
        environ: WSGIEnvironment,
        start_response: StartResponse,
        operation: Operation,
    ) -> Iterable[bytes]:
        """Let the store answer; what it cannot make sense of is a bad request."""
        try:
            return self._app(environ, start_response)
        except (OSError, HTTPException):
            with self._lock:
                self._leave(operation)
            raise  # the client has gone, or sent what is no HTTP
        except Exception as error:
            log.info("the store does not understand %s: %r", operation.name, error)
            # moto looks an upload up that has been aborted, or never was.
            what = "missing" if isinstance(error, KeyError) else "unknown"
            status, content_type, body = self._dialect.error(what, operation)
            return _send(start_response, status, content_type, body)

    def _half_of_answer(
        self,
        fault: str,
        environ: WSGIEnvironment,
        start_response: StartResponse,
        operation: Operation,
    ) -> Iterable[bytes]:
        """Send the store's headers, full length included, and half of its bytes."""
        status, headers, body = self._answer_of_store(environ, operation)
        self._note(environ, operation, int(status[:3]), fault)
        names = {name.lower() for name, _ in headers}
        if "content-length" not in names:
            headers.append(("Content-Length", str(len(body))))
        start_response(status, headers)
        yield body[: len(body) // 2]
        if fault == "cut":
            raise drop(environ, is_reset=True)

    def _lagging(
        self,
        environ: WSGIEnvironment,
        start_response: StartResponse,
        operation: Operation,
    ) -> Iterable[bytes]:
        status, headers, body = self._answer_of_store(environ, operation)
        self._note(environ, operation, int(status[:3]), "lagging-list")
        newest_s = self._clock.monotonic() - LAG_S
        with self._lock:
            hidden = {
                key
                for (bucket, key), written_s in self._written_s.items()
                if bucket == operation.bucket and written_s > newest_s
            }
        if status.startswith("200"):
            body = self._dialect.without(hidden, body)
        kept = [(n, v) for n, v in headers if n.lower() != "content-length"]
        start_response(status, [*kept, ("Content-Length", str(len(body)))])
        return [body]

    def _leave(self, operation: Operation) -> None:
        """Note that a request is no longer being answered; the lock is held."""
        where = (operation.bucket, operation.key)
        self._busy[where] = max(0, self._busy[where] - 1)

    def _answer_of_store(
        self, environ: WSGIEnvironment, operation: Operation
    ) -> tuple[str, list[tuple[str, str]], bytes]:
        """Let the store carry the request out, and keep its answer to ourselves."""
        answer: list[Any] = []

        def started(status: str, headers: list[tuple[str, str]], *_: Any) -> Any:
            answer[:] = [status, list(headers)]
            return lambda data: None

        chunks = self._ask(environ, started, operation)
        try:
            body = b"".join(chunks)
        finally:
            getattr(chunks, "close", lambda: None)()
        status, headers = answer
        return status, headers, body

    def _note(
        self, environ: WSGIEnvironment, operation: Operation, status: int, fault: str
    ) -> None:
        length = environ.get("CONTENT_LENGTH") or ""
        with self._lock:
            self._count += 1
            self._leave(operation)
            if operation.kind in {Kind.WRITE, Kind.COMMIT}:
                written = (operation.bucket, operation.key)
                self._written_s[written] = self._clock.monotonic()
            entry = Entry(
                number=self._count,
                at=self._clock.now(),
                operation=operation.name,
                bucket=operation.bucket,
                key=operation.key,
                method=environ["REQUEST_METHOD"],
                status=status,
                request_bytes=int(length) if length.isdecimal() else 0,
                fault=fault and f"{self._dialect.store}-{fault}",
                kind=operation.kind,
                part=operation.part,
                at_s=self._clock.monotonic(),
            )
            self._entries.append(entry)
        if self._on_entry is not None:
            self._on_entry(entry)

    def order_announce(self, query: Mapping[str, str]) -> Mapping[str, Any]:
        raise UsageError(
            "an object store has no notice", hint="`spotchaos imds` announces"
        )

    def order_withdraw(self) -> Mapping[str, Any]:
        raise UsageError(
            "an object store has no notice", hint="`spotchaos imds` withdraws"
        )

    def order_fault(self, text: str) -> Mapping[str, Any]:
        fault = StorageFault.parse(text)
        self.arm(fault)
        return {"armed": str(fault)}

    def order_reset(self) -> Mapping[str, Any]:
        self.reset()
        return {"armed": None}

    def order_log(self) -> Sequence[Mapping[str, Any]]:
        return [asdict(entry) | {"at": entry.at.isoformat()} for entry in self.log]


def _headers(environ: WSGIEnvironment) -> Mapping[str, str]:
    """Return the few headers that tell operations apart."""
    return {
        "content-range": environ.get("HTTP_CONTENT_RANGE", ""),
        "host": environ.get("HTTP_HOST", ""),
        **(
            {"x-amz-copy-source": environ["HTTP_X_AMZ_COPY_SOURCE"]}
            if "HTTP_X_AMZ_COPY_SOURCE" in environ
            else {}
        ),
    }


def _send(
    start_response: StartResponse, status: int, content_type: str, body: bytes
) -> list[bytes]:
    headers = [("Content-Type", content_type), ("Content-Length", str(len(body)))]
    start_response(f"{status} {HTTPStatus(status).phrase}", headers)
    return [body]


def _swallow(environ: WSGIEnvironment, share: float = 1.0) -> None:
    """Take in the request's bytes, or their first part, and forget them."""
    length = environ.get("CONTENT_LENGTH") or ""
    stream = environ["wsgi.input"]
    if not length.isdecimal():  # chunked: werkzeug ends the stream by itself
        if environ.get("wsgi.input_terminated"):
            while stream.read(_CHUNK_BYTES) and share == 1.0:
                pass
        return
    left = int(int(length) * share)
    while left > 0:
        chunk = stream.read(min(left, _CHUNK_BYTES))
        if not chunk:
            return
        left -= len(chunk)


def _swallow_half(environ: WSGIEnvironment) -> None:
    _swallow(environ, share=0.5)
