"""What a program may rename or link is copied into the view before it starts.

An overlay answers EXDEV when a folder of its lower layer is renamed, unless redirects are
allowed, and it breaks hard links when one of the names is written to (kernel
documentation, overlayfs.rst, "Renaming directories" and "Non-standard behavior"). A
program must not fail on our file system where it would not on its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from spotchaos.launch.isolation.copying import (
    copy_metadata,
    copy_tree,
    opened,
    size_to_copy,
)
from spotchaos.launch.isolation.removal import remove_tree

# A folder that holds more is no checkpoint folder that a toy program renames, or its
# copy would cost every trial too much; it is named in `View.not_renamable` instead.
LIMIT_BYTES = 16 << 20
LIMIT_FILES = 500
# Never renamed by a program, and often large.
LEFT_ALONE = frozenset(
    (".git", ".hg", ".venv", "venv", "node_modules", "__pycache__", "site-packages")
)


def make_renamable(folder: Path, upper: Path, *, redirects: bool) -> tuple[str, ...]:
    """Copy folders and hard links of the working folder into its upper.

    Args:
        folder: the working folder, as it lies on the machine.
        upper: the same folder in the view's upper; it exists.
        redirects: the overlay can rename folders of the lower layer by itself.

    Returns:
        Folders whose renaming will fail, relative to `folder`.
    """
    left = () if redirects else _copy_folders(folder, upper)
    _copy_hard_links(folder, upper)
    return left


def _copy_folders(folder: Path, upper: Path) -> tuple[str, ...]:
    left: list[str] = []
    for entry in _listed(folder):
        if not entry.is_dir(follow_symlinks=False) or entry.name in LEFT_ALONE:
            continue
        source, target = Path(entry.path), upper / entry.name
        size = size_to_copy(source, LIMIT_BYTES, LIMIT_FILES)
        if target.exists() or size is None:
            left.append(entry.name)
            continue
        with opened(upper):
            if copy_tree(source, target):  # somebody takes rights away meanwhile
                remove_tree(str(target))
                left.append(entry.name)
                continue
        _make_opaque(target)
    return tuple(left)


def _make_opaque(folder: Path) -> None:
    """Tell the overlay that nothing of the lower layer shows through."""
    with opened(folder):
        os.setxattr(folder, "user.overlay.opaque", b"y")
        for entry in _listed(folder):
            if entry.is_dir(follow_symlinks=False):
                _make_opaque(Path(entry.path))


def _copy_hard_links(folder: Path, upper: Path) -> None:
    """Copy files that have two names or more in the folder, as one file again."""
    groups: dict[tuple[int, int], list[Path]] = {}
    for count, entry in enumerate(_walk_small(folder)):
        if count > LIMIT_FILES:
            return
        if entry.is_file(follow_symlinks=False):
            status = entry.stat(follow_symlinks=False)
            if status.st_nlink > 1:
                key = (status.st_dev, status.st_ino)
                groups.setdefault(key, []).append(Path(entry.path))
    budget = LIMIT_BYTES
    for names in groups.values():
        size = size_to_copy(names[0], budget)
        if len(names) > 1 and size is not None:
            budget -= size
            _copy_one(names, folder, upper)


def _copy_one(names: list[Path], folder: Path, upper: Path) -> None:
    targets = [upper / name.relative_to(folder) for name in names]
    for name, target in zip(names, targets, strict=True):
        _make_folders(name.parent, target.parent)
        with opened(target.parent):
            target.unlink(missing_ok=True)  # copied with its folder, as another file
            if target is targets[0]:
                copy_tree(name, target)
            else:
                os.link(targets[0], target)


def _make_folders(source: Path, target: Path) -> None:
    if not target.exists():
        _make_folders(source.parent, target.parent)
        with opened(target.parent):
            target.mkdir()
        copy_metadata(source, target)


def _walk_small(folder: Path | str) -> Iterator[os.DirEntry[str]]:
    for entry in _listed(folder):
        if entry.name in LEFT_ALONE:
            continue
        yield entry
        if entry.is_dir(follow_symlinks=False):
            yield from _walk_small(entry.path)


def _listed(folder: Path | str) -> list[os.DirEntry[str]]:
    """Return the entries of a folder, by name; none of one that we may not list."""
    try:
        return sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return []
