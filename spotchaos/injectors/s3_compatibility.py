"""What moto does otherwise than S3, put right before it and after it: a WSGI application.

Each was met with a client that nobody here had written for: rclone asks for the version
`null` that moto names, s3cmd for the rights of an object made of parts, and a PUT by
urllib or `curl -d` says of its bytes that they are a form, which moto reads as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

from spotchaos.injectors.storage_dialects import S3Dialect
from spotchaos.injectors.storage_faults import Operation
from spotchaos.providers.loopback import read_body

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

METHODS = frozenset({"GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS"})
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
# What an object is whose type nobody has named. Source: Amazon S3 API reference,
# "PutObject".
_BYTES = "binary/octet-stream"
_VERSION = "x-amz-version-id"


class AsS3:
    """Moto, as S3 would answer.

    Args:
        app: moto's.
        buckets: returns moto's buckets by name.
    """

    def __init__(
        self, app: WSGIApplication, buckets: Callable[[], Mapping[str, Any]]
    ) -> None:
        self._app = app
        self._buckets = buckets
        self._dialect = S3Dialect()

    def __call__(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        method = environ["REQUEST_METHOD"]
        query = dict(parse_qsl(environ["QUERY_STRING"], keep_blank_values=True))
        headers = {"host": environ.get("HTTP_HOST", "")}
        asked = self._dialect.operation(method, environ["PATH_INFO"], query, headers)
        if method not in METHODS:
            return self._refuse(asked, environ, start_response)
        if method == "PUT" and environ.get("CONTENT_TYPE", "").startswith(_FORMS):
            environ["CONTENT_TYPE"] = _BYTES
        if "acl" in query:
            self._give_rights(asked)
        if self._is_versioned(asked.bucket):
            return self._app(environ, start_response)
        if query.get("versionId") == "null":
            del query["versionId"]
            environ["QUERY_STRING"] = urlencode(query)

        def started(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            kept = [h for h in headers if (h[0].lower(), h[1]) != (_VERSION, "null")]
            return start_response(status, kept, *more)

        return self._app(environ, started)

    def _refuse(
        self, asked: Operation, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        """Say that S3 knows no such method."""
        read_body(environ)
        status, content_type, body = self._dialect.error("method", asked)
        headers = [("Content-Type", content_type), ("Content-Length", str(len(body)))]
        start_response(f"{status} Method Not Allowed", headers)
        return [body]

    def _is_versioned(self, name: str) -> bool:
        bucket = self._buckets().get(name)
        return bucket is not None and bucket.versioning_status is not None

    def _give_rights(self, asked: Operation) -> None:
        """Let an object made of parts be its owner's alone, as any other."""
        from moto.s3.models import get_canned_acl

        bucket = self._buckets().get(asked.bucket)
        found = None if bucket is None else bucket.keys.get(asked.key)
        if found is not None and found.acl is None:
            found.acl = get_canned_acl("private")
