"""Private copy-on-write views of the whole machine: nothing of the user's is written.

A workspace belongs to one campaign and owns a scratch folder outside the user's. Each
trial gets a view: one upper folder for each layer (layers.py), mounted again for every
attempt of the trial, so that what an attempt wrote is there for the next.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import socket
import stat
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from spotchaos.errors import HarnessError, UsageError
from spotchaos.launch.copying import copy_metadata, copy_tree, is_whiteout, walk
from spotchaos.launch.credentials import secret_paths
from spotchaos.launch.layers import (
    Layer,
    is_below,
    layer_of,
    plan_layers,
    read_mounts,
)
from spotchaos.launch.mechanisms import Mechanisms, find_mechanisms
from spotchaos.launch.namespaces import OVERLAY_OPTIONS, remove_tree
from spotchaos.launch.rename_safety import make_renamable

PREFIX = "spotchaos-"
# Below this much room an attempt would fail for want of it, and look like a finding.
LEAST_FREE_BYTES = 64 << 20
# Of a private copy of the working folder, where there is no overlay and no reflink.
COPY_LIMIT_BYTES = 2 << 30


class Changed(NamedTuple):
    """A file that attempts in a view wrote."""

    path: str  # relative to the working folder; "{out}/..." in the folder for output
    size: int
    mtime_ns: int


class Workspace:
    """Owns everything that a campaign writes to disk, and removes it.

    Args:
        folder: the program's working folder.
        scratch: where views are kept; None: the first place that can hold them.
        mechanisms: what this machine offers; None: find out.
        keep: traces and output of attempts are copied there; None: they go with the view.

    Raises:
        HarnessError: no place for views, or no space there.
        UsageError: the folder is not there.
    """

    def __init__(
        self,
        folder: Path,
        scratch: Path | None = None,
        mechanisms: Mechanisms | None = None,
        *,
        keep: Path | None = None,
    ) -> None:
        self.folder: Path = folder.absolute()
        if not self.folder.is_dir():
            raise UsageError(
                f"the folder {str(folder)!r} is not there",
                hint="name the folder in which the program runs",
            )
        self.folder = self.folder.resolve()
        self.keep = keep
        self.mechanisms = mechanisms or find_mechanisms()
        sweep(Path(tempfile.gettempdir()))
        self.scratch = _make_scratch(scratch)
        # Locked before it has its name: a sweep must not find it unlocked.
        self._lock_file = (self.scratch / "lock.new").open("w")
        fcntl.flock(self._lock_file, fcntl.LOCK_EX)
        (self.scratch / "lock.new").replace(self.scratch / "lock")
        self._shared_memory = _make_shared_memory(self.scratch.name)
        self._views: dict[str, View] = {}
        self._lock = threading.Lock()
        self.ends: set[Callable[[], None]] = set()  # end what runs in our views
        self.mounts = read_mounts()
        self.layers: list[Layer] = []
        if self.mechanisms.overlay is not None:
            self.layers = plan_layers(
                self.mounts, whole_root=self.mechanisms.overlay == "root"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def view(self, name: str) -> View:
        """Return a new view of the machine as it is.

        Args:
            name: unique among the open views; letters, digits and dashes.

        Raises:
            HarnessError: no space, or a name that is taken.
        """
        return self._add(View(self, self._new_place(name), name))

    def end_all(self) -> None:
        """End every attempt that still runs in a view of ours."""
        for end in list(self.ends):
            end()

    def close(self) -> None:
        """End what runs and remove everything; never raises for what is gone already."""
        self.end_all()
        for folder in (self.scratch, self._shared_memory):
            if folder is not None:
                remove_tree(str(folder))
        self._lock_file.close()

    @property
    def places(self) -> list[str]:
        """Every folder of ours on this machine, for whoever outlives us."""
        both = (self.scratch, self._shared_memory)
        return [str(folder) for folder in both if folder is not None]

    def demand_space(self) -> None:
        """Raise HarnessError if the disk that holds the views is all but full."""
        free = shutil.disk_usage(self.scratch).free
        if free < LEAST_FREE_BYTES:
            raise HarnessError(
                f"{free >> 20} MB are left on the disk of {str(self.scratch)!r}, "
                f"and private copies of what the program writes go there",
                hint="free some, or set TMPDIR to another disk",
            )

    def shared_memory_for(self, place: Path) -> Path:
        """Return a folder in memory, or on disk where there is none, for one view."""
        parent = self._shared_memory or self.scratch / "shm"
        folder = parent / place.name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def forget(self, view: View) -> None:
        """Let the name of a closed view be used again."""
        with self._lock:
            self._views.pop(view.name, None)

    def _new_place(self, name: str) -> Path:
        with self._lock:
            if name in self._views:
                raise HarnessError(f"there is a view {name!r} already")
        self.demand_space()
        place = self.scratch / secrets.token_hex(3)
        place.mkdir()
        return place

    def _add(self, view: View) -> View:
        with self._lock:
            self._views[view.name] = view
        return view

    def add_copy(self, view: View, name: str) -> View:
        """Return a new view with everything that `view` holds."""
        place = self._new_place(name)
        place.rmdir()
        copy_tree(view.place, place)
        for attempt in place.glob("a*"):
            remove_tree(str(attempt))
        shared = self.shared_memory_for(place)
        shared.rmdir()
        copy_tree(self.shared_memory_for(view.place), shared)
        return self._add(View(self, place, name, like=view))


class View:
    """One private copy-on-write view, shared by the attempts of one trial.

    Made by `Workspace.view` and `View.copy`. All paths that the program sees are those of
    the machine; `host` says where on the machine such a path really lies.
    """

    def __init__(
        self, workspace: Workspace, place: Path, name: str, *, like: View | None = None
    ) -> None:
        self.workspace = workspace
        self.place = place
        self.name = name
        self.layers = workspace.layers
        self.generation: int = like.generation if like else 1  # of the machine
        # As the program sees it.
        self.folder: Path = workspace.folder if like is None else like.folder
        self.not_renamable: tuple[str, ...] = like.not_renamable if like else ()
        self.hidden: list[str] = list(like.hidden) if like else []
        self.first: dict[str, tuple[int, int]] = dict(like.first) if like else {}
        if like is None:
            self._prepare()

    # --- what the program sees ---

    @property
    def is_overlay(self) -> bool:
        """Whether the program runs at its own paths, over a copy-on-write view."""
        return bool(self.layers)

    @property
    def private(self) -> Path:
        """The folder for TMPDIR and output, as the program sees it.

        It lies in the layer of the working folder, so that a rename from TMPDIR to it
        works as it would on a machine with one disk.
        """
        if not self.is_overlay:
            return self.place / "private"
        layer = layer_of(self.layers, str(self.workspace.folder))
        if layer_of(self.layers, "/tmp") is layer and Path("/tmp").is_dir():
            return Path("/tmp/.spotchaos")
        return Path(layer.at) / ".spotchaos"

    @property
    def temporary(self) -> Path:
        """The program's TMPDIR, new on each machine."""
        return self.private / f"tmp{self.generation}"

    @property
    def out(self) -> Path:
        """What `{out}` in the command stands for; it outlives the machine."""
        return self.private / "out"

    # --- what the harness does with it ---

    def hide(self, paths: Sequence[str]) -> None:
        """Let files and folders of the user's be absent.

        Args:
            paths: relative to the working folder, or absolute.
        """
        for path in paths:
            self.hidden.append(path)
            self._remove(self.workspace.folder / path)

    def changed(self) -> list[Changed]:
        """Return what attempts wrote in the working folder and in `{out}`, sorted."""
        found = self._changed_below(self.workspace.folder, "")
        if self.out != self.workspace.folder:
            found += self._changed_below(self.out, "{out}/")
        return sorted(found)

    def path(self, relative: str) -> Path:
        """Return where on this machine a file of the view lies; only to be read.

        Args:
            relative: to the working folder, or below "{out}/", or absolute.
        """
        if relative.startswith("{out}/"):
            return self.host(self.out / relative[len("{out}/") :])
        return self.host(self.workspace.folder / relative)

    def host(self, path: Path) -> Path:
        """Return where on this machine what the program sees at `path` lies.

        A file that nobody in the view has written is the user's own.
        """
        if not self.is_overlay:
            inside = _relative(path, self.workspace.folder)
            return path if inside is None else self.place / "copy" / inside
        upper = self._upper_path(path)
        return upper if upper is not None and os.path.lexists(upper) else path

    def copy(self, name: str) -> View:
        """Return another view with everything that this one holds now."""
        return self.workspace.add_copy(self, name)

    def lose_machine(
        self, durable: Sequence[Path] | None = None, *, move: bool = False
    ) -> None:
        """Leave only what outlives the machine: files, TMPDIR and host name are new.

        Args:
            durable: folders that outlive it; None: the working folder. `{out}` always
                does.
            move: the working folder is found at another path from now on.
        """
        kept = [Path(p) for p in durable] if durable else [self.workspace.folder]
        kept = [self.workspace.folder / path for path in kept] + [self.out]
        if self.is_overlay:
            for number, layer in enumerate(self.layers):
                if layer.how == "overlay":
                    _prune(self._upper(number), Path(layer.at), kept)
        else:
            _prune(self.place / "copy", self.workspace.folder, kept)
        shared = self.workspace.shared_memory_for(self.place)
        remove_tree(str(shared))
        self.workspace.shared_memory_for(self.place)
        for folder in ("tmp", "private/tmp1"):
            remove_tree(str(self.place / folder))
        self.generation += 1
        if move:
            self.folder = self.workspace.folder.with_name(
                f"{self.workspace.folder.name}-{self.generation}"
            )
        self._make_private_folders()
        self._hide_credentials()
        for path in self.hidden:
            self._remove(self.workspace.folder / path)

    @property
    def host_name(self) -> str:
        """The name of the machine: ours, until the first is lost."""
        name = socket.gethostname()
        return name if self.generation == 1 else f"{name[:48]}-{self.generation}"

    def attempt_folder(self, number: int) -> Path:
        """Return a new empty folder for what the harness keeps of an attempt."""
        base = self.place / f"a{number}"
        folder, again = base, 1
        while folder.exists():
            again += 1
            folder = base.with_name(f"{base.name}.{again}")
        folder.mkdir()
        return folder

    def close(self) -> None:
        """Remove the view and all that was written in it."""
        remove_tree(str(self.place))
        remove_tree(str(self.workspace.shared_memory_for(self.place)))
        self.workspace.forget(self)

    def is_refused(self, path: Path, *, also: Sequence[str] = ()) -> bool:
        """Tell whether it is our isolation that makes a path read-only."""
        if any(is_below(str(path), at) for at in also):
            return True
        return self.is_overlay and layer_of(self.layers, str(path)).how != "overlay"

    # --- mounts ---

    def root(self) -> Path | None:
        """Return the folder that becomes the root of an attempt; None: the root stays."""
        if not self.is_overlay:
            return None
        root = self.place / "root"
        root.mkdir(exist_ok=True)
        return root

    def mount_steps(
        self, attempt_folder: Path, *, tmp_elsewhere: bool
    ) -> list[dict[str, Any]]:
        """Return the mounts of one attempt, in order, for `namespaces.mount_all`."""
        mechanisms = self.workspace.mechanisms
        steps: list[dict[str, Any]] = []
        if self.is_overlay:
            steps += self._layer_steps()
            steps.append({"do": "bind", "source": "/sys", "at": "/sys"})
            steps[-1].update(recursive=True, readonly=True, otherwise="bind")
            steps.append({"do": "bind", "source": "/dev", "at": "/dev"})
            steps[-1].update(recursive=True)
            steps.append({"do": "readonly", "at": "/dev", "otherwise": "nothing"})
        if mechanisms.fresh_proc and mechanisms.pid_namespace:
            steps.append({"do": "proc", "at": "/proc", "otherwise": "bind"})
            # Of the kernel's own settings an attempt of root must change none.
            steps.append({"do": "bind", "source": "/proc/sys", "at": "/proc/sys"})
            steps[-1].update(readonly=True, inner=True, otherwise="nothing")
        elif self.is_overlay:
            steps.append({"do": "bind", "source": "/proc", "at": "/proc"})
            steps[-1].update(recursive=True)
        if mechanisms.mount_namespace:
            steps += self._device_steps()
            steps += self._scratch_steps(attempt_folder, tmp_elsewhere=tmp_elsewhere)
            steps += self._name_steps(attempt_folder)
        return steps

    def _layer_steps(self) -> list[dict[str, Any]]:
        steps: list[dict[str, Any]] = []
        flavour = self.workspace.mechanisms.overlay or "user"
        folder_layer = layer_of(self.layers, str(self.workspace.folder))
        for number, layer in enumerate(self.layers):
            if layer.how == "frame":
                if layer.at == "/":
                    steps.append({"do": "root", "at": "/"})
                for name in layer.files:
                    at = str(Path(layer.at) / name)
                    steps.append({"do": "bind", "source": at, "at": at})
                    steps[-1].update(readonly=True, otherwise="nothing")
            elif layer.how == "readonly":
                steps.append({"do": "bind", "source": layer.at, "at": layer.at})
                steps[-1].update(recursive=True, readonly=True, otherwise="bind")
            else:
                steps.append(
                    {
                        "do": "overlay",
                        "at": layer.at,
                        "lower": layer.at,
                        "upper": str(self._upper(number)),
                        "work": str(self.place / f"w{number}"),
                        "options": OVERLAY_OPTIONS[flavour],
                    }
                )
                if layer is not folder_layer:
                    steps[-1]["otherwise"] = "readonly"
        return steps

    def _device_steps(self) -> list[dict[str, Any]]:
        shared = self.workspace.shared_memory_for(self.place)
        target = "/dev/shm"
        if Path(target).is_symlink():
            target = os.path.realpath(target)
        steps = [
            {
                "do": "devpts",
                "at": "/dev/pts",
                "options": "newinstance,ptmxmode=0666,mode=0620",
                "otherwise": "nothing",
            },
            {
                "do": "bind",
                "source": str(shared),
                "at": target,
                "otherwise": "nothing",
            },
        ]
        if self.workspace.mechanisms.ipc_namespace and Path("/dev/mqueue").is_dir():
            steps.append({"do": "mqueue", "at": "/dev/mqueue", "otherwise": "nothing"})
        return steps

    def _scratch_steps(
        self, attempt_folder: Path, *, tmp_elsewhere: bool
    ) -> list[dict[str, Any]]:
        """Hide what lies in our scratch folder, but for what belongs to the attempt."""
        steps: list[dict[str, Any]] = []
        if tmp_elsewhere:
            elsewhere = self.place / "tmp"
            elsewhere.mkdir(exist_ok=True)
            at = str(self.temporary)
            steps.append({"do": "bind", "source": str(elsewhere), "at": at})
        if not self.is_overlay:
            source = str(self.place / "copy")
            at = str(self.workspace.folder)
            steps.append({"do": "bind", "source": source, "at": at})
            return steps
        scratch = str(self.workspace.scratch)
        steps.append({"do": "tmpfs", "at": scratch, "options": "mode=0755,size=1m"})
        steps.append({"do": "make", "at": str(attempt_folder)})
        steps.append(
            {"do": "bind", "source": str(attempt_folder), "at": str(attempt_folder)}
        )
        steps.append({"do": "readonly", "at": scratch})
        if self.folder != self.workspace.folder:
            steps += self._move_steps()
        return steps

    def _move_steps(self) -> list[dict[str, Any]]:
        """Let the working folder be found at its new path, and only there."""
        old, new = str(self.workspace.folder), str(self.folder)
        steps: list[dict[str, Any]] = [
            {"do": "make", "at": new},
            {"do": "bind", "source": old, "at": new, "inner": True},
            {"do": "tmpfs", "at": old, "options": "mode=0755,size=1m"},
        ]
        # A virtual environment has its own path written into it: it stays where it was.
        for config in sorted(self.workspace.folder.glob("*/pyvenv.cfg")):
            kept = str(config.parent)
            moved = str(self.folder / config.parent.name)
            steps.append({"do": "make", "at": kept})
            steps.append({"do": "bind", "source": moved, "at": kept, "inner": True})
        steps.append({"do": "readonly", "at": old})
        return steps

    def _name_steps(self, attempt_folder: Path) -> list[dict[str, Any]]:
        """Let a new host name be found, as the old one was."""
        if self.generation == 1 or not self.is_overlay:
            return []
        hosts = attempt_folder / "hosts"
        try:
            known = Path("/etc/hosts").read_text()
        except OSError:
            return []
        hosts.write_text(f"{known.rstrip()}\n127.0.0.1 {self.host_name}\n")
        step = {"do": "bind", "source": str(hosts), "at": "/etc/hosts"}
        return [{**step, "readonly": True, "otherwise": "nothing"}]

    # --- uppers ---

    def _prepare(self) -> None:
        try:
            if self.is_overlay:
                self._prepare_layers()
            else:
                copy_tree(
                    self.workspace.folder,
                    self.place / "copy",
                    limit_bytes=COPY_LIMIT_BYTES,
                )
            for path, size, mtime_ns in self._changed_below(self.workspace.folder, ""):
                self.first[path] = (size, mtime_ns)
            self._make_private_folders()
            self._hide_credentials()
        except OSError as error:
            raise HarnessError(
                f"could not make a private view in {str(self.place)!r}: {error}",
                hint="set TMPDIR to a writable disk with space",
            ) from error

    def _prepare_layers(self) -> None:
        root = self.root()
        assert root is not None
        for number, layer in enumerate(self.layers):
            if layer.how == "overlay":
                self._upper(number).mkdir()
                copy_metadata(Path(layer.at), self._upper(number))
            inner = Path(f"{root}{layer.at}")
            if self.workspace.mechanisms.overlay == "user" and layer.at != "/":
                inner.mkdir(parents=True, exist_ok=True)
            if layer.how == "frame":
                for name, text in (layer.links or {}).items():
                    (inner / name).symlink_to(text)
                for name in layer.files:
                    (inner / name).touch()
        if self.workspace.mechanisms.overlay == "user":
            for name in ("proc", "sys", "dev"):
                (root / name).mkdir(exist_ok=True)
        upper = self._upper_path(self.workspace.folder)
        if upper is not None:
            self._make_upper_folder(self.workspace.folder)
            self.not_renamable = make_renamable(
                self.workspace.folder,
                upper,
                redirects=self.workspace.mechanisms.overlay == "root",
            )

    def _make_private_folders(self) -> None:
        for folder in (self.temporary, self.out):
            if self.is_overlay:
                self._make_upper_folder(folder)
            else:
                folder.mkdir(parents=True, exist_ok=True)

    def _hide_credentials(self) -> None:
        if self.is_overlay:
            for path in secret_paths(os.environ):
                self._remove(path)

    def _upper(self, number: int) -> Path:
        return self.place / f"u{number}"

    def _upper_path(self, path: Path) -> Path | None:
        """Return where in an upper folder a path of the view lies; None: in none."""
        layer = layer_of(self.layers, str(path))
        if layer.how != "overlay":
            return None
        upper = self._upper(self.layers.index(layer))
        return upper / path.relative_to(layer.at)

    def _make_upper_folder(self, path: Path) -> None:
        """Make a folder in its upper, with those above it as they are below."""
        upper = self._upper_path(path)
        if upper is None:
            raise HarnessError(
                f"{str(path)!r} lies on a mount that cannot be written in a view",
                hint="run from a folder on a local disk",
            )
        missing = []
        while not upper.exists():
            missing.append((upper, path))
            upper, path = upper.parent, path.parent
        for new, like in reversed(missing):
            if os.path.lexists(new):  # a whiteout
                new.unlink()
            new.mkdir()
            if like.is_dir():
                copy_metadata(like, new)

    def _remove(self, path: Path) -> None:
        """Let a path be absent from the view."""
        if not self.is_overlay:
            _remove_any(self.host(path))
            return
        upper = self._upper_path(path)
        if upper is None:
            return
        self._make_upper_folder(path.parent)
        _remove_any(upper)
        if os.path.lexists(path) and not self._is_opaque(path.parent):
            os.mknod(upper, stat.S_IFCHR, os.makedev(0, 0))

    def _is_opaque(self, path: Path) -> bool:
        """Tell whether nothing of the user's shows through at a folder of the view.

        A whiteout there would be seen as the device file that it is.
        """
        at = layer_of(self.layers, str(path)).at
        while path.is_relative_to(at):
            upper = self._upper_path(path)
            assert upper is not None  # so is the layer of `path`, which is the same
            for name in ("trusted.overlay.opaque", "user.overlay.opaque"):
                with contextlib.suppress(OSError):
                    if os.getxattr(upper, name) == b"y":
                        return True
            if path == path.parent:
                return False
            path = path.parent
        return False

    def _changed_below(self, folder: Path, prefix: str) -> list[Changed]:
        root = self._upper_path(folder) if self.is_overlay else self.host(folder)
        found: list[Changed] = []
        if root is None or not root.is_dir():
            return found
        for entry in walk(root):
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISDIR(status.st_mode) or is_whiteout(status):
                continue
            relative = str(Path(entry.path).relative_to(root))
            known = (status.st_size, status.st_mtime_ns)
            if not prefix and self.first.get(relative) == known:
                continue
            found.append(Changed(prefix + relative, status.st_size, status.st_mtime_ns))
        return found


def sweep(parent: Path) -> None:
    """Remove scratch folders whose owner died without doing so."""
    for folder in parent.glob(PREFIX + "*"):
        lock = folder / "lock"
        try:
            if folder.lstat().st_uid != os.geteuid():
                continue
            with lock.open("r+") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tree(str(Path("/dev/shm") / folder.name))
                remove_tree(str(folder))
        except OSError:
            continue


def _make_scratch(parent: Path | None) -> Path:
    places = [parent] if parent else [Path(tempfile.gettempdir()), Path("/var/tmp")]
    trouble: OSError | None = None
    for place in places:
        try:
            return Path(tempfile.mkdtemp(prefix=PREFIX, dir=place)).resolve()
        except OSError as error:
            trouble = error
    full = trouble is not None and trouble.errno in (errno.ENOSPC, errno.EDQUOT)
    raise HarnessError(
        f"no place for private views: {trouble}",
        hint="free some space, or set TMPDIR to another disk"
        if full
        else "set TMPDIR to a writable folder",
    )


def _make_shared_memory(name: str) -> Path | None:
    folder = Path("/dev/shm") / name
    try:
        folder.mkdir(mode=0o700)
    except OSError:
        return None
    return folder


def _prune(upper: Path, at: Path, kept: Sequence[Path]) -> None:
    """Remove from an upper everything but what lies in (or leads to) folders kept."""
    for entry in list(os.scandir(upper)):
        inner = at / entry.name
        if any(is_below(str(inner), str(folder)) for folder in kept):
            continue
        leads = any(is_below(str(folder), str(inner)) for folder in kept)
        if leads and entry.is_dir(follow_symlinks=False):
            _prune(Path(entry.path), inner, kept)
        else:
            _remove_any(Path(entry.path))


def _remove_any(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        remove_tree(str(path))
    elif os.path.lexists(path):
        path.unlink()


def _relative(path: Path, folder: Path) -> Path | None:
    return path.relative_to(folder) if path.is_relative_to(folder) else None
