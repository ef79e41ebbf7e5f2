"""Brings the supervisor of file ops into an attempt: the two hooks that `inside` calls.

The program installs the filter in its own process and sends the listener to the
supervisor, a sibling that the attempt's init has forked before it. Loaded by path, on
Python 3.9 and newer.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

_PACKAGE_PARENT = str(Path(__file__).resolve().parent.parent.parent)
if _PACKAGE_PARENT not in sys.path:
    # At the end, so that it hides nothing of the program that a zygote has imported.
    sys.path.append(_PACKAGE_PARENT)

from spotchaos.launch import supervisor  # noqa: E402
from spotchaos.launch.notify_rules import FilePoint, Rule  # noqa: E402
from spotchaos.launch.seccomp import install_filter  # noqa: E402

READY = b"g"


def hooks(**options: Any) -> dict[str, Any]:
    """Return the entry `supervisor` of an attempt's spec.

    Args:
        options: fields of `supervisor.Options` as JSON has them (points are strings,
            rules are dictionaries), and `socket`, the path at which the harness
            listens for halts; None where there are no kill points.
    """
    return {
        "path": __file__,
        "serve": "serve",
        "prepare": "prepare",
        "options": options,
    }


def prepare(connection: socket.socket, options: dict[str, Any]) -> None:
    """Put this process and all that it starts under the filter; wait to be served.

    Raises:
        SeccompError: no filter can be installed here.
        ConnectionError: the supervisor ended before it served.
    """
    listener = install_filter(observe_reads=bool(options.get("observe_reads")))
    try:
        socket.send_fds(connection, [b"l"], [listener])
    finally:
        os.close(listener)
    if connection.recv(1) != READY:
        raise ConnectionError("the supervisor of file ops ended before it served")


def serve(connection: socket.socket, options: dict[str, Any]) -> None:
    """Carry out the program's file ops until nothing lives under its filter."""
    descriptors = socket.recv_fds(connection, 16, 1)[1]
    if not descriptors:
        return
    given = dict(options)
    control = None
    path = given.pop("socket", None)
    if path is not None:
        harness = socket.socket(socket.AF_UNIX)
        harness.connect(path)
        control = harness.detach()
    given["roots"] = tuple(given["roots"])
    given["points"] = tuple(FilePoint.parse(text) for text in given.get("points", ()))
    given["rules"] = tuple(Rule(**rule) for rule in given.get("rules", ()))
    connection.sendall(READY)
    connection.close()
    supervisor.serve(descriptors[0], supervisor.Options(control=control, **given))
