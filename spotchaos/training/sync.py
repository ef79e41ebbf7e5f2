"""Copy committed checkpoints to a store that outlives the machine, and bring them back."""

from __future__ import annotations

import dataclasses
import logging
import re
import tempfile
import threading
from pathlib import Path

from spotchaos.clock import Clock, SystemClock
from spotchaos.errors import CheckpointError, StoreError
from spotchaos.stores.base import Store, sha256_of
from spotchaos.training import manifest as manifests
from spotchaos.training.checkpoint import Checkpoint, CheckpointStore
from spotchaos.training.manifest import DamagedError, Manifest

log = logging.getLogger(__name__)

_MANIFEST = re.compile(rf"(step-(\d+)(?:\.(\d+))?)/{re.escape(manifests.NAME)}")


class Mirror:
    """Keeps a store up to date with a local folder, in one thread.

    Only the newest checkpoint matters: one that waits is dropped when a newer one comes.
    Files go first, the manifest last; an upload cut short is therefore no checkpoint. An
    error ends the run at its next step, since training that nobody saves is lost money.

    Args:
        local: the folder; it keeps what is being sent.
        store: where copies go.
        clock: measures the lag.
    """

    def __init__(
        self, local: CheckpointStore, store: Store, *, clock: Clock | None = None
    ) -> None:
        self.lags_s: list[float] = []
        self._local = local
        self._store = store
        self._clock = clock or SystemClock()
        self._changed = threading.Condition()
        self._waiting: tuple[Checkpoint, float] | None = None
        self._thread: threading.Thread | None = None
        self._error: StoreError | OSError | None = None

    @property
    def fault(self) -> str:
        """What went wrong in the thread, or an empty string."""
        return "" if self._error is None else str(self._error)

    def prepare(self) -> None:
        """Find out now, and not at the first save, whether the store can be written.

        Raises:
            StoreError: it cannot.
        """
        self._store.prepare()

    def send(self, checkpoint: Checkpoint) -> None:
        """Have a committed checkpoint copied; returns at once."""
        with self._changed:
            if self._waiting is not None:
                self._local.unpin(self._waiting[0].folder)
            self._local.pin(checkpoint.folder)
            self._waiting = (checkpoint, self._clock.monotonic())
            if self._thread is None:
                # Not a daemon: at exit it ends its upload instead of being torn from it.
                self._thread = threading.Thread(target=self._run, name="mirror")
                self._thread.start()

    def wait(self, within_s: float | None = None) -> None:
        """Return once everything that was sent is in the store.

        Args:
            within_s: how long to wait; None for as long as it takes.

        Raises:
            StoreError: the upload failed, or is not done in time.
        """
        with self._changed:
            done = self._changed.wait_for(lambda: self._thread is None, within_s)
        if self._error is not None:
            error, self._error = self._error, None
            raise StoreError(
                f"the copy to {self._store.url} failed: {error}"
            ) from error
        if not done:
            raise StoreError(
                f"the copy to {self._store.url} is not done after {within_s:.0f} s",
                hint="save more often, keep less state, or use a store that is nearer",
            )

    def fetch_newer(self) -> Checkpoint | None:
        """Bring the newest whole checkpoint of the store here, if none as new is here.

        Which is newer is decided by step and run id, never by file time.

        Raises:
            CheckpointError: the store belongs to another run; or it has checkpoints, none
                of them whole, and there is none here either.
        """
        try:
            here = self._local.newest()
        except CheckpointError as error:
            log.warning("%s", error.message)
            here = None
        place = (-1, 0) if here is None else self._local.place(here.folder)
        faults = []
        for step, generation, name in self._remote():
            if (step, generation) <= place:
                break
            try:
                return self._fetch(name)
            except (StoreError, DamagedError) as error:
                fault = f"{self._store.url}/{name}: {error.message}"
            log.warning("passing over %s", fault)
            self._local.reserve(name)
            faults.append(fault)
        if faults and here is None:
            raise CheckpointError(
                f"no checkpoint in {self._store.url} is whole ({'; '.join(faults)})",
                hint="delete them there to start from step 0, or restore one from a copy",
            )
        return None

    def names(self) -> list[str]:
        """List the names of the checkpoints that are committed in the store."""
        return [name for _, _, name in self._remote()]

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._waiting is None or self._error is not None:
                    self._thread = None
                    self._changed.notify_all()
                    return
                checkpoint, sent_at_s = self._waiting
                self._waiting = None
            try:
                self._upload(checkpoint)
            except (StoreError, OSError) as error:
                self._error = error
            else:
                self.lags_s.append(self._clock.monotonic() - sent_at_s)
                log.debug(
                    "step %d is in the store, %.2f s after its commit",
                    checkpoint.step, self.lags_s[-1],
                )  # fmt: skip
            finally:
                self._local.unpin(checkpoint.folder)

    def _upload(self, checkpoint: Checkpoint) -> None:
        folder, manifest = checkpoint.folder, checkpoint.manifest
        name = folder.name
        files = {}
        for file, entry in manifest.files.items():
            digest = sha256_of(folder / file)
            self._store.write(f"{name}/{file}", folder / file, sha256=digest)
            files[file] = dataclasses.replace(entry, sha256=digest)
        sealed = dataclasses.replace(manifest, files=files)
        self._store.commit(f"{name}/{manifests.NAME}", sealed.to_bytes())
        self._retire()

    def _retire(self) -> None:
        """Remove old copies: the manifest first, so that half a removal leaves none.

        The best one stays as long as it stays here.
        """
        here = {folder.name for folder in self._local.committed()}
        for _, _, name in self._remote()[self._local.keep :]:
            if name in here:
                continue
            self._store.delete(f"{name}/{manifests.NAME}")
            for file in self._store.names(f"{name}/"):
                self._store.delete(file)

    def _remote(self) -> list[tuple[int, int, str]]:
        """List the committed copies: step, generation, name; newest first."""
        found = [
            (int(match[2]), int(match[3] or 0), match[1])
            for name in self._store.names("step-")
            if (match := _MANIFEST.fullmatch(name))
        ]
        return sorted(found, reverse=True)

    def _fetch(self, name: str) -> Checkpoint:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / manifests.NAME
            self._store.read(f"{name}/{manifests.NAME}", path)
            manifest = Manifest.parse(path.read_bytes(), of=name)
        log.info("fetching step %d from %s", manifest.step, self._store.url)

        def fetch(file: str, target: Path) -> None:
            self._store.read(f"{name}/{file}", target)

        return self._local.adopt(manifest, name, fetch)
