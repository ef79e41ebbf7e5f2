"""What every store promises, and the names of its errors."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Protocol

from spotchaos.errors import StoreError

_BLOCK_BYTES = 1 << 22


class ConflictError(StoreError):
    """The name that was to be committed is taken by something else."""


class MissingError(StoreError):
    """There is nothing under that name."""


class Store(Protocol):
    """Objects by name, each of them whole or not there.

    Names are relative and use `/`. Every method raises `StoreError`, after a bounded
    number of tries where trying again makes sense; none only logs.
    """

    url: str

    def prepare(self) -> None:
        """Prove that the store can be written, and clear what uploads left behind."""
        ...

    def write(
        self, name: str, source: Path | bytes, *, sha256: str | None = None
    ) -> None:
        """Put an object; on return it is whole, durable, and has the size of `source`.

        Args:
            name: of the object; one that exists is replaced.
            source: a file or the bytes themselves.
            sha256: of the source, 64 hex digits, for a caller who knows it already.
        """
        ...

    def commit(self, name: str, data: bytes) -> None:
        """Put a small object that was not there: the commit point of what it describes.

        The same bytes once more are no error, so that an answer that was lost can be
        asked for again.

        Raises:
            ConflictError: other bytes are there already; they stay.
        """
        ...

    def read(self, name: str, target: Path) -> None:
        """Fetch an object into a new file, whole.

        Raises:
            MissingError: there is none.
            StoreError: what came is short or damaged.
        """
        ...

    def names(self, prefix: str = "") -> dict[str, int]:
        """Return name -> size in bytes of all objects whose name begins with `prefix`."""
        ...

    def delete(self, name: str) -> None:
        """Remove an object; one that is not there is no error."""
        ...


def sha256_of(source: Path | bytes) -> str:
    """Return the SHA-256 of a file or of bytes, as 64 hex digits."""
    digest = hashlib.sha256()
    if isinstance(source, bytes):
        digest.update(source)
    else:
        buffer = memoryview(bytearray(_BLOCK_BYTES))
        with source.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                digest.update(buffer[:count])
    return digest.hexdigest()


def size_of(source: Path | bytes) -> int:
    """Return the bytes in `source`."""
    return len(source) if isinstance(source, bytes) else source.stat().st_size
