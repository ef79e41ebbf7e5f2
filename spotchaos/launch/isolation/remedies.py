"""Which setting of a machine or container would let attempts be isolated better."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spotchaos.errors import UsageError

if TYPE_CHECKING:
    from spotchaos.launch.isolation.mechanisms import Mechanisms

_USERNS = "kernel.apparmor_restrict_unprivileged_userns"


@dataclass(frozen=True, slots=True)
class Place:
    """What is known of where we run."""

    apparmor_restricts: bool = False  # Ubuntu 23.10 and later
    cloning_off: bool = False  # Debian's kernel.unprivileged_userns_clone
    none_allowed: bool = False  # user.max_user_namespaces is 0
    is_container: bool = False
    is_pod: bool = False
    is_gvisor: bool = False
    is_filtered: bool = False  # by seccomp
    is_root: bool = False


def find_place(environment: Mapping[str, str] = os.environ) -> Place:
    """Look at the machine; nothing is tried or changed."""
    release = platform.release() + platform.version()
    return Place(
        apparmor_restricts=_setting(_USERNS) == "1",
        cloning_off=_setting("kernel.unprivileged_userns_clone") == "0",
        none_allowed=_setting("user.max_user_namespaces") == "0",
        is_container=Path("/.dockerenv").exists()
        or Path("/run/.containerenv").exists()
        or bool(environment.get("container")),
        is_pod="KUBERNETES_SERVICE_HOST" in environment,
        is_gvisor="gvisor" in release.lower() or _first("/proc/version") == "gVisor",
        is_filtered="Seccomp:\t2" in _read("/proc/self/status"),
        is_root=os.geteuid() == 0,
    )


def remedies(place: Place) -> list[str]:
    """Say what would help here, the likeliest first; for a machine that lacks something."""
    found = []
    if place.is_gvisor:
        found.append(
            "gVisor mounts no overlay and has no listener for file operations: run under"
            " the machine's own kernel (runtime runc) for these"
        )
    elif place.is_pod:
        found.append(
            "a restricted pod may make no namespace: set securityContext.seccompProfile to"
            " a profile that allows unshare and mount (type: Localhost), or run the gate in"
            " a pod of its own with procMount: Unmasked and hostUsers: false"
        )
    elif place.is_container or place.is_filtered:
        found.append(
            "a container's default filter refuses namespaces: start it with `docker run"
            " --security-opt seccomp=unconfined --security-opt apparmor=unconfined"
            " --security-opt systempaths=unconfined` (podman alike; as root add --cap-add"
            " SYS_ADMIN), and more than 64 MB of --shm-size"
        )
    if place.apparmor_restricts and not place.is_root:
        found.append(f"`sudo sysctl -w {_USERNS}=0`, as on GitHub's ubuntu-24.04")
    if place.cloning_off and not place.is_root:
        found.append("`sudo sysctl -w kernel.unprivileged_userns_clone=1`")
    if place.none_allowed:
        found.append("`sudo sysctl -w user.max_user_namespaces=15000`")
    if not found and not place.is_root:
        found.append("run as root, or where a user may make namespaces")
    return found


def demand_isolation(mechanisms: Mechanisms, *, allow_network: bool) -> None:
    """Refuse a machine on which an attempt reaches what is not its own.

    Raises:
        UsageError: something is missing; it is named, and what would help.
    """
    lacking = mechanisms.lacking(allow_network=allow_network)
    if lacking:
        raise UsageError(
            f"--require-isolation: this machine cannot isolate {' or '.join(lacking)}"
            " of an attempt",
            hint="; or ".join(remedies(find_place()))
            or "`spotchaos doctor` says why not",
        )


def _setting(name: str) -> str:
    return _read("/proc/sys/" + name.replace(".", "/")).strip()


def _first(path: str) -> str:
    words = _read(path).split()
    return words[0] if words else ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
