"""Which mount points of this machine a view covers, and how: a pure plan of mounts.

As root one overlay covers the whole root file system, and each further mount point gets
its own. In a user namespace the kernel refuses to look below a mount point that it has
locked, so that `/` itself cannot be a lower layer (overlayfs: "failed to clone lowerpath");
then each folder with nothing mounted below it is covered on its own, and the folders
above them are an empty frame of ours. Source of the idea: the tool `try` of binpash.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from spotchaos.launch.isolation.copying import size_to_copy

# Of the files and small folders beside a mount point, which each view copies.
COPIED_BYTES = 16 << 20

# File systems that are windows into the kernel: nothing of the user's lies on them.
KERNEL_KINDS = frozenset(
    [
        "autofs",
        "binfmt_misc",
        "bpf",
        "cgroup",
        "cgroup2",
        "configfs",
        "debugfs",
        "devpts",
        "devtmpfs",
        "efivarfs",
        "fusectl",
        "hugetlbfs",
        "mqueue",
        "nsfs",
        "proc",
        "pstore",
        "rpc_pipefs",
        "securityfs",
        "selinuxfs",
        "sysfs",
        "tracefs",
    ]
)
# What the init mounts afresh, with everything below.
FRESH = ("/proc",)
# Bound as they are, with everything below, and made read-only.
WINDOWS = ("/sys", "/dev")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of /proc/self/mountinfo."""

    at: str
    kind: str
    readonly: bool = False
    is_folder: bool = True
    is_socket: bool = (
        False  # as that of a container engine: whoever may connect is root
    )


@dataclass(frozen=True, slots=True)
class Layer:
    """One mount of a view.

    `how` is "overlay" (private, copy on write), "readonly" or "frame" (an empty folder
    of ours that holds the mount points of others).
    """

    at: str
    how: str
    links: Mapping[str, str] | None = None  # of a frame: names of symbolic links
    files: tuple[str, ...] = ()  # of a frame: names of files, bound read-only
    copied: tuple[str, ...] = ()  # of a frame: names of what each view copies


def read_mounts(text: str | None = None) -> list[Mount]:
    """Return the mounts that this process sees, the topmost of each place.

    Args:
        text: of a mountinfo file (proc_pid_mountinfo(5)); None: our own.
    """
    if text is None:
        text = Path("/proc/self/mountinfo").read_text()
    found: dict[str, Mount] = {}
    for line in text.splitlines():
        fields = line.split(" ")
        at = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), fields[4])
        kind = fields[fields.index("-") + 1]
        found.pop(at, None)
        mode = _mode_of(at)
        found[at] = Mount(
            at,
            kind,
            "ro" in fields[5].split(","),
            at == "/" or stat.S_ISDIR(mode),
            stat.S_ISSOCK(mode),
        )
    return list(found.values())


def _mode_of(path: str) -> int:
    """Return the mode of a file; 0 where we may not look, or it is gone."""
    try:
        return Path(path).stat().st_mode
    except OSError:
        return 0


def is_below(path: str, folder: str) -> bool:
    """Tell whether `path` is `folder` or lies in it."""
    return path == folder or folder == "/" or path.startswith(folder + "/")


def plan_layers(
    mounts: Sequence[Mount], *, whole_root: bool, folder: str = "/"
) -> list[Layer]:
    """Return the layers of a view, outer before inner.

    Args:
        mounts: all mounts of the machine.
        folder: the program's working folder; its mount is overlaid even if read-only,
            since a view of it can be written all the same.
        whole_root: one overlay can cover `/` although there are mounts below it.
    """
    outside = (*FRESH, *WINDOWS)
    relevant = {
        m.at: m
        for m in mounts
        if m.at != "/"
        and not m.is_socket
        and not any(is_below(m.at, place) for place in outside)
    }
    own = [m for m in relevant.values() if m.is_folder and is_below(folder, m.at)]
    if own:
        innermost = max(own, key=lambda m: _depth(m.at))
        relevant[innermost.at] = replace(innermost, readonly=False)
    if whole_root:
        layers = [Layer("/", "overlay")]
        layers += [Layer(at, _how(relevant[at])) for at in sorted(relevant, key=_depth)]
        return layers
    return _cover("/", relevant, outside, folder)


def _how(mount: Mount) -> str:
    """Overlay what a program could write to; the rest stays as it is, read-only."""
    if mount.kind in KERNEL_KINDS or mount.readonly or not mount.is_folder:
        return "readonly"
    return "overlay"


def _cover(
    folder: str, relevant: Mapping[str, Mount], outside: Sequence[str], own: str
) -> list[Layer]:
    """Cover a folder by one layer, or by a frame and layers for what is in it.

    Args:
        folder: what is to be covered.
        relevant: mounts, by where they are.
        outside: places that others take care of.
        own: the working folder; small folders in it are copied, which can be renamed.
    """
    inner = [*(at for at in relevant if at != folder), *outside]
    if folder in relevant and _how(relevant[folder]) == "readonly":
        return [Layer(folder, "readonly")]
    if not any(is_below(at, folder) for at in inner):
        return [Layer(folder, "overlay")]
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:  # not to be listed, and perhaps to be searched all the same
        return [Layer(folder, "readonly")]
    links: dict[str, str] = {}
    files: list[str] = []
    copied: list[str] = []
    layers: list[Layer] = []
    room = COPIED_BYTES
    for entry in entries:
        if any(is_below(entry.path, place) for place in outside):
            continue
        try:
            mode = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISLNK(mode):
                links[entry.name] = str(Path(entry.path).readlink())
                continue
        except OSError:  # somebody removed it meanwhile
            continue
        has_mounts = any(is_below(at, entry.path) for at in relevant)
        is_copied = stat.S_ISREG(mode) or (
            stat.S_ISDIR(mode) and is_below(folder, own) and not has_mounts
        )
        size = size_to_copy(Path(entry.path), room) if is_copied else None
        if size is not None and not has_mounts:
            room -= size
            copied.append(entry.name)
        elif stat.S_ISDIR(mode):
            layers += _cover(entry.path, relevant, outside, own)
        elif not stat.S_ISSOCK(mode):
            files.append(entry.name)
    return [Layer(folder, "frame", links, tuple(files), tuple(copied)), *layers]


def _depth(path: str) -> tuple[int, str]:
    return (len(PurePosixPath(path).parts), path)


def layer_of(layers: Sequence[Layer], path: str) -> Layer:
    """Return the innermost layer that `path` lies in."""
    return max(
        (layer for layer in layers if is_below(path, layer.at)),
        key=lambda layer: _depth(layer.at),
    )
