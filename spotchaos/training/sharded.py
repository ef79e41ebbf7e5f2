"""Checkpoints of models that no rank holds whole: FSDP2, by torch's distributed format.

Every rank writes its own file; what makes the set a checkpoint is our manifest, written by
rank 0 once all files are durable. Torch's own commit point, the file `.metadata`, is
published before its bytes are durable (seen in torch 2.13: it is synced before its buffer
is flushed), and is therefore synced again before the manifest names it.
"""

from __future__ import annotations

import dataclasses
import enum
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from spotchaos.clock import Clock, SystemClock
from spotchaos.errors import CheckpointError
from spotchaos.training import manifest as manifests
from spotchaos.training.checkpoint import (
    STATE,
    CheckpointStore,
    load_state,
)
from spotchaos.training.commit import sync_folder, write_durably
from spotchaos.training.manifest import FileEntry, Manifest, digest_of
from spotchaos.training.peers import Peers
from spotchaos.training.sync import Mirror

# What torch pickles into `.metadata`, and nothing that runs code.
_TRUSTED_MODULES = ("torch.distributed.checkpoint.", "torch.distributed._shard.")
_TRUSTED_NAMES = {
    ("torch", "Size"),
    ("torch", "device"),
    ("torch.serialization", "_get_layout"),
    ("collections", "OrderedDict"),
    ("builtins", "set"),
    ("pathlib", "PosixPath"),
}


class ShardedStore:
    """Saves and loads a sharded model and its optimizer; every method is collective.

    Args:
        store: the folder that all ranks see.
        peers: the ranks.
        mirror: copies what is committed in that folder to another store, all ranks' files
            of it, and brings it back.
        clock: dates the manifests.
    """

    def __init__(
        self, store: CheckpointStore, peers: Peers, *, mirror: Mirror | None = None,
        clock: Clock | None = None,
    ) -> None:  # fmt: skip
        if store.url is not None:
            raise CheckpointError(
                f"every rank writes its shard into one folder, and {store.url} is none",
                hint="CheckpointStore(FOLDER), and mirror=Mirror(that, open_store(URL))",
            )
        self._store = store
        self._peers = peers
        self._mirror = mirror
        self._clock = clock or SystemClock()
        self.slowest_save_s = 0.0

    @property
    def fault(self) -> str:
        """What went wrong with a copy, or an empty string; only rank 0 knows."""
        return "" if self._mirror is None else self._mirror.fault

    def prepare(self) -> None:
        """Sweep what interrupted saves left, and fetch what is newer elsewhere.

        Raises:
            SpotchaosError: on every rank, if the folder or the mirror cannot be used.
        """
        self._peers.led(self._prepare)

    def wait(self, within_s: float | None = None) -> None:
        """Return once everything that was saved is in the mirror as well.

        Args:
            within_s: how long to wait, in seconds; None for as long as it takes.

        Raises:
            SpotchaosError: on every rank, if the copy failed or is not done in time.
        """
        mirror = self._mirror
        if mirror is not None:
            self._peers.led(lambda: mirror.wait(within_s))

    def save(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, *, step: int,
        epoch: int = 0, score: float | None = None, mine: Any = None,
        shared: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Write the checkpoint of `step`; on return, on any rank, it is durable.

        Args:
            model: sharded or not.
            optimizer: of that model.
            step: completed steps.
            epoch: for people; not used here.
            score: how good it is, lower is better; the best whole one always stays.
            mine: this rank's own values, such as `capture_rng()`.
            shared: rank 0's values: scheduler, sampler.

        Raises:
            CheckpointError: it failed, on whichever rank, or the copy of the one before
                did; earlier checkpoints are whole.
        """
        if trouble := self._peers.broadcast(self.fault):
            raise CheckpointError(f"a save before step {step} failed: {trouble}")
        began_s = self._clock.monotonic()
        ranks = self._peers.gather(mine)
        fault = ""
        try:
            if self._peers.leads:
                rest = {"step": step, "shared": dict(shared or {}), "ranks": ranks}
                labels = {"epoch": epoch, "score": score}
                self._save_first(f"step-{step:08d}", model, optimizer, rest, labels)
            else:
                folder = self._peers.broadcast(None)
                if folder is not None:
                    self._write(Path(folder), model, optimizer)
        except _PeerError:
            fault = ""  # its own rank says what it was
        except (OSError, CheckpointError) as error:
            fault = str(error)
        faults = sorted({each for each in self._peers.gather(fault) if each})
        if faults:
            raise CheckpointError(
                f"step {step} could not be saved: {'; '.join(faults)}"
            )
        took_s = self._clock.monotonic() - began_s
        self.slowest_save_s = max(self.slowest_save_s, took_s)

    def load(
        self, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> dict[str, Any] | None:
        """Put back the newest whole checkpoint.

        Returns:
            `step`, `shared`, `world_size` of the ranks that wrote it, and `mine` of this
            rank (None in another world); or None if there is no checkpoint.

        Raises:
            CheckpointError: on every rank, if it must not be used, or is of another model.
        """
        found: str | None = None

        def choose() -> None:
            nonlocal found
            newest = self._store.newest()
            found = None if newest is None else str(newest.folder)

        self._peers.led(choose)
        found = self._peers.broadcast(found)
        if found is None:
            return None
        folder = Path(found)
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments}
        _read(state, folder)
        set_state_dict(
            model, optimizer, model_state_dict=weights, optim_state_dict=moments
        )
        with (folder / STATE).open("rb") as file:
            rest = load_state(file, folder.name)
        ranks = rest.pop("ranks")
        rank = self._peers.rank
        rest["mine"] = ranks[rank] if len(ranks) == self._peers.world_size else None
        rest["world_size"] = len(ranks)
        return rest

    def _prepare(self) -> None:
        self._store.prepare()
        if self._mirror is not None:
            self._mirror.prepare()
            self._mirror.fetch_newer()

    def _save_first(
        self, name: str, model: nn.Module, optimizer: Any, rest: Mapping[str, Any],
        labels: Mapping[str, Any],
    ) -> None:  # fmt: skip
        is_announced = False

        def write(folder: Path) -> Manifest:
            nonlocal is_announced
            is_announced = True
            manifest = self._lead(folder, model, optimizer, rest)
            return dataclasses.replace(manifest, **labels)

        try:
            checkpoint = self._store.commit(name, write)
        finally:
            if not is_announced:  # no folder could be made, and the others wait for one
                self._peers.broadcast(None)
        if self._mirror is not None:
            self._mirror.send(checkpoint)

    def _lead(
        self, folder: Path, model: nn.Module, optimizer: Any, rest: Mapping[str, Any]
    ) -> Manifest:
        self._peers.broadcast(str(folder))
        entries = self._write(folder, model, optimizer)
        write_durably(lambda file: torch.save(dict(rest), file), folder / STATE)
        for name in (STATE, ".metadata"):
            entries[name] = _entry(folder / name)
        return Manifest(
            run_id=self._store.run_id or "",
            step=rest["step"],
            epoch=0,
            world_size=self._peers.world_size,
            files=entries,
            saved_at=manifests.stamp(self._clock.now()),
            versions=manifests.versions(torch.__version__),
        )

    def _write(
        self, folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> dict[str, FileEntry]:
        """Write this rank's shards, and describe the files of all ranks."""
        weights, moments = get_state_dict(model, optimizer)
        entries: dict[str, FileEntry] = {}
        fault = ""
        try:
            dcp.save(
                {"model": weights, "optimizer": moments},
                storage_writer=dcp.FileSystemWriter(folder, single_file_per_rank=True),
            )
            for path in folder.glob(f"__{self._peers.rank}_*.distcp"):
                entries[path.name] = _entry(path)
        except CheckpointException as error:  # no Exception; the same on all ranks
            failures = sorted(error.failures.items())
            fault = "; ".join(f"rank {rank}: {pair[0]}" for rank, pair in failures)
        except Exception as error:
            fault = f"rank {self._peers.rank}: {error}"
        everyone = self._peers.gather((entries, fault))
        if any(each for _, each in everyone):
            if fault:
                raise CheckpointError(fault)
            raise _PeerError("another rank could not write")
        return {name: entry for some, _ in everyone for name, entry in some.items()}


def _read(state: dict[str, Any], folder: Path) -> None:
    try:
        dcp.load(state, storage_reader=_Reader(folder))
    except CheckpointException as error:  # no Exception; the same on all ranks
        reasons = {str(pair[0]).splitlines()[0] for pair in error.failures.values()}
        raise CheckpointError(
            f"{folder.name} does not fit this model: {'; '.join(sorted(reasons))}",
            hint="build the model and the optimizer that the run was saved with",
        ) from error


class _PeerError(CheckpointError):
    """Another rank failed, and says itself how."""


class _Reader(dcp.FileSystemReader):  # type: ignore[misc]  # torch is untyped here
    """Reads `.metadata` without running what may be hidden in it."""

    def read_metadata(self, *args: Any, **more: Any) -> Any:
        path = Path(self.path) / ".metadata"
        with path.open("rb") as file:
            metadata = _Unpickler(file).load()
        if getattr(metadata, "storage_meta", None) is None:
            metadata.storage_meta = self.storage_meta()
        return metadata


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _member
        trusted = (
            module.startswith(_TRUSTED_MODULES) or (module, name) in _TRUSTED_NAMES
        )
        if not trusted and module == "torch":
            trusted = isinstance(getattr(torch, name, None), torch.dtype)
        if not trusted:
            raise CheckpointError(
                f".metadata asks for {module}.{name}, which no checkpoint needs",
                hint="use only checkpoints that this trainer wrote",
            )
        return super().find_class(module, name)


def _member(kind: Any, name: str) -> Any:
    """Stand in for `getattr`, by which Python 3.11.0 to 3.11.3 pickle an enum's members."""
    if not isinstance(kind, enum.EnumMeta) or name not in kind.__members__:
        raise CheckpointError(
            f".metadata asks for {name!r} of {kind!r}, which no checkpoint needs",
            hint="use only checkpoints that this trainer wrote",
        )
    return kind[name]


def _entry(path: Path) -> FileEntry:
    """Describe a file, once its bytes are durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync_folder(path.parent)
    return FileEntry(path.stat().st_size, digest_of(path))
