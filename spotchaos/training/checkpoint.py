"""Keep checkpoints: one folder for each step, whole or not there, newest by step number."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import operator
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from spotchaos.clock import Clock, SystemClock
from spotchaos.errors import CheckpointError
from spotchaos.training import manifest as manifests
from spotchaos.training.commit import (
    PARTIAL,
    RenameRefusedError,
    commit,
    sweep,
    sync_folder,
    write_durably,
)
from spotchaos.training.manifest import DamagedError, DigestingFile, Manifest

if TYPE_CHECKING:
    from spotchaos.training.sync import Mirror

log = logging.getLogger(__name__)

STATE = "state.pt"

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
# step-00000042, or step-00000042.1 when step 42 was saved once more.
_FOLDER = re.compile(r"step-(\d+)(?:\.(\d+))?")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A whole checkpoint, verified."""

    folder: Path
    manifest: Manifest

    @property
    def step(self) -> int:
        return self.manifest.step


class CheckpointStore:
    """Checkpoints of one run in one folder, or in an object store.

    Only one process may save: rank 0. Reading needs no care, since a checkpoint is there
    when its manifest is, and the manifest comes last.

    Args:
        root: the folder, made if it is missing; or a URL (`s3://bucket/run`,
            `gs://bucket/run`), where a save is when it returns. `Mirror` copies while
            training goes on, and `python -m spotchaos.training --store` does.
        run_id: names the run; checkpoints of another are refused. None takes any.
        keep: how many whole checkpoints stay, 1 or more.
        clock: dates the manifests.
        cache: folder of this process for what is sent to a URL and fetched from there;
            None: a temporary one.

    Raises:
        StoreError: the URL's scheme is unknown, or it names no bucket.
    """

    def __init__(
        self, root: Path | str, *, run_id: str | None = None, keep: int = 2,
        clock: Clock | None = None, cache: Path | str | None = None,
    ) -> None:  # fmt: skip
        self.url = str(root) if _URL.match(str(root)) else None
        self.root = Path(root)
        self.run_id = run_id
        self.keep = max(1, keep)
        self._clock = clock or SystemClock()
        self._pinned: set[Path] = set()
        self._damaged: set[Path] = set()
        self._reserved: set[str] = set()
        self._remote: Mirror | None = None
        self._is_fetched = False
        if self.url is not None:
            self._remote = self._mirrored(self.url, cache)

    def _mirrored(self, url: str, cache: Path | str | None) -> Mirror:
        """Keep checkpoints in a folder of this machine that a store's are copies of."""
        from spotchaos.stores import open_store
        from spotchaos.training.sync import Mirror

        store = open_store(url)
        if cache is None:
            cache = tempfile.mkdtemp(prefix="checkpoints-")
            weakref.finalize(self, _remove_own, cache, os.getpid())
        self.root = Path(cache)
        # The folder as the mirror sees it; what one of the two spares, the other does.
        local = CheckpointStore(
            cache, run_id=self.run_id, keep=self.keep, clock=self._clock
        )
        local._pinned, local._reserved = self._pinned, self._reserved
        return Mirror(local, store, clock=self._clock)

    def prepare(self) -> None:
        """Make the folder and sweep what interrupted saves left in it.

        Call it once, at the start, on the rank that saves.

        Raises:
            CheckpointError: nothing can be saved there.
            StoreError: the store cannot be written.
        """
        try:
            self._prepare()
        except OSError as error:
            raise CheckpointError(
                f"no checkpoint can be kept in {self.root}: {error.strerror}",
                hint="name a folder that this user may make and write in",
            ) from error
        if self._remote is not None:
            self._remote.prepare()

    def _prepare(self) -> None:
        made = [folder for folder in self.root.parents if not folder.exists()]
        self.root.mkdir(parents=True, exist_ok=True)
        for folder in (self.root, *made):
            # Or a power loss takes the folder, and whatever was synced in it.
            with contextlib.suppress(PermissionError):
                sync_folder(folder.parent)
        # Now, and not at the first save, which may be hours away.
        with tempfile.TemporaryFile(dir=self.root):
            pass
        sweep(self.root)
        for folder in self._folders():
            if not (folder / manifests.NAME).exists():
                if _is_ours(folder):
                    log.info("sweeping %s: its save was interrupted", folder.name)
                    shutil.rmtree(folder)
                else:
                    log.warning("leaving %s: it holds files that are not ours", folder)

    def save(
        self, state: Mapping[str, Any], *, step: int, epoch: int = 0,
        world_size: int = 1, score: float | None = None,
        notes: Mapping[str, Any] | None = None,
    ) -> Checkpoint:  # fmt: skip
        """Write `state` as the checkpoint of `step`; on return it is durable.

        The order: data and fsync, manifest and fsync, rename of the manifest (the commit
        point), fsync of both folders, and only then the removal of old checkpoints.

        Args:
            state: what `torch.load(weights_only=True)` can read back.
            step: completed steps.
            epoch: for people; not used here.
            world_size: ranks whose state is inside.
            score: how good it is, lower is better; the best whole one always stays.
            notes: small values of the caller's, put into the manifest.

        Raises:
            CheckpointError: something in it could not be read back.
            OSError: the disk refused. No earlier checkpoint is touched, and what was
                written of this one is removed.
        """
        import torch

        from spotchaos.training.plain import to_plain

        step = operator.index(step)
        if step < 0:
            raise CheckpointError(
                f"a checkpoint of step {step} was to be saved",
                hint="count completed steps, from 0",
            )
        plain = to_plain(dict(state), "state", marks=False)
        kept = dict(notes or {})
        try:
            json.dumps(kept)
        except (TypeError, ValueError) as error:
            raise CheckpointError(
                f"the notes of a checkpoint hold what a manifest cannot: {error}",
                hint="keep numbers, strings, lists and dicts in them",
            ) from None

        def write(folder: Path) -> Manifest:
            entries = []

            def dump(file: BinaryIO) -> None:
                digesting = DigestingFile(file)
                torch.save(plain, digesting)
                entries.append(digesting.entry())

            write_durably(dump, folder / STATE)
            return Manifest(
                run_id=self.run_id or "",
                step=step,
                epoch=epoch,
                world_size=world_size,
                score=None if score is None else float(score),
                files={STATE: entries[0]},
                saved_at=manifests.stamp(self._clock.now()),
                versions=manifests.versions(torch.__version__),
                notes=kept,
            )

        return self.commit(f"step-{step:08d}", write)

    def adopt(
        self, manifest: Manifest, name: str, fetch: Callable[[str, Path], None]
    ) -> Checkpoint:
        """Take in a checkpoint from elsewhere, as durably as if it were saved here.

        Args:
            manifest: what it holds.
            name: of its folder.
            fetch: given the name of a file, writes it to a path.

        Raises:
            DamagedError: what was fetched is not what the manifest says.
            CheckpointError: it belongs to another run.
        """
        self._refuse_foreign(manifest, name)

        def write(folder: Path) -> Manifest:
            for file in manifest.files:
                fetch(file, folder / file)
            manifest.check(folder)
            return manifest

        self.root.mkdir(parents=True, exist_ok=True)
        return self.commit(name, write)

    def newest(self) -> Checkpoint | None:
        """Return the newest whole checkpoint, or None if there is no checkpoint at all.

        Newest is by step number, never by name order or file time. One that is not whole
        is passed over with a warning that says what is wrong with it.

        Raises:
            CheckpointError: the newest belongs to another run, or was written by a newer
                release; or there are checkpoints, and none is whole.
            StoreError: the store of the URL cannot be read.
        """
        self._fetch()
        faults = []
        for folder in self._folders():
            if not (folder / manifests.NAME).exists():
                continue  # never committed, so never a checkpoint
            try:
                checkpoint = self._verified(folder)
            except DamagedError as error:
                log.warning("passing over %s: %s", folder.name, error.message)
                faults.append(f"{folder.name}: {error.message}")
                self._damaged.add(folder)
                continue
            self._refuse_foreign(checkpoint.manifest, str(folder))
            return checkpoint
        if faults:
            raise CheckpointError(
                f"none of the {len(faults)} checkpoints in {self.root} is whole "
                f"({'; '.join(faults)})",
                hint="move them away to start from step 0, or restore one from a copy",
            )
        return None

    def load(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """Read the state of a checkpoint; only tensors and plain values come out.

        Raises:
            CheckpointError: the file holds something else.
        """
        with (checkpoint.folder / STATE).open("rb") as file:
            return load_state(file, checkpoint.folder.name)

    def load_latest(self) -> dict[str, Any] | None:
        """Return the state of the newest whole checkpoint, or None if there is none."""
        checkpoint = self.newest()
        return None if checkpoint is None else self.load(checkpoint)

    def committed(self) -> list[Path]:
        """List the folders of committed checkpoints, newest first."""
        return [f for f in self._folders() if (f / manifests.NAME).exists()]

    def place(self, folder: Path) -> tuple[int, int]:
        """Return where a checkpoint stands in the order of saves."""
        match = _FOLDER.fullmatch(folder.name)
        assert match is not None
        return int(match[1]), int(match[2] or 0)

    def pin(self, folder: Path) -> None:
        """Keep a checkpoint while it is being read."""
        self._pinned.add(folder)

    def unpin(self, folder: Path) -> None:
        """Let retention remove it again."""
        self._pinned.discard(folder)

    def reserve(self, name: str) -> None:
        """Never save under this name: something else has it elsewhere."""
        self._reserved.add(name)

    def commit(self, name: str, write: Callable[[Path], Manifest]) -> Checkpoint:
        """Fill a new folder, commit it, and only then remove what is old.

        Args:
            name: of the folder; a step that was saved before gets another one.
            write: writes every file durably, and says what the manifest is to hold.

        Raises:
            Exception: whatever `write` raises; nothing is left of the folder then.
            StoreError: it could not be copied to the URL; it is on this machine only.
        """
        if not self._is_fetched:
            self._fetch()
        folder = self._new_folder(name)
        try:
            manifest = write(folder)
            self._publish(manifest, folder)
            sync_folder(self.root)
        except BaseException:
            _remove(folder)
            raise
        self._retire(folder)
        checkpoint = Checkpoint(folder, manifest)
        if self._remote is not None:
            self._remote.send(checkpoint)
            self._remote.wait()
        return checkpoint

    def _fetch(self) -> None:
        """Bring what is newer in the store, and take no name for a save that it has."""
        if self._remote is None:
            return
        self._remote.fetch_newer()
        self._reserved.update(self._remote.names())
        self._is_fetched = True

    def _folders(self) -> list[Path]:
        """List the checkpoint folders, whole or not, newest first."""
        if not self.root.is_dir():
            return []
        numbered = [
            (int(match[1]), int(match[2] or 0), folder)
            for folder in self.root.iterdir()
            if (match := _FOLDER.fullmatch(folder.name)) and folder.is_dir()
        ]
        return [folder for _, _, folder in sorted(numbered, reverse=True)]

    def _new_folder(self, name: str) -> Path:
        """Make a folder that comes after every earlier save of the same step.

        A step that is saved again never goes under a name that is free again, or what was
        saved last would not be the newest; and files of two saves never mix.
        """
        step, generation = self.place(self.root / name)
        for folder in self._folders():
            taken_step, taken = self.place(folder)
            if taken_step == step:
                generation = max(generation, taken + 1)
        stem = name.partition(".")[0]
        while True:
            folder = self.root / (f"{stem}.{generation}" if generation else stem)
            if folder.name not in self._reserved:
                with contextlib.suppress(FileExistsError):
                    folder.mkdir(parents=True)
                    return folder
            generation += 1

    def _publish(self, manifest: Manifest, folder: Path) -> None:
        sync_folder(folder)
        path = folder / manifests.NAME
        try:
            commit(manifest.to_bytes(), path)
        except RenameRefusedError as error:
            log.warning("%s; the manifest is written last instead", error.message)
            # The folder is new and its data durable: a torn manifest fails its digest.
            write_durably(manifest.to_bytes(), path)
            sync_folder(folder)

    def _verified(self, folder: Path) -> Checkpoint:
        try:
            data = (folder / manifests.NAME).read_bytes()
        except OSError as error:
            raise DamagedError(f"its manifest cannot be read: {error}") from error
        manifest = Manifest.parse(data, of=folder.name)
        if manifest.step != self.place(folder)[0]:
            raise DamagedError(f"its manifest says step {manifest.step}")
        manifest.check(folder)
        return Checkpoint(folder, manifest)

    def _refuse_foreign(self, manifest: Manifest, name: str) -> None:
        if self.run_id is not None and manifest.run_id != self.run_id:
            raise CheckpointError(
                f"{name} belongs to run {manifest.run_id!r}, this is run {self.run_id!r}",
                hint="choose another folder, or name that run to go on with it",
            )

    def _retire(self, saved: Path) -> None:
        """Remove what is neither among the `keep` newest, nor the best, nor in use.

        What was just saved stays even if a damaged checkpoint has a higher step. The
        manifest goes first, so that a removal cut short leaves no checkpoint rather than
        half of one; the rest is swept at the next start.
        """
        committed = self.committed()
        whole = [folder for folder in committed if folder not in self._damaged]
        stay = {saved, self._best(whole), *whole[: self.keep], *self._pinned}
        for folder in committed:
            if folder not in stay and self.place(folder) < self.place(saved):
                _remove(folder)

    def _best(self, folders: list[Path]) -> Path | None:
        scored = []
        for age, folder in enumerate(folders):
            try:
                data = (folder / manifests.NAME).read_bytes()
                manifest = Manifest.parse(data, of=folder.name)
            except (CheckpointError, OSError):
                continue
            if manifest.score is not None and not math.isnan(manifest.score):
                scored.append((manifest.score, age, folder))
        return min(scored)[2] if scored else None


def _remove(folder: Path) -> None:
    """Unmake a checkpoint: first it stops being one, then its files go."""
    (folder / manifests.NAME).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # litter is swept at the next start
        sync_folder(folder)
        shutil.rmtree(folder)


def _remove_own(folder: str, owner: int) -> None:
    """Remove a temporary folder, but not in a process forked from its owner's."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _is_ours(folder: Path) -> bool:
    """Whether a folder without a manifest holds only what a save of ours leaves."""
    names = {path.name for path in folder.iterdir()}
    return all(
        name in (STATE, ".metadata") or name.endswith((PARTIAL, ".distcp", ".tmp"))
        for name in names
    )


def load_state(file: BinaryIO, name: str) -> dict[str, Any]:
    """Read a state; only tensors and plain values come out, whatever is in the file.

    Raises:
        CheckpointError: something else is in it, such as an object that runs code.
    """
    import pickle

    import torch

    try:
        state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
        return state
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        first_line = str(error).splitlines()[0]
        raise CheckpointError(
            f"{name} holds something else than tensors and plain values: {first_line}",
            hint="use only checkpoints that this trainer wrote",
        ) from error
