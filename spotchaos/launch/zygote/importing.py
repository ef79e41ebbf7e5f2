"""What a zygote imports in advance: isolated, nothing of the user's, and fit to be forked.

Standard library only, Python 3.9 and newer: `zygote_child.py`, which runs under the
program's interpreter, loads this file by its path.
"""

from __future__ import annotations

import ctypes
import errno
import importlib
import importlib.util
import os
import signal
import sys
import threading
from typing import Any

CLONE_NEWNS = 0x00020000
# Not the user's own wherever they lie: both are often run from a checkout.
OURS = ("torch", "spotchaos")
OF_PACKAGES = ("site-packages", "dist-packages")


class Home:
    """The machine's own mounts, to which a forked child goes back.

    A process cannot leave its mounts for others while it has threads, which imports may
    start: so the zygote itself stays where it is.

    Args:
        libc: the C library.
        mounts: descriptor of the mount namespace; None: it was never left.
        root: descriptor of the root folder in it.
    """

    def __init__(self, libc: Any, mounts: int | None = None, root: int = -1) -> None:
        self._libc = libc
        self._mounts = mounts
        self._root = root

    def go_back(self) -> None:
        if self._mounts is None:
            return
        if self._libc.setns(self._mounts, CLONE_NEWNS) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"return to the mounts: {os.strerror(number)}")
        os.fchdir(self._root)
        os.chroot(".")
        os.chdir("/")
        os.close(self._mounts)
        os.close(self._root)


def isolate(inside: Any, isolation: dict[str, Any] | None) -> Home:
    """Enter a view of our own, and return the way back for forked children.

    Raises:
        OSError: there is no way in, or none back.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if isolation is None:
        return Home(libc)
    spec = {**inside.SPEC, **isolation}
    names = spec["unshare"]
    namespaces = inside.namespaces
    home = Home(libc)
    if "user" in names:
        namespaces.unshare_first(["user"])
    if "mount" in names:
        if "user" in names:
            # Nobody goes back to mounts of another user namespace: these are ours.
            namespaces.unshare_rest(["mount"])
        mounts = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        root = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        home = Home(libc, mounts, root)
    inside.enter({**spec, "unshare": [name for name in names if name != "user"]})
    child = os.fork()
    if child == 0:
        status = 1
        try:
            home.go_back()
            status = 0
        finally:
            os._exit(status)
    if os.waitpid(child, 0)[1] != 0:
        raise OSError(errno.EPERM, "forked attempts would not find back")
    return home


def descriptors() -> dict[str, str]:
    """Return our open descriptors, and what each leads to."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            found[number] = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue  # the listing's own
    return found


def dispositions() -> dict[int, Any]:
    """Return what Python does on each signal; None where it is no handler of Python's."""
    return {int(number): signal.getsignal(number) for number in signal.valid_signals()}


def _is_own(name: str) -> bool:
    """Tell whether a module is the user's own: neither Python's nor installed.

    What it does when it is imported, it does anew in every fresh process: it may draw the
    name of the run, or read the clock.
    """
    top = name.partition(".")[0]
    if top in OURS:
        return False
    spec = importlib.util.find_spec(top)
    if spec is None:
        return False  # it will fail as the program's own import does
    places = [spec.origin] if spec.has_location else spec.submodule_search_locations
    return not all(_is_installed(place) for place in places or () if place)


def _is_installed(place: str) -> bool:
    return place.startswith(os.path.dirname(os.__file__) + os.sep) or any(
        f"{os.sep}{of}{os.sep}" in place for of in OF_PACKAGES
    )


def own_at_start(package: str) -> list[str]:
    """Return the user's own modules that ran before us, as a `sitecustomize` does.

    Nobody can run them again in a fork.

    Args:
        package: our own folder, whose modules are no user's.
    """
    found = []
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        place = spec.origin if spec is not None and spec.has_location else None
        if place and not _is_installed(place) and not place.startswith(package):
            found.append(name)
    return found


def preload(modules: list[str]) -> list[str]:
    """Import by name, in the order of the first run; return what could not be."""
    failed = []
    for name in modules:
        if name in sys.modules:
            continue
        try:
            if _is_own(name):
                continue
            importlib.import_module(name)
        except BaseException:
            failed.append(name)
    return failed


def hidden_in(folder: str) -> str | None:
    """Say which module is another than the program finds beside itself; None: none is.

    A program's own folder comes first on its path, also for what packages import.
    """
    own = {
        name.partition(".py")[0]
        for name in os.listdir(folder)
        if name.endswith(".py")
        or os.path.exists(os.path.join(folder, name, "__init__.py"))
    }
    for name in sorted(own.intersection(sys.modules)):
        place = getattr(getattr(sys.modules[name], "__spec__", None), "origin", None)
        beside = (folder, os.path.join(folder, name))
        if place and os.path.dirname(os.path.realpath(place)) not in beside:
            return f"the program's own {name} hides another that is imported in advance"
    return None


def unfit(had: dict[str, str]) -> str | None:
    """Say why nothing may be forked from here; None if all is well.

    Args:
        had: the descriptors that were open before anything was imported.
    """
    if threading.active_count() > 1:
        names = ", ".join(thread.name for thread in threading.enumerate()[1:4])
        return f"imports started threads: {names}"
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return "imports started processes"
    except ChildProcessError:
        pass
    # Attempts would share them, and what a fresh process makes is each one's own.
    opened = [
        to
        for number, to in descriptors().items()
        if had.get(number) != to and to != os.devnull
    ]
    if opened:
        return f"imports left open: {', '.join(sorted(opened)[:3])}"
    if vars(sys.modules.get("tempfile", os)).get("_name_sequence") is not None:
        return "imports made temporary files"
    cuda = sys.modules.get("torch.cuda")
    if cuda is not None and getattr(cuda, "_initialized", False):
        return "imports initialised CUDA, which no fork survives"
    return None
