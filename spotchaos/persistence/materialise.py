"""Put a crash state on a disk, so that a program can resume from it.

Three ways to place a file, by cost: a copy (small files, always safe), a reflink where
the filesystem shares blocks, and a hard link to a kept blob. A hard link is only safe
where whatever opens the file for writing breaks the link first (the supervisor's
`break_links`): a program that truncates in place would otherwise destroy the blob.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from spotchaos.persistence.contents import Content
from spotchaos.persistence.history import History, Layout, Thing

SMALL_BYTES = 1 << 20
# Of blobs that no state needs at the moment; one alone may be larger.
MOST_KEPT_BYTES = 1 << 30
_FICLONE = 0x40049409


class Materialiser:
    """Writes layouts of one history to folders.

    Args:
        history: whose layouts they are.
        blobs: a folder of ours on the same filesystem as the targets, for files of
            `SMALL_BYTES` and more; None copies every file from the log.
    """

    def __init__(self, history: History, blobs: Path | None = None) -> None:
        self._history = history
        self._blobs = blobs
        self._kept: dict[Content, Path] = {}
        self._settled: dict[Content, Path] = {}  # these stay: the bytes are only here
        self._named = 0
        self._reflinks = True
        self._lock = threading.Lock()

    def is_large(self, layout: Layout) -> bool:
        """Tell whether a state has files for which there are blobs."""
        return self._blobs is not None and any(
            thing.content is not None and thing.content.size >= SMALL_BYTES
            for thing in layout.things.values()
        )

    def settle(self, layouts: Iterable[Layout]) -> None:
        """Move recorded bytes into blobs, so that they are not on the disk twice.

        Whole files go first: what is torn of one shares its bytes, and is copied.
        """
        contents = {
            thing.content: None
            for layout in layouts
            for thing in layout.things.values()
            if thing.content is not None and thing.content.size >= SMALL_BYTES
        }
        for content in sorted(contents, key=lambda one: -one.size):
            place = self._new_blob()
            if place is not None and self._history.move_out(content, place):
                self._settled[content] = place

    def write(
        self, layout: Layout, target: Path, *, merge: bool = False, links: bool = False
    ) -> None:
        """Make `target` hold exactly this layout.

        Args:
            layout: the state.
            target: a folder that is empty or not there yet.
            merge: folders and files may be there already; files are replaced.
            links: allow hard links to blobs; see the module's warning.

        Raises:
            OSError: the disk is full, or `target` holds one of the names already.
        """
        target.mkdir(parents=True, exist_ok=True)
        placed: dict[int, Path] = {}
        names = Counter(thing.content for thing in layout.things.values())
        folders: list[tuple[Path, int]] = []
        for path, thing in sorted(layout.things.items()):
            place = target / path
            is_in_the_way = thing.kind != "dir" or place.is_symlink()
            if merge and is_in_the_way and os.path.lexists(place):
                place.unlink()
            if thing.kind == "dir":
                place.mkdir(exist_ok=merge)
                if thing.mode is not None:
                    folders.append((place, thing.mode))
            elif thing.kind == "link":
                place.symlink_to(str(thing.target))
            elif thing.node in placed:
                place.hardlink_to(placed[thing.node])
            else:
                # Two links to one blob would look like a link of the program's own.
                alone = names[thing.content] == 1
                self._place(thing, place, links=links and alone)
                placed[thing.node] = place
        self._date(layout, target)
        for place, mode in reversed(folders):  # a read-only folder is closed last
            place.chmod(mode)

    def _date(self, layout: Layout, target: Path) -> None:
        """Give all the times that they had, as if the last change was made just now.

        Some programs choose a checkpoint by its time.
        """
        times = {p: t for p, t in layout.changed_at_s.items() if p in layout.things}
        ends_at_s = target.stat().st_mtime - max(times.values(), default=0.0)
        for path, at_s in times.items():
            moment_s = ends_at_s + at_s
            os.utime(target / path, (moment_s, moment_s), follow_symlinks=False)

    def _place(self, thing: Thing, place: Path, *, links: bool) -> None:
        content = thing.content or Content(())
        if self._blobs is None or content.size < SMALL_BYTES:
            self._copy(content, place)
        elif links or self._reflinks:
            with self._lock:
                blob = self._blob(content)
                if links:
                    place.hardlink_to(blob)
                    return  # its mode is the blob's: they are one file
                is_there = self._reflink(blob, place)
            if not is_there:
                self._copy(content, place)
        else:
            self._copy(content, place)
        if thing.mode is not None:
            place.chmod(thing.mode)

    def _copy(self, content: Content, place: Path) -> None:
        with place.open("xb") as file:
            for extent in content.extents:
                if not extent.source:
                    continue
                file.seek(extent.start)
                piece = Content(
                    (extent._replace(start=0, end=extent.end - extent.start),)
                )
                for part in self._history.read(piece):
                    file.write(part)
            file.truncate(content.size)

    def _new_blob(self) -> Path | None:
        if self._blobs is None:
            return None
        self._named += 1
        return self._blobs / f"{self._named:06d}"

    def _blob(self, content: Content) -> Path:
        settled = self._settled.get(content)
        if settled is not None:
            return settled
        blob = self._kept.pop(content, None)
        if blob is None:
            self._make_room(content.size)
            blob = self._new_blob()
            assert blob is not None  # it is only asked for where there is a folder
            self._copy(content, blob)
        self._kept[content] = blob  # as the one that was used last
        return blob

    def _make_room(self, wanted: int) -> None:
        """Remove the blobs that were not used for longest; states keep what they hold."""
        total = wanted + sum(content.size for content in self._kept)
        for content in list(self._kept):
            if total <= MOST_KEPT_BYTES:
                return
            self._kept.pop(content).unlink()
            total -= content.size

    def _reflink(self, blob: Path, place: Path) -> bool:
        with blob.open("rb") as source, place.open("xb") as file:
            try:
                fcntl.ioctl(file.fileno(), _FICLONE, source.fileno())
            except OSError:
                self._reflinks = False
        if not self._reflinks:
            place.unlink()
        return self._reflinks


def observed(folder: Path) -> dict[str, tuple[str, bytes | str | None]]:
    """Return what a real folder holds: path -> kind and bytes or target."""
    found: dict[str, tuple[str, bytes | str | None]] = {}
    for path in _walk(folder):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = ("link", str(path.readlink()))
        elif path.is_dir():
            found[name] = ("dir", None)
        elif path.is_file():
            found[name] = ("file", path.read_bytes())
    return found


def expected(
    history: History, layout: Layout
) -> dict[str, tuple[str, bytes | str | None]]:
    """Return what a layout would make a folder hold, in the form of `observed`."""
    return {
        path: (
            thing.kind,
            thing.target
            if thing.content is None
            else b"".join(history.read(thing.content)),
        )
        for path, thing in layout.things.items()
    }


@contextmanager
def materialised(history: History, layout: Layout, target: Path) -> Iterator[Path]:
    """Write a layout to `target` and take it away again at the end."""
    Materialiser(history).write(layout, target)
    try:
        yield target
    finally:
        shutil.rmtree(target, ignore_errors=True)


def _walk(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _walk(path)
