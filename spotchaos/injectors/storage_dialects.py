"""How S3 and Google Cloud Storage spell their operations, errors and listings."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Final, Protocol
from urllib.parse import unquote
from xml.sax.saxutils import escape

from spotchaos.injectors.storage_faults import Kind, Operation


class Dialect(Protocol):
    """One store's spelling; all pure."""

    @property
    def store(self) -> str: ...

    def operation(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
    ) -> Operation:
        """Say what a request does."""
        ...

    def error(self, fault: str, operation: Operation) -> tuple[int, str, bytes]:
        """Return status, content type and body of the answer that `fault` gives."""
        ...

    def without(self, keys: Collection[str], listing: bytes) -> bytes:
        """Return a listing that does not show `keys`."""
        ...


# Fault -> status, code, message. Source: Amazon S3 API reference, "Error responses".
_S3_ERRORS: Final = {
    "503": (503, "SlowDown", "Please reduce your request rate."),
    "500": (500, "InternalError", "We encountered an internal error."),
    "403": (403, "AccessDenied", "Access Denied"),
    "expired-token": (400, "ExpiredToken", "The provided token has expired."),
    "clock-skew": (
        403,
        "RequestTimeTooSkewed",
        "The difference between the request time and the server's time is too large.",
    ),
    "unknown": (400, "InvalidRequest", "The request is not valid."),
    "missing": (400, "InvalidRequest", "The request is not valid."),
    "method": (
        405,
        "MethodNotAllowed",
        "The specified method is not allowed against this resource.",
    ),
    # CompleteMultipartUpload may answer 200 before it fails. Source: ibid.,
    # "CompleteMultipartUpload".
    "error-body": (200, "InternalError", "We encountered an internal error."),
}
_S3_BY_QUERY: Final = (
    ("PUT", "partNumber", "UploadPart", Kind.WRITE),
    ("POST", "uploadId", "CompleteMultipartUpload", Kind.COMMIT),
    ("POST", "uploads", "CreateMultipartUpload", Kind.OBJECT),
    ("DELETE", "uploadId", "AbortMultipartUpload", Kind.OBJECT),
    ("GET", "uploadId", "ListParts", Kind.OBJECT),
)
_S3_OF_UPLOADS: Final = frozenset({"UploadPart", "AbortMultipartUpload", "ListParts"})
_S3_LISTING: Final = frozenset({"delimiter", "encoding-type", "list-type", "prefix"})
_S3_OBJECT: Final = {
    "GET": ("GetObject", Kind.READ),
    "HEAD": ("HeadObject", Kind.OBJECT),
    "PUT": ("PutObject", Kind.WRITE),
    "DELETE": ("DeleteObject", Kind.OBJECT),
    "POST": ("PostObject", Kind.OBJECT),
}


class S3Dialect:
    """Amazon S3: the bucket is in the path, or before the host's name."""

    store = "s3"

    def operation(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
    ) -> Operation:
        bucket, key = _s3_bucket_of(headers.get("host", "")), path.lstrip("/")
        if not bucket:
            bucket, _, key = key.partition("/")
        if not bucket:
            return Operation(name="ListBuckets", kind=Kind.OTHER)
        if not key:
            return _s3_bucket_operation(method, bucket, query)
        for verb, parameter, name, kind in _S3_BY_QUERY:
            if method == verb and parameter in query:
                part = query.get("partNumber", "")
                return Operation(
                    name=name, kind=kind, bucket=bucket, key=key, part=part
                )
        if method == "PUT" and "x-amz-copy-source" in headers:
            return Operation(
                name="CopyObject", kind=Kind.COMMIT, bucket=bucket, key=key
            )
        name, kind = _S3_OBJECT.get(method, (method, Kind.OTHER))
        return Operation(name=name, kind=kind, bucket=bucket, key=key)

    def error(self, fault: str, operation: Operation) -> tuple[int, str, bytes]:
        status, code, message = _S3_ERRORS[fault]
        is_complete = operation.name == "CompleteMultipartUpload"
        if (fault == "missing" and is_complete) or (
            fault in ("missing", "unknown") and operation.name in _S3_OF_UPLOADS
        ):
            status, code, message = 404, "NoSuchUpload", "The upload does not exist."
        resource = escape(f"/{operation.bucket}/{operation.key}")
        body = (
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            f"<Error><Code>{code}</Code><Message>{message}</Message>"
            f"<Resource>{resource}</Resource><RequestId>SPOTCHAOS</RequestId></Error>"
        )
        return status, "application/xml", body.encode()

    def without(self, keys: Collection[str], listing: bytes) -> bytes:
        text = listing.decode()
        hidden = 0
        for contents in re.findall(r"<Contents>.*?</Contents>", text, re.DOTALL):
            key = re.search(r"<Key>(.*?)</Key>", contents, re.DOTALL)
            # boto3 asks for URL-encoded keys; others get them escaped for XML.
            if key and (unquote(key[1]) in keys or key[1] in map(escape, keys)):
                text = text.replace(contents, "", 1)
                hidden += 1
        return re.sub(
            r"(?<=<KeyCount>)\d+", lambda n: str(int(n[0]) - hidden), text
        ).encode()


_GS_ERRORS: Final = {
    "503": (503, "backendError", "Backend Error"),
    "500": (500, "internalError", "Internal Error"),
    "403": (403, "forbidden", "Forbidden"),
    "expired-token": (401, "authError", "Invalid Credentials"),
    "clock-skew": (403, "forbidden", "Request time is too skewed"),
    "unknown": (400, "invalid", "The request is not valid."),
    "missing": (400, "invalid", "The request is not valid."),
    "error-body": (200, "backendError", "Backend Error"),
}
_GS_PATH: Final = re.compile(
    r"^(?P<api>(?:/upload|/download)?(?:/storage/v1)?)/b/(?P<bucket>[^/]+)/o"
    r"(?:/(?P<key>.+?))?(?P<verb>/rewriteTo/.*|/copyTo/.*|/compose)?$"
)


class GsDialect:
    """Google Cloud Storage, JSON API."""

    store = "gs"

    def operation(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
    ) -> Operation:
        match = _GS_PATH.match(path)
        if match is None:
            return Operation(name=f"{method} {path}", kind=Kind.OTHER)
        bucket = match["bucket"]
        key = unquote(match["key"] or query.get("name", ""))
        name, kind = _gs_operation(method, match, query, headers)
        part = ""
        if name == "UploadChunk":
            part = headers.get("content-range", "").partition("/")[0]
        return Operation(name=name, kind=kind, bucket=bucket, key=key, part=part)

    def error(self, fault: str, operation: Operation) -> tuple[int, str, bytes]:
        status, reason, message = _GS_ERRORS[fault]
        code = 503 if fault == "error-body" else status
        problem = {"domain": "global", "reason": reason, "message": message}
        body = {"error": {"code": code, "message": message, "errors": [problem]}}
        return status, "application/json", json.dumps(body).encode()

    def without(self, keys: Collection[str], listing: bytes) -> bytes:
        found = json.loads(listing)
        if "items" in found:
            found["items"] = [i for i in found["items"] if i["name"] not in keys]
        return json.dumps(found).encode()


# Virtual-hosted style: BUCKET.s3.amazonaws.com, BUCKET.localhost. Source: Amazon S3 User
# Guide, "Virtual hosting of buckets".
_S3_HOST: Final = re.compile(
    r"(?P<bucket>[^:]+?)\.(?:s3[.-][^:]*amazonaws\.com|(?:s3\.)?localhost)(?::\d+)?"
)


def _s3_bucket_of(host: str) -> str:
    """Return the bucket that a host's name begins with; empty: none."""
    match = _S3_HOST.fullmatch(host.lower())
    return "" if match is None or match["bucket"] == "s3" else match["bucket"]


def _s3_bucket_operation(
    method: str, bucket: str, query: Mapping[str, str]
) -> Operation:
    if method == "GET" and "uploads" in query:
        return Operation(name="ListMultipartUploads", kind=Kind.LIST, bucket=bucket)
    if method == "GET" and (not query or _S3_LISTING & set(query)):
        name = "ListObjectsV2" if "list-type" in query else "ListObjects"
        return Operation(name=name, kind=Kind.LIST, bucket=bucket)
    if method == "POST" and "delete" in query:
        return Operation(name="DeleteObjects", kind=Kind.OBJECT, bucket=bucket)
    verbs = {"PUT": "CreateBucket", "HEAD": "HeadBucket", "DELETE": "DeleteBucket"}
    name = verbs.get(method, f"{method}Bucket")
    return Operation(name=name, kind=Kind.OTHER, bucket=bucket)


_GS_SPAN: Final = re.compile(r"^bytes (?:\d+-(\d+)|\*)/(\d+|\*)$")


def _gs_chunk(method: str, span: str) -> tuple[str, Kind]:
    """Tell the last chunk of an upload from those before it.

    Source: Cloud Storage docs, "Resumable uploads": the range of each chunk, and in all;
    a chunk that is not the last may know the whole, and `bytes */N` asks how far it is.
    """
    if method == "DELETE":
        return "CancelUpload", Kind.OBJECT
    found = _GS_SPAN.match(span)
    if found is None:
        return "FinishUpload", Kind.COMMIT  # all of it at once
    last, whole = found.groups()
    if last is None:
        return "QueryUpload", Kind.OBJECT
    if whole == "*" or int(last) + 1 < int(whole):
        return "UploadChunk", Kind.WRITE
    return "FinishUpload", Kind.COMMIT


def _gs_operation(
    method: str,
    match: re.Match[str],
    query: Mapping[str, str],
    headers: Mapping[str, str],
) -> tuple[str, Kind]:
    if match["api"].startswith("/upload"):
        if "upload_id" in query:
            return _gs_chunk(method, headers.get("content-range", ""))
        if query.get("uploadType") == "resumable":
            return "StartUpload", Kind.OBJECT
        return "InsertObject", Kind.WRITE
    if match["verb"]:
        return "ComposeObject" if match[
            "verb"
        ] == "/compose" else "CopyObject", Kind.COMMIT
    if not match["key"]:
        return "ListObjects", Kind.LIST
    is_download = match["api"].startswith("/download") or query.get("alt") == "media"
    if method == "GET" and is_download:
        return "GetObject", Kind.READ
    names = {"GET": "StatObject", "DELETE": "DeleteObject", "PATCH": "PatchObject"}
    return names.get(method, method), Kind.OBJECT
