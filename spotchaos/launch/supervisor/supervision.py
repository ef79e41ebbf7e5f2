"""The supervisor of file ops inside an attempt: how the attempt's init starts it.

The init forks two processes: one that serves the listener (`serve`) and the program's
first (`prepare`), which installs the filter and hands the listener over. Both get the
`options` that `supervision_of` made. Loaded by path, standard library only, Python 3.9
and newer: the package is not importable here, so a stub stands in for it.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
import types
from collections.abc import Sequence
from typing import Any

OWN_PATH = os.path.abspath(__file__)


def supervision_of(
    *,
    roots: Sequence[str],
    oplog: str,
    control: str,
    points: Sequence[str] = (),
    records: Sequence[str] = (),
    rules: Sequence[str] = (),
    discard_data: bool = True,
    observe_reads: bool = False,
    real_fsync: bool = True,
    frames: str | None = None,
    others: str = "hold",
    break_links: bool = False,
    injected: str | None = None,
) -> dict[str, Any]:
    """Return `inside.SPEC["supervisor"]` for one attempt.

    Args:
        roots: watched folders, as the program sees them.
        oplog: path of the op log, outside of them.
        control: path of the attempt's socket, for halts.
        points: kill points, spelled as in plans.
        records: patterns of labels of output files.
        rules: faults without a kill, as the JSON of `notify_rules.Rule`.
        discard_data: record lengths, not bytes.
        observe_reads: also record what is looked up and read.
        real_fsync: False answers fsync without doing it.
        frames: path of the table of program lines.
        others: "hold" or "run": what others do while one op is held.
        break_links: a file of before that is linked from elsewhere is copied before it
            is opened for writing.
        injected: a file that is there once the first signal has been sent.
    """
    options = {
        "roots": list(roots),
        "oplog": oplog,
        "socket": control,
        "points": list(points),
        "records": list(records),
        "rules": list(rules),
        "discard_data": discard_data,
        "observe_reads": observe_reads,
        "real_fsync": real_fsync,
        "frames": frames,
        "others": others,
        "break_links": break_links,
        "struck": injected,
    }
    return {
        "path": OWN_PATH,
        "serve": "serve",
        "prepare": "prepare",
        "options": options,
    }


def serve(connection: socket.socket, options: dict[str, Any]) -> None:
    """Take the listener from the program's process and serve it to the end."""
    supervisor = _ours("supervisor")
    rules = _ours("notify_rules")
    control = socket.socket(socket.AF_UNIX)
    control.connect(options["socket"])
    _, descriptors, _, _ = socket.recv_fds(connection, 16, 1)
    if not descriptors:
        return  # the program's process could not install the filter, and said so
    chosen = supervisor.Options(
        roots=tuple(options["roots"]),
        oplog=options["oplog"],
        control=control.detach(),
        points=tuple(rules.FilePoint.parse(p) for p in options["points"]),
        records=tuple(options["records"]),
        rules=tuple(rules.Rule.parse(r) for r in options["rules"]),
        discard_data=options["discard_data"],
        observe_reads=options["observe_reads"],
        real_fsync=options["real_fsync"],
        frames=options["frames"],
        others=options["others"],
        break_links=options["break_links"],
        injected=options["struck"],
    )
    connection.sendall(b"g")
    connection.close()
    supervisor.serve(descriptors[0], chosen)


def prepare(connection: socket.socket, options: dict[str, Any]) -> None:
    """Put the program's process under the filter, and wait until it is served.

    Raises:
        OSError: no filter can be installed here; the process must not go on.
    """
    seccomp = _ours("seccomp")
    listener = seccomp.install_filter(observe_reads=options["observe_reads"])
    socket.send_fds(connection, [b"l"], [listener])
    os.close(listener)
    if connection.recv(1) != b"g":
        raise OSError("the supervisor of file ops did not come up")


def _ours(name: str) -> Any:
    """Import `spotchaos.launch.supervisor.NAME` without leaving our package to the program."""
    before = dict(sys.modules)
    stub: Any = types.ModuleType("spotchaos")
    stub.__path__ = [OWN_PATH.rsplit(os.sep, 3)[0]]
    sys.modules["spotchaos"] = stub
    try:
        return importlib.import_module(f"spotchaos.launch.supervisor.{name}")
    finally:
        for added in set(sys.modules) - set(before):
            if added == "spotchaos" or added.startswith("spotchaos.launch"):
                del sys.modules[added]
        if "spotchaos" in before:
            sys.modules["spotchaos"] = before["spotchaos"]
