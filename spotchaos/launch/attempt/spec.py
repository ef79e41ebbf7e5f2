"""What the init of an attempt must know: from program, view and orders to one dictionary."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotchaos.launch.isolation import capabilities
from spotchaos.launch.isolation.addresses import free_port, own_addresses
from spotchaos.launch.isolation.environment import environment_of
from spotchaos.launch.isolation.layers import is_below
from spotchaos.launch.isolation.leaving import LEAVING
from spotchaos.launch.isolation.program import Program
from spotchaos.launch.isolation.view import View
from spotchaos.launch.supervisor import frames
from spotchaos.launch.supervisor.supervision import supervision_of

MASTER_PORT = 29500
# Pids of two attempts must not be the same by chance, nor grow without bound.
FIRST_PID, PIDS_APART, PID_ROUNDS = 300, 1000, 25
# For others to follow the first process before they count as survivors: a loader's worker
# looks for its parent every 5 s, and has to be scheduled for that.
LINGER_S = 10.0


# In an attempt's folder once its first signal has been sent.
INJECTED = "struck"


@dataclass(frozen=True, slots=True)
class FileOrders:
    """What the supervisor of file ops does in one attempt."""

    # Kill points, spelled as in plans; `+` in front: counted from the first signal.
    points: tuple[str, ...] = ()
    records: tuple[str, ...] = ()  # patterns of output files, as the op log labels them
    rules: tuple[str, ...] = ()  # faults without a kill, as JSON
    keep_data: bool = False  # record the bytes as well
    observe_reads: bool = False
    real_fsync: bool = True
    others: str = "hold"  # or "run": what others do while one op is held
    break_links: bool = False  # a file that is linked to ours is copied before a write


def make_spec(
    program: Program,
    view: View,
    folder: Path,
    *,
    number: int,
    orders: Mapping[str, Any],
    command: Sequence[str] | None,
    environment: Mapping[str, str],
    addresses: Sequence[str],
    hosts: Mapping[str, str],
    listen: Sequence[tuple[str, int]],
    files: FileOrders | None,
) -> dict[str, Any]:
    """Write the orders, and return everything that the attempt's init must know.

    Args:
        program: what, where and with what.
        view: what it sees of the machine.
        folder: where the harness keeps what belongs to the attempt.
        number: of the attempt within its trial, from 1.
        orders: for the probe.
        command: instead of the program's own.
        environment: variables on top of the program's; `{attempt}` in one stands for
            `folder`.
        addresses: further addresses of the loopback device.
        hosts: names that lead to addresses.
        listen: where sockets of ours listen inside.
        files: what a supervisor of file ops is to do.

    Returns:
        What `inside.main` takes, but for the descriptors.
    """
    mechanisms = view.workspace.mechanisms
    names = mechanisms.namespaces
    if program.allow_network and "network" in names:
        names.remove("network")
    has_network = "network" not in names
    own_folder = view.runs_in
    orders_file = folder / "orders.json"
    table = None
    if files is not None and (files.keep_data or files.points):
        # Only a recording is asked which line made an op, and a kill point which rank;
        # the rest is spared the cost.
        table = str(folder / "frames")
        frames.create(table)
    orders_file.write_text(
        json.dumps(
            {
                "threads": program.threads,
                "allow_network": program.allow_network,
                **orders,
                "attempt": number,
                "socket": str(folder / "s"),
                "trace": str(folder / "trace"),
                "folder": str(own_folder),
                "out": str(view.out),
                "frames": table,
            }
        )
    )
    group = None
    if mechanisms.control_group is not None:
        # Named after the scratch folder, with which it is swept.
        name = f"{view.workspace.scratch.name}-{folder.parent.name}-{folder.name}"
        group = mechanisms.control_group / name
        LEAVING.group(group)
        group.mkdir(exist_ok=True)
    private = environment_of(
        program,
        orders=orders_file,
        temporary=view.temporary,
        generation=view.generation,
        host_name=view.host_name,
        offline=not has_network,
        extra={n: v.replace("{attempt}", str(folder)) for n, v in environment.items()},
    )
    return {
        "unshare": names,
        "root": None if view.root() is None else str(view.root()),
        "mounts": view.mount_steps(
            folder, tmp_elsewhere=program.tmp_elsewhere, hosts=hosts
        )
        if mechanisms.mount_namespace
        else [],
        "host_name": view.host_name,
        "addresses": [*own_addresses(), *addresses],
        "listen": [] if has_network else [list(place) for place in listen],
        "last_pid": FIRST_PID + number % PID_ROUNDS * PIDS_APART,
        "capabilities": capabilities.kept_of(capabilities.held_here()),
        "cgroup": None if group is None else str(group),
        "command": _command(command or program.command, view),
        "environment": private,
        "folder": str(own_folder),
        "output": str(folder / "output"),
        "pty": program.pty,
        "ranks": program.ranks,
        "linger_s": LINGER_S,
        "master_port": free_port() if has_network else MASTER_PORT,
        "supervisor": None
        if files is None
        else supervision_of(
            roots=[str(own_folder), str(view.out)],
            oplog=str(folder / "ops"),
            control=str(folder / "s"),
            points=files.points,
            records=files.records,
            rules=files.rules,
            discard_data=not files.keep_data,
            observe_reads=files.observe_reads,
            real_fsync=files.real_fsync,
            frames=table,
            others=files.others,
            break_links=files.break_links,
            injected=str(folder / INJECTED),
        ),
    }


def _command(command: Sequence[str], view: View) -> list[str]:
    """Fill in `{out}`, and the new path of a working folder that is found elsewhere."""
    old, new = str(view.workspace.folder), str(view.runs_in)
    filled = [word.replace("{out}", str(view.out)) for word in command]
    if old == new:
        return filled
    # A virtual environment has its own path written into it: it is used where it lies.
    kept = [str(config.parent) for config in view.workspace.folder.glob("*/pyvenv.cfg")]
    return [
        word
        if any(is_below(word, place) for place in kept)
        else re.sub(re.escape(old) + r"(?![^/:=,])", new, word)
        for word in filled
    ]
