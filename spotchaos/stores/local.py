"""A folder as a store: a disk, or a share that outlives the machine."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from spotchaos.errors import StoreError
from spotchaos.stores.base import ConflictError, MissingError


class LocalStore:
    """Objects are files below a folder.

    Args:
        url: a path, or `file://` and an absolute path.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.root = Path(url.removeprefix("file://"))

    def prepare(self) -> None:
        probe = f".probe-{os.urandom(4).hex()}"
        self.write(probe, b"")
        self.delete(probe)

    def write(
        self, name: str, source: Path | bytes, *, sha256: str | None = None
    ) -> None:
        path = self._path(name)
        partial = path.with_name(f".{path.name}.{os.urandom(4).hex()}.partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with partial.open("xb") as file:
                    if isinstance(source, bytes):
                        file.write(source)
                    else:
                        with source.open("rb") as content:
                            shutil.copyfileobj(content, file, 1 << 22)
                    file.flush()
                    os.fsync(file.fileno())
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)
            self._sync(path.parent)
        except OSError as error:
            raise self._failed("write", name, error) from error

    def commit(self, name: str, data: bytes) -> None:
        path = self._path(name)
        if path.exists():
            if path.read_bytes() != data:
                raise ConflictError(f"{path} exists and holds something else")
            return
        self.write(name, data)

    def read(self, name: str, target: Path) -> None:
        try:
            with self._path(name).open("rb") as content, target.open("xb") as file:
                shutil.copyfileobj(content, file, 1 << 22)
                file.flush()
                os.fsync(file.fileno())
        except FileNotFoundError:
            raise MissingError(f"{self._path(name)} does not exist") from None
        except OSError as error:
            raise self._failed("read", name, error) from error

    def names(self, prefix: str = "") -> dict[str, int]:
        found = {}
        for path in sorted(self.root.rglob("*")):
            name = path.relative_to(self.root).as_posix()
            # A file that another process is renaming or removing is not there.
            if name.startswith(prefix) and not name.endswith(".partial"):
                try:
                    if path.is_file():
                        found[name] = path.stat().st_size
                except FileNotFoundError:
                    continue
        return found

    def delete(self, name: str) -> None:
        path = self._path(name)
        try:
            path.unlink(missing_ok=True)
            if path.parent != self.root and path.parent.is_dir():
                self._sync(path.parent)
                if not any(path.parent.iterdir()):
                    path.parent.rmdir()
        except OSError as error:
            raise self._failed("delete", name, error) from error

    def _path(self, name: str) -> Path:
        parts = name.split("/")
        if name.startswith("/") or ".." in parts or "" in parts:
            raise StoreError(f"{name!r} is no name of an object")
        return self.root.joinpath(*parts)

    def _sync(self, folder: Path) -> None:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _failed(self, verb: str, name: str, error: OSError) -> StoreError:
        return StoreError(
            f"cannot {verb} {self._path(name)}: {error.strerror}",
            hint="check that the folder exists, may be written and has room",
        )
