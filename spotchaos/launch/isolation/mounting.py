"""The mounts of one attempt, in order: a view's layers, then what every attempt gets afresh."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spotchaos.launch.isolation.copying import walk
from spotchaos.launch.isolation.credentials import secret_paths
from spotchaos.launch.isolation.layers import layer_of
from spotchaos.launch.isolation.namespaces import OVERLAY_OPTIONS

if TYPE_CHECKING:
    from spotchaos.launch.isolation.view import View

Step = dict[str, Any]

# Of the kernel's own settings an attempt of root must change none.
KERNEL_SETTINGS = (
    "/proc/sys",
    "/proc/sysrq-trigger",
    "/proc/acpi",
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/mtrr",
    "/proc/scsi",
)
# Besides the block devices: what leads to the machine's memory, disks or clock.
_MACHINE_DEVICE = re.compile(
    r"(k?mem|port|kmsg|nvram|rtc\d*|hpet|watchdog\d*|sg\d+|nvme\d+|ng\d+n\d+"
    r"|mtd\d+(ro)?|msr)"
)


def steps(
    view: View,
    attempt_folder: Path,
    *,
    tmp_elsewhere: bool,
    hosts: Mapping[str, str] | None = None,
) -> list[Step]:
    """Return the mounts of one attempt, in order, for `namespaces.mount_all`.

    Args:
        view: what the program sees.
        attempt_folder: where the harness keeps what belongs to the attempt.
        tmp_elsewhere: TMPDIR lies on another filesystem.
        hosts: names of further hosts, and their addresses.
    """
    mechanisms = view.workspace.mechanisms
    steps: list[Step] = []
    if view.is_overlay:
        steps += _layer_steps(view)
        steps.append({"do": "bind", "source": "/sys", "at": "/sys"})
        steps[-1].update(recursive=True, readonly=True, otherwise="bind")
        steps.append({"do": "bind", "source": "/dev", "at": "/dev"})
        steps[-1].update(recursive=True)
        steps.append({"do": "readonly", "at": "/dev", "otherwise": "nothing"})
    if mechanisms.fresh_proc and mechanisms.pid_namespace:
        steps.append({"do": "proc", "at": "/proc", "otherwise": "bind"})
    elif view.is_overlay:
        steps.append({"do": "bind", "source": "/proc", "at": "/proc"})
        steps[-1].update(recursive=True)
    if mechanisms.mount_namespace:
        for place in KERNEL_SETTINGS:
            if Path(place).exists():
                steps.append({"do": "bind", "source": place, "at": place})
                steps[-1].update(readonly=True, inner=True, otherwise="nothing")
        steps += _device_steps(view)
        steps += _machine_device_steps()
        steps += _scratch_steps(view, attempt_folder, tmp_elsewhere=tmp_elsewhere)
        steps += _name_steps(view, attempt_folder, hosts or {})
    return steps


def _layer_steps(view: View) -> list[Step]:
    steps: list[Step] = []
    flavour = view.workspace.mechanisms.overlay or "user"
    folder_layer = layer_of(view.layers, str(view.workspace.folder))
    for number, layer in enumerate(view.layers):
        if layer.how == "frame":
            if layer.at == "/":
                steps.append({"do": "root", "at": "/"})
            for name in layer.files:
                at = str(Path(layer.at) / name)
                steps.append({"do": "bind", "source": at, "at": at})
                steps[-1].update(readonly=True, otherwise="nothing")
        elif layer.how == "readonly":
            steps.append({"do": "bind", "source": layer.at, "at": layer.at})
            steps[-1].update(recursive=True, readonly=True, otherwise="nothing")
        else:
            steps.append(
                {
                    "do": "overlay",
                    "at": layer.at,
                    "lower": layer.at,
                    "upper": str(view.upper(number)),
                    "work": str(view.place / f"w{number}"),
                    "options": OVERLAY_OPTIONS[flavour],
                }
            )
            if layer is not folder_layer:
                steps[-1]["otherwise"] = "readonly"
    return steps


def _device_steps(view: View) -> list[Step]:
    shared = view.workspace.shared_memory_for(view.place)
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
    if view.workspace.mechanisms.ipc_namespace and Path("/dev/mqueue").is_dir():
        steps.append({"do": "mqueue", "at": "/dev/mqueue", "otherwise": "nothing"})
    return steps


def _machine_device_steps() -> list[Step]:
    """Let devices that are the machine's own, and that we might open, be empty files."""
    steps: list[Step] = []
    for entry in walk("/dev"):
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        is_own = stat.S_ISBLK(status.st_mode) or (
            stat.S_ISCHR(status.st_mode) and _MACHINE_DEVICE.fullmatch(entry.name)
        )
        # Whatever its mode is now: a program of root could change that, too.
        if is_own and (os.geteuid() == 0 or os.access(entry.path, os.R_OK)):
            steps.append({"do": "bind", "source": "/dev/null", "at": entry.path})
            steps[-1]["otherwise"] = "nothing"
    return steps


def _scratch_steps(
    view: View, attempt_folder: Path, *, tmp_elsewhere: bool
) -> list[Step]:
    """Hide what lies in our scratch folder, but for what belongs to the attempt."""
    steps: list[Step] = []
    if tmp_elsewhere:
        elsewhere = view.place / "tmp"
        elsewhere.mkdir(exist_ok=True)
        at = str(view.temporary)
        steps.append({"do": "bind", "source": str(elsewhere), "at": at})
    if not view.is_overlay:
        source = str(view.place / "copy")
        at = str(view.workspace.folder)
        steps.append({"do": "bind", "source": source, "at": at})
        for path in secret_paths(os.environ, keep=view.workspace.keep_env):
            if path.is_dir():
                steps.append({"do": "tmpfs", "at": str(path), "options": "size=4k"})
            else:
                steps.append({"do": "bind", "source": "/dev/null", "at": str(path)})
            steps[-1]["otherwise"] = "nothing"
        return steps
    scratch = str(view.workspace.scratch)
    steps.append({"do": "tmpfs", "at": scratch, "options": "mode=0755,size=1m"})
    steps.append({"do": "make", "at": str(attempt_folder)})
    steps.append(
        {"do": "bind", "source": str(attempt_folder), "at": str(attempt_folder)}
    )
    steps.append({"do": "readonly", "at": scratch})
    if view.folder != view.workspace.folder:
        steps += _move_steps(view)
    return steps


def _move_steps(view: View) -> list[Step]:
    """Let the working folder be found at its new path, and only there."""
    old, new = str(view.workspace.folder), str(view.folder)
    steps: list[Step] = [
        {"do": "make", "at": new},
        {"do": "bind", "source": old, "at": new, "inner": True},
        {"do": "tmpfs", "at": old, "options": "mode=0755,size=1m"},
    ]
    # A virtual environment has its own path written into it: it stays where it was.
    for config in sorted(view.workspace.folder.glob("*/pyvenv.cfg")):
        kept = str(config.parent)
        moved = str(view.folder / config.parent.name)
        steps.append({"do": "make", "at": kept})
        steps.append({"do": "bind", "source": moved, "at": kept, "inner": True})
    steps.append({"do": "readonly", "at": old})
    return steps


def _name_steps(
    view: View, attempt_folder: Path, names: Mapping[str, str]
) -> list[Step]:
    """Let a new host name be found, as the old one was, and the hosts of the cloud."""
    if not view.is_overlay or (view.generation == 1 and not names):
        return []
    hosts = attempt_folder / "hosts"
    try:
        known = Path("/etc/hosts").read_text()
    except OSError:
        return []
    # The first line that has a name decides.
    lines = [f"{address} {name}" for name, address in names.items()]
    lines.append(known.rstrip())
    if view.generation > 1:
        lines.append(f"127.0.0.1 {view.host_name}")
    hosts.write_text("\n".join([*lines, ""]))
    step = {"do": "bind", "source": str(hosts), "at": "/etc/hosts"}
    return [{**step, "readonly": True, "otherwise": "nothing"}]
