"""One private copy-on-write view of the whole machine, shared by the attempts of a trial.

Each layer (layers.py) has an upper folder in the workspace's scratch folder, mounted again
for every attempt, so that what an attempt wrote is there for the next. Where there is no
overlay the view is a copy of the working folder.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from spotchaos.errors import HarnessError
from spotchaos.launch.isolation import mounting
from spotchaos.launch.isolation.copying import (
    copy_metadata,
    copy_tree,
    is_whiteout,
    opened,
    walk,
)
from spotchaos.launch.isolation.credentials import secret_paths
from spotchaos.launch.isolation.layers import Layer, is_below, layer_of
from spotchaos.launch.isolation.removal import remove_tree
from spotchaos.launch.isolation.rename_safety import make_renamable

if TYPE_CHECKING:
    from spotchaos.launch.isolation.workspace import Workspace

# Of a private copy of the working folder, where there is no overlay and no reflink.
COPY_LIMIT_BYTES = 2 << 30


class Changed(NamedTuple):
    """A file that attempts in a view wrote."""

    path: str  # relative to the working folder; "{out}/..." in the folder for output
    size: int
    mtime_ns: int


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
    def runs_in(self) -> Path:
        """The working folder as the program finds it: a copy where nothing is mounted."""
        if self.workspace.mechanisms.mount_namespace:
            return self.folder
        return self.place / "copy"

    @property
    def private(self) -> Path:
        """The folder for TMPDIR and output, as the program sees it.

        It lies in the layer of the working folder, so that a rename from TMPDIR to it
        works as it would on a machine with one disk.
        """
        if not self.is_overlay:
            return self.place / "private"
        layer = layer_of(self.layers, str(self.workspace.folder))
        if layer.how == "frame":
            return Path("/.spotchaos")  # all frames are of one mount
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
            self._hide(path)

    def changed(self) -> list[Changed]:
        """Return what attempts wrote in the working folder and in `{out}`, sorted."""
        found = self._changed_below(self.workspace.folder, "")
        return sorted(found + self._changed_below(self.out, "{out}/"))

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
        if upper is None or not os.path.lexists(upper) or self.is_refused(path):
            return path
        return upper

    def holds(self, place: Path) -> bool:
        """Tell whether a path of this machine leads to something of the view.

        A link that the program made, or the user, may lead to the user's own files: what
        lies there is never changed. A link at the path itself counts as itself.
        """
        folder = os.path.realpath(place.parent)
        return is_below(folder, os.path.realpath(self.place))

    def fill_at(self, relative: str) -> Path:
        """Return a folder on this machine into which the harness may put files.

        Args:
            relative: "" for the working folder, "{out}/" for that of output.
        """
        place = self.out if relative.startswith("{out}") else self.workspace.folder
        if self.is_overlay:
            self._make_upper_folder(place)
            upper = self._upper_path(place)
            assert upper is not None  # both lie below an overlay
            return upper
        inside = _relative(place, self.workspace.folder)
        return place if inside is None else self.place / "copy" / inside

    def fill_places(self, relative: str) -> list[tuple[str, Path]]:
        """Return all that `fill_at` has: also for what is mounted within such a folder.

        Returns:
            Paths relative to it, and where on this machine what is below them goes; a
            path belongs to the last of them that it lies in.
        """
        found = [("", self.fill_at(relative))]
        place = self.out if relative.startswith("{out}") else self.workspace.folder
        for number, layer in self._layers_in(place):
            found.append((f"{Path(layer.at).relative_to(place)}/", self.upper(number)))
        return found

    def _layers_in(self, folder: Path) -> list[tuple[int, Layer]]:
        """Return the overlays of what is mounted within a folder, outer before inner."""
        return [
            (number, layer)
            for number, layer in enumerate(self.layers)
            if layer.how == "overlay"
            and layer.at != str(folder)
            and is_below(layer.at, str(folder))
        ]

    def copy(self, name: str) -> View:
        """Return another view with everything that this one holds now."""
        return self.workspace.add_copy(self, name)

    def lose_machine(
        self, durable: Sequence[Path] | None = None, *, move: bool = False
    ) -> None:
        """Leave only what outlives the machine: files, TMPDIR and host name are new.

        Args:
            durable: folders that outlive it, relative to the working folder or absolute;
                None: the working folder and `{out}`.
            move: the working folder is found at another path from now on.
        """
        if durable is None:
            durable = [self.workspace.folder, self.out]
        kept = [self.workspace.folder / path for path in durable]
        if self.is_overlay:
            for number, layer in enumerate(self.layers):
                if layer.how == "overlay":
                    _prune(self.upper(number), Path(layer.at), kept)
            for layer in self.layers:
                durably = any(is_below(layer.at, str(folder)) for folder in kept)
                if layer.how == "frame" and not durably:
                    self._clear_frame(layer, kept)
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
            self._hide(path)

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
        if not self.is_overlay:
            return False
        layer = layer_of(self.layers, str(path))
        if layer.how == "frame":
            return path.parent == Path(layer.at) and path.name in layer.files
        return layer.how != "overlay"

    # --- mounts ---

    def root(self) -> Path | None:
        """Return the folder that becomes the root of an attempt; None: the root stays."""
        if not self.is_overlay:
            return None
        root = self.place / "root"
        root.mkdir(exist_ok=True)
        return root

    def mount_steps(
        self,
        attempt_folder: Path,
        *,
        tmp_elsewhere: bool,
        hosts: Mapping[str, str] | None = None,
    ) -> list[dict[str, Any]]:
        """Return the mounts of one attempt, in order, for `namespaces.mount_all`."""
        return mounting.steps(
            self, attempt_folder, tmp_elsewhere=tmp_elsewhere, hosts=hosts
        )

    # --- uppers ---

    def _prepare(self) -> None:
        try:
            if self.is_overlay:
                self._prepare_layers()
            else:
                left = copy_tree(
                    self.workspace.folder,
                    self.place / "copy",
                    limit_bytes=COPY_LIMIT_BYTES,
                )
                self.workspace.left_out = sorted(map(str, left))
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
        flavour = self.workspace.mechanisms.overlay
        for number, layer in enumerate(self.layers):
            if layer.how == "overlay":
                self.upper(number).mkdir()
                # Somebody may have removed it meanwhile; then it is not mounted either.
                with contextlib.suppress(FileNotFoundError):
                    copy_metadata(Path(layer.at), self.upper(number))
            if flavour == "user":
                inner = Path(f"{root}{layer.at}")
                is_file = layer.how == "readonly" and not Path(layer.at).is_dir()
                if not is_file:
                    inner.mkdir(parents=True, exist_ok=True)
                elif not inner.exists():
                    inner.parent.mkdir(parents=True, exist_ok=True)
                    inner.touch()
            if layer.how == "frame":
                self._fill_frame(layer)
        if flavour == "user":
            for name in ("proc", "sys", "dev"):
                (root / name).mkdir(exist_ok=True)
        upper = self._upper_path(self.workspace.folder)
        if upper is None:
            return
        own = layer_of(self.layers, str(self.workspace.folder))
        self._make_upper_folder(self.workspace.folder)
        if own.how == "overlay":
            self.not_renamable = make_renamable(
                self.workspace.folder, upper, redirects=flavour == "root"
            )

    def _fill_frame(self, layer: Layer) -> None:
        """Put links, copies, and what files are bound over, into a folder of ours."""
        inner = self._frame(layer)
        for name, text in (layer.links or {}).items():
            if not os.path.lexists(inner / name):
                (inner / name).symlink_to(text)
        for name in layer.files:
            (inner / name).touch()
        for name in layer.copied:
            if not os.path.lexists(inner / name):
                with contextlib.suppress(FileNotFoundError):
                    copy_tree(Path(layer.at) / name, inner / name)

    def _clear_frame(self, layer: Layer, kept: Sequence[Path]) -> None:
        """Make a frame's own content new, but for what outlives the machine."""
        held = [Path(other.at) for other in self.layers if other is not layer]
        windows = [Path("/proc"), Path("/sys"), Path("/dev")]
        _prune(self._frame(layer), Path(layer.at), [*kept, *held, *windows])
        self._fill_frame(layer)

    def _frame(self, layer: Layer) -> Path:
        return Path(f"{self.place / 'root'}{layer.at}")

    def _make_private_folders(self) -> None:
        for folder in (self.temporary, self.out):
            if self.is_overlay:
                self._make_upper_folder(folder)
            else:
                folder.mkdir(parents=True, exist_ok=True)

    def _hide_credentials(self) -> None:
        if self.is_overlay:
            for path in secret_paths(os.environ, keep=self.workspace.keep_env):
                self._remove(path)

    def upper(self, number: int) -> Path:
        return self.place / f"u{number}"

    def _upper_path(self, path: Path) -> Path | None:
        """Return where in an upper folder a path of the view lies; None: in none."""
        layer = layer_of(self.layers, str(path))
        if layer.how == "frame":
            return self._frame(layer) / path.relative_to(layer.at)
        if layer.how != "overlay":
            return None
        upper = self.upper(self.layers.index(layer))
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
        if not self.holds(upper / "inside"):
            raise HarnessError(f"a link in the view leads from {str(path)!r} out of it")
        for new, like in reversed(missing):
            with opened(new.parent):
                if os.path.lexists(new):  # a whiteout
                    new.unlink()
                new.mkdir()
            if like.is_dir():
                copy_metadata(like, new)

    def _hide(self, told: str) -> None:
        path = self.workspace.folder / told
        # Where it really lies: the user's links may lead to it.
        self._remove(Path(os.path.realpath(path.parent), path.name))

    def _remove(self, path: Path) -> None:
        """Let a path be absent from the view."""
        if not self.is_overlay:
            place = self.host(path)
            if self.holds(place):
                _remove_any(place)
            elif os.path.lexists(place):
                raise HarnessError(
                    f"{str(path)!r} cannot be hidden from the program: it lies outside of"
                    " the private copy of the working folder",
                    hint="move it away, or give --keep-existing",
                )
            return
        upper = self._upper_path(path)
        if upper is None:
            return
        self._make_upper_folder(path.parent)
        with opened(upper.parent):
            _remove_any(upper)
            if os.path.lexists(path) and not self._is_opaque(path.parent):
                os.mknod(upper, stat.S_IFCHR, os.makedev(0, 0))

    def _is_opaque(self, path: Path) -> bool:
        """Tell whether nothing of the user's shows through at a folder of the view.

        A whiteout there would be seen as the device file that it is.
        """
        layer = layer_of(self.layers, str(path))
        if layer.how == "frame":
            return True
        at = layer.at
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
        places = [] if root is None else [("", root)]
        for number, layer in self._layers_in(folder):
            within = f"{Path(layer.at).relative_to(folder)}/"
            places.append((within, self.upper(number)))
        for within, root in places:
            if not root.is_dir() or not self.holds(root / "inside"):
                continue
            for entry in walk(root):
                relative = within + str(Path(entry.path).relative_to(root))
                if is_below(str(folder / relative), str(self.private)) and not prefix:
                    continue  # which lies in a working folder that is itself a mount
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if stat.S_ISDIR(status.st_mode) or is_whiteout(status):
                    continue
                known = (status.st_size, status.st_mtime_ns)
                if not prefix and self.first.get(relative) == known:
                    continue
                found.append(Changed(prefix + relative, *known))
        return found


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
