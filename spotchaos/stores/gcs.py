"""`gs://bucket/prefix` as a store, by the JSON interface of Google Cloud Storage.

Sources: Cloud Storage docs, "Objects: insert" (uploadType, ifGenerationMatch), "Resumable
uploads", "Retry strategy"; the variable STORAGE_EMULATOR_HOST of Google's clients; Compute
docs for the token that a machine's own service account gets.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import quote, urlsplit

from spotchaos.clock import Clock, SystemClock
from spotchaos.errors import StoreError
from spotchaos.stores.base import ConflictError, MissingError, size_of
from spotchaos.stores.retry import Retry, TransientError

if TYPE_CHECKING:
    import requests

log = logging.getLogger(__name__)

# Times that an object may be replaced while it is read.
_MOST_REPLACED = 50
_READ_BYTES = 1 << 20
_TIMEOUT_S = 60.0
_TOKEN_PATH = "/computeMetadata/v1/instance/service-accounts/default/token"
_HINTS = {
    401: "give the machine a service account, or set GOOGLE_OAUTH_ACCESS_TOKEN",
    403: "allow this account storage.objects.create, get, list and delete",
}


class GcsStore:
    """Objects below a prefix of one bucket.

    Args:
        url: `gs://bucket` or `gs://bucket/prefix`.
        part_bytes: larger objects are uploaded resumably, in parts of this size; a
            multiple of 256 KiB.
        retry: how often what failed is tried again.
        clock: waits between tries, and knows when a token ends.

    Raises:
        StoreError: the URL names no bucket.
    """

    def __init__(
        self, url: str, *, part_bytes: int = 16 << 20, retry: Retry | None = None,
        clock: Clock | None = None,
    ) -> None:  # fmt: skip
        parts = urlsplit(url)
        if parts.scheme != "gs" or not parts.netloc:
            raise StoreError(
                f"{url!r} names no bucket", hint="write gs://bucket/prefix"
            )
        self.url = url
        self._bucket = parts.netloc
        self._prefix = f"{parts.path.strip('/')}/".removeprefix("/")
        self._part_bytes = part_bytes
        self._clock = clock or SystemClock()
        self._retry = retry or Retry(clock=self._clock)
        emulator = os.environ.get("STORAGE_EMULATOR_HOST", "")
        if emulator and "://" not in emulator:
            emulator = f"http://{emulator}"
        self._base = (emulator or "https://storage.googleapis.com").rstrip("/")
        self._is_emulated = bool(emulator)
        self._token: tuple[str, float] | None = None
        self._session: requests.Session | None = None

    def prepare(self) -> None:
        probe = f".probe-{os.urandom(4).hex()}"
        self.write(probe, b"-")
        self.delete(probe)

    def write(
        self, name: str, source: Path | bytes, *, sha256: str | None = None
    ) -> None:
        size = size_of(source)

        def attempt() -> None:
            if size > self._part_bytes:
                answer = self._upload(name, source, size)
            else:
                data = source if isinstance(source, bytes) else source.read_bytes()
                answer = self._insert(name, data)
            # An answer of success is not taken for the object itself.
            if int(answer.get("size", -1)) != size or self._size(name) != size:
                raise TransientError(
                    f"{self._full(name)} is not whole after its upload"
                )

        self._retry(attempt)

    def commit(self, name: str, data: bytes) -> None:
        # Asked first for servers that ignore the condition, as emulators do.
        try:
            found = self._bytes(name)
        except MissingError:
            found = data
        if found != data:
            raise ConflictError(f"{self._full(name)} exists and holds something else")
        try:
            # Generation 0: only if there is no such object.
            self._retry(lambda: self._insert(name, data, ifGenerationMatch="0"))
        except ConflictError:
            if self._bytes(name) != data:
                raise

    def read(self, name: str, target: Path) -> None:
        def attempt() -> None:
            target.unlink(missing_ok=True)
            self._download(name, target)

        self._retry(attempt)

    def names(self, prefix: str = "") -> dict[str, int]:
        found: dict[str, int] = {}
        page = ""
        while True:
            asked = {"prefix": self._prefix + prefix}
            if page:
                asked["pageToken"] = page
            answer = self._retry(
                lambda asked=asked: self._json(
                    "GET", self._objects(), prefix, params=asked
                )  # type: ignore[misc]  # mypy cannot infer a lambda with defaults
            )
            for item in answer.get("items", ()):
                found[item["name"][len(self._prefix) :]] = int(item["size"])
            page = answer.get("nextPageToken", "")
            if not page:
                return found

    def delete(self, name: str) -> None:
        def attempt() -> None:
            try:
                self._request("DELETE", self._object(name), name)
            except MissingError:
                # No such object, or no such bucket: only the first is no error.
                self._json("GET", self._objects(), name, params={"maxResults": "1"})

        self._retry(attempt)

    def _insert(self, name: str, data: bytes, **conditions: str) -> Mapping[str, Any]:
        digest = base64.b64encode(
            hashlib.md5(data, usedforsecurity=False).digest()
        ).decode()
        answer = self._json(
            "POST", self._uploads(), name, data=data,
            params={"uploadType": "media", "name": self._prefix + name, **conditions},
            headers={"Content-Type": "application/octet-stream"},
        )  # fmt: skip
        if answer.get("md5Hash", digest) != digest:
            raise TransientError(f"{self._full(name)} arrived damaged")
        return answer

    def _upload(self, name: str, source: Path | bytes, size: int) -> Mapping[str, Any]:
        """Upload in parts of one session; a session that is left open is not an object."""
        begun = self._request(
            "POST", self._uploads(), name, json={},
            params={"uploadType": "resumable", "name": self._prefix + name},
            headers={"X-Upload-Content-Length": str(size)},
        )  # fmt: skip
        session = begun.headers.get("Location")
        if not session:
            raise TransientError(f"{self._full(name)}: no session for the upload")
        start = 0
        while start < size:
            data = _slice(source, start, self._part_bytes)
            end = start + len(data)
            answer = self._request(
                "PUT", session, name, data=data,
                headers={"Content-Range": f"bytes {start}-{end - 1}/{size}"},
            )  # fmt: skip
            if end == size:
                return dict(answer.json())
            start = end
        raise AssertionError("an upload without a last part")

    def _size(self, name: str) -> int:
        try:
            return int(self._json("GET", self._object(name), name)["size"])
        except MissingError as error:
            raise TransientError(error.message) from error

    def _bytes(self, name: str) -> bytes:
        answer = self._retry(
            lambda: self._request(
                "GET", self._object(name), name, params={"alt": "media"}
            )
        )
        data: bytes = answer.content
        return data

    def _download(self, name: str, target: Path) -> None:
        entry = self._json("GET", self._object(name), name)
        with target.open("xb") as file:
            for _ in range(_MOST_REPLACED):
                size, digest = self._received(name, file)
                if _is_content(entry, size, digest):
                    break
                # Somebody may have put another object there between the two requests.
                before, entry = entry, self._json("GET", self._object(name), name)
                if _is_content(entry, size, digest):
                    break
                if before.get("generation") == entry.get("generation"):
                    short = size != int(entry["size"])
                    raise TransientError(
                        f"{self._full(name)} came short: {size} of {entry['size']} bytes"
                        if short
                        else f"{self._full(name)} came damaged: its digest differs"
                    )
            else:
                raise TransientError(f"{self._full(name)} is replaced all the time")
            file.flush()
            os.fsync(file.fileno())

    def _received(self, name: str, file: BinaryIO) -> tuple[int, str]:
        """Write an object's bytes to a file; return their number and MD5, as GCS spells it."""
        import requests

        file.seek(0)
        file.truncate()
        answer = self._request(
            "GET", self._object(name), name, params={"alt": "media"}, stream=True
        )
        digest = hashlib.md5(usedforsecurity=False)
        size = 0
        try:
            for data in answer.iter_content(_READ_BYTES):
                digest.update(data)
                size += file.write(data)
        except requests.RequestException as error:
            raise TransientError(f"{self._full(name)}: {error}") from error
        return size, base64.b64encode(digest.digest()).decode()

    def _json(self, method: str, url: str, name: str, **more: Any) -> Mapping[str, Any]:
        answer = self._request(method, url, name, **more)
        try:
            return dict(answer.json())
        except ValueError as error:
            raise TransientError(
                f"{self._full(name)}: the answer is no JSON"
            ) from error

    def _request(
        self, method: str, url: str, name: str, *, headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> requests.Response:  # fmt: skip
        import requests

        if self._session is None:
            self._session = requests.Session()
        try:
            answer = self._session.request(
                method, url, headers={**(headers or {}), **self._authorization()},
                timeout=_TIMEOUT_S, **more,
            )  # fmt: skip
        except (requests.RequestException, OSError) as error:
            self._session = None
            raise TransientError(
                f"{self._full(name)}: {type(error).__name__}"
            ) from error
        status = answer.status_code
        if status < 300 or status == 308:  # 308: the part is in, more may come
            return answer
        text = f"{self._full(name)}: status {status} on {method}"
        if status == 404:
            raise MissingError(f"{self._full(name)} does not exist, or its bucket")
        if status == 412:
            raise ConflictError(f"{self._full(name)} exists and holds something else")
        if status in (408, 429) or status >= 500:
            raise TransientError(text)
        if status == 401:
            self._token = None
        raise StoreError(text, hint=_HINTS.get(status))

    def _authorization(self) -> dict[str, str]:
        if self._is_emulated:
            return {}
        given = os.environ.get("GOOGLE_OAUTH_ACCESS_TOKEN")
        if given:
            return {"Authorization": f"Bearer {given}"}
        now_s = self._clock.monotonic()
        if self._token is None or now_s >= self._token[1]:
            self._token = self._fetch_token(now_s)
        return {"Authorization": f"Bearer {self._token[0]}"}

    def _fetch_token(self, now_s: float) -> tuple[str, float]:
        import requests

        host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
        try:
            answer = requests.get(
                f"http://{host}{_TOKEN_PATH}", headers={"Metadata-Flavor": "Google"},
                timeout=5,
            )  # fmt: skip
            answer.raise_for_status()
            token = answer.json()
            return token["access_token"], now_s + float(token["expires_in"]) - 60.0
        except (requests.RequestException, ValueError, KeyError) as error:
            raise StoreError(
                f"no credentials for {self.url}: {type(error).__name__}",
                hint=_HINTS[401],
            ) from error

    def _objects(self) -> str:
        return f"{self._base}/storage/v1/b/{self._bucket}/o"

    def _object(self, name: str) -> str:
        return f"{self._objects()}/{quote(self._prefix + name, safe='')}"

    def _uploads(self) -> str:
        return f"{self._base}/upload/storage/v1/b/{self._bucket}/o"

    def _full(self, name: str) -> str:
        return f"gs://{self._bucket}/{self._prefix}{name}"


def _slice(source: Path | bytes, start: int, size: int) -> bytes:
    if isinstance(source, bytes):
        return source[start : start + size]
    with source.open("rb") as file:
        file.seek(start)
        return file.read(size)


def _is_content(entry: Mapping[str, Any], size: int, digest: str) -> bool:
    """Tell whether bytes are those of an object, by what its metadata says."""
    return size == int(entry["size"]) and entry.get("md5Hash") in (None, "", digest)
