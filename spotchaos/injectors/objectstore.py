"""Object stores that fail as told: moto for S3, an emulator for GCS, our layer before both.

    with S3Store() as store:
        store.arm(StorageFault.parse("s3-503:2"))
        subprocess.run(program, env=program_environment(os.environ, store))

Moto keeps its buckets in the process, so one S3 store lives in a process at a time, and
starts empty; `spotchaos s3` gives another one a process of its own.
"""

from __future__ import annotations

import http.client
import importlib
import json
import logging
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self
from urllib.parse import quote

from spotchaos.clock import Clock
from spotchaos.errors import HarnessError, UsageError
from spotchaos.injectors.s3_compatibility import AsS3
from spotchaos.injectors.storage_dialects import Dialect, GsDialect, S3Dialect
from spotchaos.injectors.storage_faults import StorageFault
from spotchaos.injectors.storage_layer import Entry, StorageLayer
from spotchaos.providers.loopback import LoopbackServer, QuietHandler

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

# Every variable of these families is taken from a program under test before our own are
# set: keys, tokens, profiles, roles, endpoints.
_SECRET_PREFIXES = (
    "AWS_",
    "AZURE_STORAGE_",
    "BOTO",
    "CLOUDSDK_",
    "GCE_METADATA_",
    "GOOGLE_",
    "S3_",
    "STORAGE_EMULATOR_HOST",
)
_SAFE = ("AWS_EC2_METADATA_", "GCE_METADATA_")
_NOWHERE = "/dev/null"
_in_use = threading.Lock()


class Store(Protocol):
    """What an injector needs of an object store that is running."""

    base_url: str

    def environment(self) -> Mapping[str, str]: ...


def program_environment(
    environ: Mapping[str, str], *stores: Store, keep_metadata: bool = False
) -> dict[str, str]:
    """Return `environ` without real credentials, pointed at `stores`.

    Args:
        environ: of the harness.
        stores: running ones; with none, credentials are removed all the same.
        keep_metadata: leave the variables that point to a metadata service.
    """
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith(_SECRET_PREFIXES)
        or (keep_metadata and name.startswith(_SAFE))
    }
    # Files hold credentials too, and are found by default where no variable names them.
    kept |= {
        "AWS_CONFIG_FILE": _NOWHERE,
        "AWS_SHARED_CREDENTIALS_FILE": _NOWHERE,
        "BOTO_CONFIG": _NOWHERE,
        "CLOUDSDK_CONFIG": _NOWHERE,
    }
    for store in stores:
        kept |= store.environment()
    return kept


def s3_environment(base_url: str) -> dict[str, str]:
    """Return what points boto3, s3fs and the aws command to `base_url`, with dummy keys."""
    return {
        "AWS_ACCESS_KEY_ID": "spotchaos",
        "AWS_SECRET_ACCESS_KEY": "spotchaos",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": base_url,
        "AWS_ENDPOINT_URL_S3": base_url,
    }


def gs_environment(base_url: str) -> dict[str, str]:
    """Return what points Google's client and gcsfs to `base_url`, without credentials."""
    return {
        "STORAGE_EMULATOR_HOST": base_url,
        "GOOGLE_CLOUD_PROJECT": "spotchaos",
        "NO_GCE_CHECK": "true",
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """One object as the store has it."""

    bucket: str
    key: str
    size_bytes: int


class _ServedStore:
    """What both stores share: a layer, a loopback server, a log.

    Args:
        port: 0 for a free one.
        listener: a listening socket to take instead, such as one made in the network
            namespace of the attempt.
        faults: armed from the start.
        clock: waits for slow answers; the system's if None.
        on_entry: called with each log entry, in the thread of the request.
    """

    dialect: ClassVar[Dialect]

    def __init__(
        self,
        *,
        port: int = 0,
        listener: socket.socket | None = None,
        faults: Iterable[StorageFault] = (),
        clock: Clock | None = None,
        on_entry: Callable[[Entry], None] | None = None,
    ) -> None:
        self._port = port
        self._listener = listener
        self._faults = tuple(faults)
        self._clock = clock
        self._on_entry = on_entry
        self._server: LoopbackServer | None = None
        self._layer: StorageLayer | None = None

    @property
    def base_url(self) -> str:
        """Where clients find it: `http://127.0.0.1:PORT`."""
        if self._server is None:
            raise HarnessError("the store is not running")
        return self._server.base_url

    @property
    def layer(self) -> StorageLayer:
        """The fault layer: log, counts, orders."""
        if self._layer is None:
            raise HarnessError("the store is not running")
        return self._layer

    def arm(self, fault: StorageFault) -> None:
        """Let `fault` strike from now on."""
        self.layer.arm(fault)

    def reset(self) -> None:
        """Disarm every fault, empty the log and the store."""
        self.layer.reset()

    def start(self) -> Self:
        """Begin to serve, empty.

        Raises:
            UsageError: the port is in use, or a store of this kind runs already.
        """
        app = self._open()
        try:
            self._layer = StorageLayer(
                app,
                self.dialect,
                clock=self._clock,
                on_entry=self._on_entry,
                on_reset=self._empty,
            )
            for fault in self._faults:
                self._layer.arm(fault)
            self._server = self._serve(self._layer, listener=self._listener).start()
        except BaseException:
            self._close()
            raise
        return self

    def serve_on(self, listener: socket.socket) -> LoopbackServer:
        """Answer on another listening socket as well, until what is returned is stopped."""
        return self._serve(self.layer, listener=listener).start()

    def stop(self) -> None:
        """Stop serving, and forget every object; safe to call twice."""
        if self._server is None:
            return
        self._server.stop()
        self._server = None
        self._close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _serve(
        self, layer: WSGIApplication, *, listener: socket.socket | None
    ) -> LoopbackServer:
        return LoopbackServer(layer, port=self._port, listener=listener)

    def _open(self) -> WSGIApplication:
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError

    def _empty(self) -> None:
        raise NotImplementedError


class S3Store(_ServedStore):
    """Moto's S3 on a free port; use as a context manager."""

    dialect: ClassVar[Dialect] = S3Dialect()

    def environment(self) -> dict[str, str]:
        """Return what points boto3, s3fs and the aws command here, with dummy keys."""
        return s3_environment(self.base_url)

    def objects(self) -> list[StoredObject]:
        """Return every object there is, by bucket and key, past the fault layer."""
        return [
            StoredObject(bucket=name, key=key, size_bytes=found.size)
            for name, bucket in sorted(self._buckets().items())
            for key, found in sorted(bucket.keys.items())
        ]

    def read(self, bucket: str, key: str) -> bytes:
        """Return an object's bytes, past the fault layer.

        Raises:
            KeyError: it is not there.
        """
        value: bytes = self._buckets()[bucket].keys[key].value
        return value

    def abandoned_uploads(self) -> list[tuple[str, str]]:
        """Return bucket and key of every upload that was begun and neither ended nor aborted.

        A bucket whose lifecycle rules abort them by and by is left out.
        """
        return sorted(
            (name, upload.key_name)
            for name, bucket in self._buckets().items()
            if not any(rule.aimu_days for rule in bucket.rules)
            for upload in bucket.multiparts.values()
        )

    def make_bucket(self, name: str) -> None:
        """Create a bucket, past the fault layer."""
        self._backends()["123456789012"]["aws"].create_bucket(name, "us-east-1")

    def _buckets(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for account in self._backends().values():
            if "aws" in account:
                found |= account["aws"].buckets
        return found

    @staticmethod
    def _backends() -> Any:
        return importlib.import_module("moto.s3.models").s3_backends

    def _serve(
        self, layer: WSGIApplication, *, listener: socket.socket | None
    ) -> LoopbackServer:
        from moto.moto_server.werkzeug_app import MotoRequestHandler

        class QuietMotoHandler(QuietHandler, MotoRequestHandler):  # type: ignore[misc]
            """Moto's handler keeps header names; ours keeps quiet and can drop."""

        return LoopbackServer(
            layer, port=self._port, listener=listener, handler=QuietMotoHandler
        )

    def _open(self) -> WSGIApplication:
        from moto.moto_server.werkzeug_app import (
            DomainDispatcherApplication,
            create_backend_app,
        )

        if not _in_use.acquire(blocking=False):
            raise UsageError(
                "an S3 store runs in this process already",
                hint="stop it first, or start another process with `spotchaos s3`",
            )
        self._empty()
        return AsS3(DomainDispatcherApplication(create_backend_app), self._buckets)

    def _close(self) -> None:
        self._empty()
        _in_use.release()

    def _empty(self) -> None:
        backends = self._backends()
        backends.reset()
        backends.bucket_accounts.clear()


class GsStore(_ServedStore):
    """The GCS emulator, in memory, behind the same layer; use as a context manager.

    The emulator comes with the extra `gcs`. Checks of its own behaviour (generations,
    preconditions) are the emulator's.
    """

    dialect: ClassVar[Dialect] = GsDialect()

    _emulator: Any = None

    def environment(self) -> dict[str, str]:
        """Return what points Google's client and gcsfs here, without credentials."""
        return gs_environment(self.base_url)

    def read(self, bucket: str, key: str) -> bytes:
        """Return an object's bytes, past the fault layer.

        Raises:
            KeyError: it is not there.
        """
        path = f"/storage/v1/b/{quote(bucket)}/o/{quote(key, safe='')}?alt=media"
        status, _, found = _forward(
            self._authority(), "GET", path, headers={}, body=b""
        )
        if status != http.client.OK:
            raise KeyError(key)
        return found

    def make_bucket(self, name: str) -> None:
        """Create a bucket, past the fault layer."""
        self._ask("POST", "/storage/v1/b?project=spotchaos", {"name": name})

    def objects(self) -> list[StoredObject]:
        """Return every object there is, by bucket and key, past the fault layer."""
        buckets = self._ask("GET", "/storage/v1/b?project=spotchaos").get("items", [])
        return [
            StoredObject(bucket=b["name"], key=o["name"], size_bytes=int(o["size"]))
            for b in buckets
            for o in self._ask("GET", f"/storage/v1/b/{quote(b['name'])}/o").get(
                "items", []
            )
        ]

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        status, _, found = _forward(
            self._authority(),
            method,
            path,
            headers={"Content-Type": "application/json"},
            body=b"" if body is None else json.dumps(body).encode(),
        )
        if status >= 400:
            raise HarnessError(f"the GCS emulator answered {status} to {path}")
        return json.loads(found)

    def _authority(self) -> tuple[str, int]:
        host, port = self._emulator._api._httpd.server_address[:2]  # noqa: SLF001 - no public way
        return str(host), int(port)

    def _open(self) -> WSGIApplication:
        try:
            emulator = importlib.import_module("gcp_storage_emulator.server")
        except ModuleNotFoundError as missing:
            raise UsageError(
                "the GCS emulator is not installed",
                hint="pip install 'spotchaos[gcs]'",
            ) from missing
        for name in ("gcp_storage_emulator", "api"):
            # What it logs of each missing object is no news, and nobody's to read.
            logging.getLogger(name).addHandler(logging.NullHandler())
            logging.getLogger(name).propagate = False
        self._emulator = emulator.create_server("127.0.0.1", 0, in_memory=True)
        self._emulator.start()
        return self._pass_through

    def _pass_through(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        """Send a request on to the emulator, which speaks no WSGI."""
        names = {n: n[5:].replace("_", "-") for n in environ if n.startswith("HTTP_")}
        headers = {title: str(environ[name]) for name, title in names.items()}
        # The layer has read the body as one piece.
        headers.pop("TRANSFER-ENCODING", None)
        is_json = "uploadType=media" not in environ["QUERY_STRING"]
        usual = "application/json" if is_json else "application/octet-stream"
        headers |= {"Content-Type": environ.get("CONTENT_TYPE") or usual}
        length = environ.get("CONTENT_LENGTH") or ""
        stream = environ["wsgi.input"]
        body = b""
        if length.isdecimal():
            body = stream.read(int(length))
        elif environ.get("wsgi.input_terminated"):
            body = stream.read()
        status, answer_headers, found = _forward(
            self._authority(),
            environ["REQUEST_METHOD"],
            environ["RAW_URI"],
            headers=headers,
            body=body,
        )
        phrase = http.client.responses.get(status, "Unknown")
        start_response(f"{status} {phrase}", answer_headers)
        return [found]

    def _close(self) -> None:
        if self._emulator is not None:
            self._emulator.stop()
            self._emulator = None

    def _empty(self) -> None:
        self._emulator.wipe()


def _forward(
    authority: tuple[str, int],
    method: str,
    path: str,
    *,
    headers: Mapping[str, str],
    body: bytes,
) -> tuple[int, list[tuple[str, str]], bytes]:
    link = http.client.HTTPConnection(*authority, timeout=60)
    try:
        link.request(method, path, body=body, headers=dict(headers))
        answer = link.getresponse()
        found = answer.read()
        hop = {"connection", "transfer-encoding", "server", "date", "content-length"}
        kept = [(n, v) for n, v in answer.getheaders() if n.lower() not in hop]
        return answer.status, [*kept, ("Content-Length", str(len(found)))], found
    finally:
        link.close()
