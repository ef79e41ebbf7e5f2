"""What a checkpoint folder says about itself; written last, it is the commit point."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

import spotchaos
from spotchaos.errors import CheckpointError

NAME = "manifest.json"
FORMAT = 1

_BLOCK_BYTES = 1 << 22
# What is digested is still in the core's own cache when it is written.
_PIECE_BYTES = 1 << 18


class DamagedError(CheckpointError):
    """A checkpoint that is not whole: the one before it may be."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a checkpoint: enough to know that it is whole."""

    size_bytes: int
    xxh3_128: str  # against damage, not against forgery
    sha256: str | None = None  # of files that have left the machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The contents and the origin of one checkpoint."""

    run_id: str
    step: int
    epoch: int
    world_size: int
    files: dict[str, FileEntry]
    saved_at: str
    score: float | None = None  # lower is better
    versions: dict[str, str] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Serialise, with a digest of itself, so that a flipped bit is noticed."""
        body = {"format": FORMAT, **asdict(self)}
        return json.dumps({"digest": _digest(body), **body}, indent=1).encode()

    @classmethod
    def parse(cls, data: bytes, *, of: str) -> Manifest:
        """Read a manifest.

        Args:
            data: the bytes of the file.
            of: the name of the checkpoint, for messages.

        Raises:
            DamagedError: torn, damaged or foreign.
            CheckpointError: written by a newer release.
        """
        try:
            body = json.loads(data)
            written_in = body.pop("format")
            digest = body.pop("digest")
        except (ValueError, KeyError, AttributeError, TypeError):
            raise DamagedError(f"the manifest of {of} is torn or foreign") from None
        if not isinstance(written_in, int) or written_in > FORMAT:
            raise CheckpointError(
                f"the manifest of {of} has format {written_in}, this release reads "
                f"up to {FORMAT}",
                hint="resume with the release of spotchaos that wrote it, or a newer one",
            )
        if digest != _digest({"format": written_in, **body}):
            raise DamagedError(f"the manifest of {of} is damaged: its digest differs")
        try:
            files = {
                name: FileEntry(**entry) for name, entry in body.pop("files").items()
            }
            if any(name in ("", "..") or Path(name).name != name for name in files):
                raise KeyError("a file that lies elsewhere")
            return cls(files=files, **body)
        except (TypeError, AttributeError, KeyError) as error:
            raise DamagedError(f"the manifest of {of} is foreign: {error}") from None

    def check(self, folder: Path) -> None:
        """Compare the files in `folder` with what was written.

        Raises:
            DamagedError: a file is missing, short, long or damaged.
        """
        for name, entry in self.files.items():
            path = folder / name
            try:
                size_bytes = path.stat().st_size
            except FileNotFoundError:
                raise DamagedError(f"{path} is missing") from None
            if size_bytes != entry.size_bytes:
                raise DamagedError(
                    f"{path} has {size_bytes} bytes, its manifest says {entry.size_bytes}"
                )
            if digest_of(path) != entry.xxh3_128:
                raise DamagedError(f"{path} is damaged: its digest differs")


class DigestingFile:
    """A file that digests what is written to it, so that nothing is read twice.

    Args:
        file: where the bytes go. `name` is its own, for whoever watches writers.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = xxhash.xxh3_128()
        self.size_bytes = 0
        self.name = getattr(file, "name", "")

    def write(self, data: Any) -> int:
        whole = memoryview(data).cast("B")
        for start in range(0, len(whole), _PIECE_BYTES):
            piece = whole[start : start + _PIECE_BYTES]
            self._digest.update(piece)
            self._file.write(piece)
        self.size_bytes += len(whole)
        return len(whole)

    def flush(self) -> None:
        self._file.flush()

    def entry(self) -> FileEntry:
        """Describe what was written so far."""
        return FileEntry(self.size_bytes, self._digest.hexdigest())


def digest_of(path: Path) -> str:
    """Return the XXH3-128 of a file, as 32 hex digits."""
    digest = xxhash.xxh3_128()
    buffer = memoryview(bytearray(_BLOCK_BYTES))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()


def versions(torch_version: str) -> dict[str, str]:
    """Name the releases that write a checkpoint, for whoever must read it later."""
    return {
        "spotchaos": spotchaos.__version__,
        "torch": torch_version,
        "python": platform.python_version(),
    }


def stamp(moment: datetime) -> str:
    """Write a moment as ISO 8601; for people only, never compared."""
    return moment.isoformat(timespec="milliseconds")


def _digest(body: dict[str, Any]) -> str:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return xxhash.xxh3_128_hexdigest(canonical.encode())
