"""Keep checkpoints: one folder for each step, whole or not there, newest by step number."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from spotchaos.clock import Clock, SystemClock
from spotchaos.errors import CheckpointError
from spotchaos.training import manifest as manifests
from spotchaos.training.commit import (
    RenameRefusedError,
    commit,
    sweep,
    sync_folder,
    write_durably,
)
from spotchaos.training.manifest import DigestingFile, Manifest

log = logging.getLogger(__name__)

STATE = "state.pt"

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
    """Checkpoints of one run in one folder.

    Only one process may save: rank 0. Reading needs no care, since a checkpoint is there
    when its manifest is, and the manifest comes last.

    Args:
        root: the folder; made if it is missing.
        run_id: names the run; checkpoints of another are refused. None takes any.
        keep: how many whole checkpoints stay, 1 or more.
        clock: dates the manifests.
    """

    def __init__(
        self, root: Path | str, *, run_id: str | None = None, keep: int = 2,
        clock: Clock | None = None,
    ) -> None:  # fmt: skip
        self.root = Path(root)
        self.run_id = run_id
        self.keep = max(1, keep)
        self._clock = clock or SystemClock()

    def prepare(self) -> None:
        """Make the folder and sweep what interrupted saves left in it.

        Call it once, at the start, on the rank that saves.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        sweep(self.root)
        for folder in self._folders():
            if not (folder / manifests.NAME).exists():
                log.info("sweeping %s: its save was interrupted", folder.name)
                shutil.rmtree(folder)

    def save(
        self, state: Mapping[str, Any], *, step: int, epoch: int = 0,
        world_size: int = 1, notes: Mapping[str, Any] | None = None,
    ) -> Checkpoint:  # fmt: skip
        """Write `state` as the checkpoint of `step`; on return it is durable.

        The order: data and fsync, manifest and fsync, rename of the manifest (the commit
        point), fsync of both folders, and only then the removal of old checkpoints.

        Args:
            state: what `torch.load(weights_only=True)` can read back.
            step: completed steps.
            epoch: for people; not used here.
            world_size: ranks whose state is inside.
            notes: small values of the caller's, put into the manifest.

        Raises:
            OSError: the disk refused. No earlier checkpoint is touched, and what was
                written of this one is removed.
        """
        import torch

        folder = self._new_folder(step)
        try:
            entry = None

            def write(file: BinaryIO) -> None:
                nonlocal entry
                digesting = DigestingFile(file)
                torch.save(dict(state), digesting)
                entry = digesting.entry()

            write_durably(write, folder / STATE)
            assert entry is not None
            manifest = Manifest(
                run_id=self.run_id or "",
                step=step,
                epoch=epoch,
                world_size=world_size,
                files={STATE: entry},
                saved_at=manifests.stamp(self._clock.now()),
                versions=manifests.versions(torch.__version__),
                notes=dict(notes or {}),
            )
            self._publish(manifest, folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        sync_folder(self.root)
        self._retire(newest=folder)
        return Checkpoint(folder, manifest)

    def newest(self) -> Checkpoint | None:
        """Return the newest whole checkpoint, or None if there is no checkpoint at all.

        Newest is by step number, never by name order or file time. One that is not whole
        is passed over with a warning that says what is wrong with it.

        Raises:
            CheckpointError: the newest belongs to another run, or was written by a newer
                release; or there are checkpoints, and none is whole.
        """
        faults = []
        for folder in self._folders():
            if not (folder / manifests.NAME).exists():
                continue  # never committed, so never a checkpoint
            try:
                checkpoint = self._verified(folder)
            except CheckpointError as error:
                log.warning("passing over %s: %s", folder.name, error.message)
                faults.append(f"{folder.name}: {error.message}")
                continue
            self._refuse_foreign(checkpoint)
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
        import torch

        with (checkpoint.folder / STATE).open("rb") as file:
            return _load(torch, file, checkpoint.folder.name)

    def load_latest(self) -> dict[str, Any] | None:
        """Return the state of the newest whole checkpoint, or None if there is none."""
        checkpoint = self.newest()
        return None if checkpoint is None else self.load(checkpoint)

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

    def _new_folder(self, step: int) -> Path:
        """Make a folder that no earlier save of `step` has used: files never mix."""
        generation = 0
        while True:
            suffix = f".{generation}" if generation else ""
            folder = self.root / f"step-{step:08d}{suffix}"
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                generation += 1
            else:
                return folder

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
            raise CheckpointError(f"its manifest cannot be read: {error}") from error
        manifest = Manifest.parse(data, of=folder.name)
        match = _FOLDER.fullmatch(folder.name)
        if match is None or manifest.step != int(match[1]):
            raise CheckpointError(f"its manifest says step {manifest.step}")
        manifest.check(folder)
        return Checkpoint(folder, manifest)

    def _refuse_foreign(self, checkpoint: Checkpoint) -> None:
        theirs = checkpoint.manifest.run_id
        if self.run_id is not None and theirs != self.run_id:
            raise CheckpointError(
                f"{checkpoint.folder} belongs to run {theirs!r}, this is run "
                f"{self.run_id!r}",
                hint="choose another folder, or name that run to go on with it",
            )

    def _retire(self, *, newest: Path) -> None:
        """Remove all but the `keep` newest whole checkpoints.

        The manifest goes first, so that a removal cut short leaves no checkpoint rather
        than half of one.
        """
        whole = [f for f in self._folders() if (f / manifests.NAME).exists()]
        for folder in whole[self.keep :]:
            if folder == newest:
                continue
            (folder / manifests.NAME).unlink(missing_ok=True)
            sync_folder(folder)
            shutil.rmtree(folder)


def _load(torch: Any, file: BinaryIO, name: str) -> dict[str, Any]:
    import pickle

    try:
        state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
        return state
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        first_line = str(error).splitlines()[0]
        raise CheckpointError(
            f"{name} holds something else than tensors and plain values: {first_line}",
            hint="use only checkpoints that this trainer wrote",
        ) from error
