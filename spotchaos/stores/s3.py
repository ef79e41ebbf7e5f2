"""`s3://bucket/prefix` as a store, by boto3.

Sources: Amazon S3 API Reference (PutObject with If-None-Match, UploadPart,
CompleteMultipartUpload, which may answer 200 with an error in its body), and the faults of
upload code that users report: short bodies taken as whole, uploads left open, errors that
are only logged.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from spotchaos.clock import Clock
from spotchaos.errors import StoreError
from spotchaos.stores.base import ConflictError, MissingError, sha256_of, size_of
from spotchaos.stores.retry import Retry, TransientError

log = logging.getLogger(__name__)

T = TypeVar("T")

_READ_BYTES = 1 << 20
_HINTS = {
    "NoSuchBucket": "create the bucket, or correct its name",
    "AccessDenied": "allow s3:PutObject, GetObject, ListBucket, DeleteObject and "
    "AbortMultipartUpload for these credentials",
    "ExpiredToken": "renew the credentials; a run of days needs ones that renew themselves",
    "InvalidAccessKeyId": "check AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "check AWS_SECRET_ACCESS_KEY and this machine's clock",
    "NoSuchUpload": "another process aborted the upload: let one run use a prefix",
}
_TRANSIENT_CODES = frozenset(
    {
        "SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout", "Throttling",
        "RequestTimeTooSkewed", "BadDigest", "OperationAborted", "NoSuchUpload",
        "InvalidPart", "XAmzContentSHA256Mismatch",
    }
)  # fmt: skip


class S3Store:
    """Objects below a prefix of one bucket.

    Args:
        url: `s3://bucket` or `s3://bucket/prefix`.
        client: of boto3; made from the environment by default.
        part_bytes: larger objects are uploaded in parts of this size.
        retry: how often what failed is tried again.
        clock: waits between tries.

    Raises:
        StoreError: the URL names no bucket.
    """

    def __init__(
        self, url: str, *, client: Any = None, part_bytes: int = 16 << 20,
        retry: Retry | None = None, clock: Clock | None = None,
    ) -> None:  # fmt: skip
        parts = urlsplit(url)
        if parts.scheme != "s3" or not parts.netloc:
            raise StoreError(
                f"{url!r} names no bucket", hint="write s3://bucket/prefix"
            )
        self.url = url
        self._bucket = parts.netloc
        self._prefix = f"{parts.path.strip('/')}/".removeprefix("/")
        self._part_bytes = part_bytes
        self._retry = retry or Retry(clock=clock)
        self._client = client or _client()

    def prepare(self) -> None:
        probe = f".probe-{os.urandom(4).hex()}"
        self._put(probe, b"")
        self.delete(probe)
        self._abort_abandoned()

    def write(
        self, name: str, source: Path | bytes, *, sha256: str | None = None
    ) -> None:
        size = size_of(source)
        digest = sha256 or sha256_of(source)

        def attempt() -> None:
            if size > self._part_bytes:
                self._upload(name, source, digest)
            else:
                data = source if isinstance(source, bytes) else source.read_bytes()
                self._call(name, lambda: self._put_once(name, data))
            # An answer of success is not taken for the object itself.
            if self._size(name) != size:
                raise TransientError(
                    f"{self._full(name)} is not whole after its upload"
                )

        self._retry(attempt)

    def commit(self, name: str, data: bytes) -> None:
        try:
            self._retry(
                lambda: self._call(
                    name, lambda: self._put_once(name, data, IfNoneMatch="*")
                )
            )
        except ConflictError:
            found = self._retry(lambda: self._call(name, lambda: self._get_bytes(name)))
            if found != data:
                raise
        except _UnconditionalError:  # a store that looks like S3 and lacks conditions
            self._put(name, data)

    def read(self, name: str, target: Path) -> None:
        def attempt() -> None:
            target.unlink(missing_ok=True)
            self._call(name, lambda: self._download(name, target))

        self._retry(attempt)

    def names(self, prefix: str = "") -> dict[str, int]:
        def attempt() -> dict[str, int]:
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix + prefix
            )
            start = len(self._prefix)
            return {
                item["Key"][start:]: item["Size"]
                for page in pages
                for item in page.get("Contents", ())
            }

        return self._retry(lambda: self._call(prefix, attempt))

    def delete(self, name: str) -> None:
        self._retry(
            lambda: self._call(
                name,
                lambda: self._client.delete_object(
                    Bucket=self._bucket, Key=self._prefix + name
                ),
            )
        )

    def _put(self, name: str, data: bytes) -> None:
        self._retry(lambda: self._call(name, lambda: self._put_once(name, data)))

    def _put_once(self, name: str, data: bytes, **conditions: str) -> None:
        digest = hashlib.sha256(data)
        self._client.put_object(
            Bucket=self._bucket, Key=self._prefix + name, Body=data,
            ChecksumSHA256=base64.b64encode(digest.digest()).decode(),
            Metadata={"sha256": digest.hexdigest()}, **conditions,
        )  # fmt: skip

    def _upload(self, name: str, source: Path | bytes, digest: str) -> None:
        """Upload in parts; whatever happens, no upload is left open."""
        where = {"Bucket": self._bucket, "Key": self._prefix + name}
        made = self._call(
            name,
            lambda: self._client.create_multipart_upload(
                **where, ChecksumAlgorithm="SHA256", Metadata={"sha256": digest}
            ),
        )
        where["UploadId"] = made["UploadId"]
        try:
            parts = []
            for number, data in enumerate(self._parts(source), start=1):
                checksum = base64.b64encode(hashlib.sha256(data).digest()).decode()

                def send(n: int = number, d: bytes = data, c: str = checksum) -> Any:
                    return self._client.upload_part(
                        **where, PartNumber=n, Body=d, ChecksumSHA256=c
                    )

                sent = self._retry(lambda send=send: self._call(name, send))  # type: ignore[misc]  # mypy cannot infer a lambda with defaults
                parts.append(
                    {
                        "PartNumber": number,
                        "ETag": sent["ETag"],
                        "ChecksumSHA256": checksum,
                    }
                )
            self._call(
                name,
                lambda: self._client.complete_multipart_upload(
                    **where, MultipartUpload={"Parts": parts}
                ),
            )
        except BaseException:
            with contextlib.suppress(StoreError):
                self._call(name, lambda: self._client.abort_multipart_upload(**where))
            raise

    def _parts(self, source: Path | bytes) -> Iterator[bytes]:
        if isinstance(source, bytes):
            for start in range(0, len(source), self._part_bytes):
                yield source[start : start + self._part_bytes]
            return
        with source.open("rb") as file:
            while data := file.read(self._part_bytes):
                yield data

    def _size(self, name: str) -> int:
        found = self._call(
            name,
            lambda: self._client.head_object(
                Bucket=self._bucket, Key=self._prefix + name
            ),
            missing=TransientError,
        )
        return int(found["ContentLength"])

    def _get_bytes(self, name: str) -> bytes:
        found = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)
        data: bytes = found["Body"].read()
        return data

    def _download(self, name: str, target: Path) -> None:
        found = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)
        digest = hashlib.sha256()
        size = 0
        with target.open("xb") as file:
            # read(n) of botocore gives no error when a body ends early: count it.
            while data := found["Body"].read(_READ_BYTES):
                digest.update(data)
                size += file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if size != found["ContentLength"]:
            raise TransientError(
                f"{self._full(name)} came short: {size} of {found['ContentLength']} bytes"
            )
        expected = found.get("Metadata", {}).get("sha256")
        if expected is not None and digest.hexdigest() != expected:
            raise TransientError(f"{self._full(name)} came damaged: its digest differs")

    def _abort_abandoned(self) -> None:
        """Abort uploads that killed runs left open: they cost money and are not listed."""
        try:
            found = self._call(
                "",
                lambda: self._client.list_multipart_uploads(
                    Bucket=self._bucket, Prefix=self._prefix
                ),
            )
            for upload in found.get("Uploads", ()):
                self._client.abort_multipart_upload(
                    Bucket=self._bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                )
                log.info("aborted an upload of %s that was left open", upload["Key"])
        except Exception as error:
            # Only tidying: a policy may forbid it, and nothing is lost by that.
            log.warning("abandoned uploads in %s stay: %s", self.url, error)

    def _full(self, name: str) -> str:
        return f"s3://{self._bucket}/{self._prefix}{name}"

    def _call(
        self, name: str, call: Callable[[], T],
        missing: type[StoreError] = MissingError,
    ) -> T:  # fmt: skip
        """Make one request, and name what went wrong in our own words."""
        from botocore import exceptions

        try:
            return call()
        except exceptions.ClientError as error:
            raise self._named(name, error, missing) from error
        except (
            exceptions.NoCredentialsError,
            exceptions.PartialCredentialsError,
            exceptions.CredentialRetrievalError,
        ) as error:
            raise StoreError(
                f"no credentials for {self._full(name)}: {error}",
                hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the "
                "machine a role",
            ) from error
        except exceptions.ParamValidationError as error:
            raise _UnconditionalError(str(error)) from error
        except (exceptions.BotoCoreError, OSError) as error:
            raise TransientError(f"{self._full(name)}: {error}") from error

    def _named(self, name: str, error: Any, missing: type[StoreError]) -> StoreError:
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        text = f"{self._full(name)}: {code} on {error.operation_name}"
        if code in ("PreconditionFailed", "ConditionalRequestConflict"):
            return ConflictError(f"{self._full(name)} exists and holds something else")
        if code == "NotImplemented":
            return _UnconditionalError(text)
        if code in ("NoSuchKey", "404", "NotFound"):
            return missing(f"{self._full(name)} does not exist")
        if code in _TRANSIENT_CODES or status >= 500:
            return TransientError(text, hint=_HINTS.get(code))
        hint = _HINTS.get(code) or (_HINTS["AccessDenied"] if status == 403 else None)
        return StoreError(text, hint=hint)


class _UnconditionalError(StoreError):
    """The store, or this boto3, knows no conditional put."""


def _client() -> Any:
    import boto3
    from botocore.config import Config

    # Tries are ours: they are counted, spread out, and end in one named error.
    config = Config(
        retries={"total_max_attempts": 1}, connect_timeout=5, read_timeout=60,
    )  # fmt: skip
    session = boto3.session.Session()
    region = session.region_name or os.environ.get("AWS_REGION") or "us-east-1"
    return session.client("s3", region_name=region, config=config)
