"""What this machine offers to isolate an attempt: each mechanism tried, not guessed."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from spotchaos.errors import HarnessError
from spotchaos.launch.isolation import process_tree
from spotchaos.launch.isolation.leaving import LEAVING
from spotchaos.launch.isolation.scratch import Scratch

TRY_BOUND_S = 60.0
# A second choice must have room for some checkpoints; containers often give /dev/shm 64 MB.
ROOM_BYTES = 1 << 30
# Of a place for views; a view, an attempt and the name of its socket still come after it,
# and all of it must fit into the 107 bytes of a Unix socket's path.
DEEPEST_PLACE = 68
SCRIPT = Path(__file__).with_name("namespaces.py")
# Those that end the harness by an exception.
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Mechanisms:
    """Which mechanisms work here; `missing` says why another does not."""

    mount_namespace: bool = False
    pid_namespace: bool = False
    network_namespace: bool = False
    ipc_namespace: bool = False
    uts_namespace: bool = False
    user_namespace: bool = False  # needed for the others, and it works
    overlay: str | None = None  # "root" (one for all), "user" (one for each folder)
    fresh_proc: bool = False
    control_group: Path | None = None  # below it, groups of ours can freeze and kill
    place: Path | None = None  # where views can be kept; None: anywhere
    missing: Mapping[str, str] = field(default_factory=dict)

    def as_report(self) -> dict[str, str]:
        """Return one line for each mechanism: what is used, or why it is not."""
        lines = {
            "files": {
                "root": "one overlay over the root, and one for each mount",
                "user": "an overlay for each folder, in a user namespace",
                None: "a private copy of the working folder only",
            }[self.overlay],
            "processes": "PID namespace" if self.pid_namespace else "child subreaper",
            "network": "loopback only" if self.network_namespace else "open",
            "freezing": "control group" if self.control_group else "SIGSTOP",
            "user namespace": "used" if self.user_namespace else "not needed",
        }
        for name, reason in self.missing.items():
            lines[name] = f"{lines[name]} ({reason})" if name in lines else reason
        return lines

    def unprotected(self) -> list[str]:
        """Say, in sentences for the screen, what an attempt could reach here."""
        sentences = []
        if self.overlay is None:
            sentences.append(
                "files outside the working folder are not protected: "
                + self.missing.get("files", "overlayfs is not to be had")
            )
        if not self.network_namespace:
            sentences.append(
                "attempts reach the network: "
                + self.missing.get("network", "network namespaces are not to be had")
            )
        if not self.pid_namespace:
            sentences.append(
                "a process that hides from its parents may outlive an attempt, and"
                " attempts see this user's processes, with the variables they hold: "
                + self.missing.get("processes", "PID namespaces are not to be had")
            )
        if not self.mount_namespace:
            sentences.append(
                "files that give access to accounts, as ~/.aws, are not hidden: "
                + self.missing.get("files", "mount namespaces are not to be had")
            )
        return sentences

    def lacking(self, *, allow_network: bool) -> list[str]:
        """Name what isolates no attempt here, though it was not given up on purpose."""
        found = {
            "the files": self.overlay is not None,
            "the network": self.network_namespace or allow_network,
            "the processes": self.pid_namespace,
        }
        return [name for name, is_isolated in found.items() if not is_isolated]

    @property
    def namespaces(self) -> list[str]:
        """Names of the namespaces that an attempt leaves, as `inside.SPEC` has them."""
        wanted = {
            "user": self.user_namespace,
            "mount": self.mount_namespace,
            "pid": self.pid_namespace,
            "network": self.network_namespace,
            "ipc": self.ipc_namespace,
            "uts": self.uts_namespace,
        }
        return [name for name, used in wanted.items() if used]


def find_mechanisms(scratch: Path | None = None) -> Mechanisms:
    """Try what can be had here, once for each process and place.

    Args:
        scratch: a folder on the file system that is to hold views; None: the temporary
            one.

    Raises:
        HarnessError: not even a process could be started to try.
    """
    places = [scratch] if scratch else candidate_places()
    first = _find(places[0], os.geteuid())
    if first.overlay is not None:
        return first
    # The upper layer of an overlay must not be an overlay itself, as in a container.
    for place in places[1:]:
        with contextlib.suppress(HarnessError):
            found = _find(place, os.geteuid())
            if found.overlay is not None:
                return found
    return first


def candidate_places() -> list[Path]:
    """Return the folders that may hold views, best first."""
    places = [Path(tempfile.gettempdir())]
    for place in (Path("/var/tmp"), Path("/dev/shm")):
        with contextlib.suppress(OSError):
            if shutil.disk_usage(place).free >= ROOM_BYTES and place not in places:
                places.append(place)
    return sorted(places, key=_is_deep)


def _is_deep(place: Path) -> bool:
    return len(os.fsencode(place)) > DEEPEST_PLACE


@functools.cache
def _find(place: Path, user: int) -> Mechanisms:
    try:
        with Scratch(place) as scratch:
            tried = _try_all(scratch.path)
            group = process_tree.find_control_group(f"{scratch.path.name}-try")
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise HarnessError(
            f"could not try what this machine can do: {error}",
            hint=f"is {str(place)!r} writable, with space left? set TMPDIR to another",
        ) from error
    found = mechanisms_from(tried, control_group=group, is_root=user == 0)
    return replace(found, place=place)


def _try_all(folder: Path) -> dict[str, str | None]:
    # An exception of a signal's handler between its start and our knowing of it would
    # leave it behind; the script lets signals in again.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
    try:
        trying = subprocess.Popen(
            [sys.executable, "-I", "-S", str(SCRIPT), str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        LEAVING.kill(trying.pid)
    except BaseException:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise
    with trying:
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            said, _ = trying.communicate(timeout=TRY_BOUND_S)
        finally:
            if trying.poll() is None:
                os.killpg(trying.pid, signal.SIGKILL)
    if trying.returncode:
        raise subprocess.CalledProcessError(trying.returncode, str(SCRIPT))
    tried: dict[str, str | None] = json.loads(said)
    return tried


def mechanisms_from(
    tried: Mapping[str, str | None], *, control_group: Path | None, is_root: bool
) -> Mechanisms:
    """Draw the conclusions from what worked.

    Args:
        tried: the answer of `namespaces.try_all`.
        control_group: where groups of ours can be made.
        is_root: whether root without capabilities is to be told from other users.
    """
    if tried["pid"] is None and tried["proc"] is not None:
        # A program would find other processes' numbers in /proc, and we others than its.
        tried = {**tried, "pid": f"no /proc of its own: {tried['proc']}"}
    works = {name: reason is None for name, reason in tried.items()}
    needs_user = not works["needs user"]
    missing = {
        label: reason
        for label, name in (
            ("files", "each folder"),
            ("processes", "pid"),
            ("network", "network"),
        )
        if (reason := tried[name]) is not None
    }
    overlay = None
    if works["mount"] and works["each folder"]:
        overlay = "root" if works["whole root"] and not needs_user else "user"
    if needs_user and is_root:
        missing.setdefault("user namespace", "this root has no right to mount")
    return Mechanisms(
        mount_namespace=works["mount"],
        pid_namespace=works["pid"],
        network_namespace=works["network"],
        ipc_namespace=works["ipc"],
        uts_namespace=works["uts"],
        user_namespace=needs_user
        and any(works[n] for n in ("mount", "pid", "network", "ipc", "uts")),
        overlay=overlay,
        fresh_proc=works["proc"],
        control_group=control_group,
        missing=missing,
    )
