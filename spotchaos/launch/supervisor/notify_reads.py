# pathlib costs the program 10 ms at its start, and this may run in its process.
# ruff: noqa: PTH112, PTH115, PTH118
"""What a program asks of its folders before it trains: looked up, listed, opened.

Two crash states that give the same answers to a resume's questions must make it do the
same, so the second need not be run. This sees every reader, C++ and Rust ones too.
"""

from __future__ import annotations

import os
from typing import Any

from spotchaos.launch.supervisor.notify_calls import place_of, signed
from spotchaos.launch.supervisor.notify_jobs import Context
from spotchaos.launch.supervisor.notify_tracee import AT_FDCWD, read_path
from spotchaos.launch.supervisor.seccomp import Request

_NOFOLLOW = 0x100  # AT_SYMLINK_NOFOLLOW


def question(context: Context, request: Request) -> dict[str, Any] | None:
    """Return what a request asks about a watched path, as the fields of a log line.

    Returns:
        None if it is no question, or about something else. `q` is `look` (is it there,
        and what is it), `list` (a folder's names) or `read` (a file's bytes).
    """
    if request.name in ("stat", "lstat", "access", "readlink", "open"):
        dirfd, address = AT_FDCWD, request.args[0]
    elif request.name in (
        "newfstatat", "statx", "faccessat", "faccessat2", "readlinkat", "openat",
    ):  # fmt: skip
        dirfd, address = signed(request.args[0]), request.args[1]
    else:
        return None
    opens = request.name in ("open", "openat")
    flags = request.args[1 if request.name == "open" else 2] if opens else 0
    anew = os.O_CREAT | os.O_TRUNC
    if opens and (flags & os.O_ACCMODE == os.O_WRONLY or flags & anew == anew):
        return None  # what lies there is not read, even if it is opened for both
    try:
        if not read_path(request.tid, address):
            return None
        follow = request.name not in ("lstat", "readlink", "readlinkat")
        if request.name in ("newfstatat", "statx"):
            follow = (
                not request.args[3 if request.name == "newfstatat" else 2] & _NOFOLLOW
            )
        place = place_of(context, request, dirfd, address, follow=follow)
    except OSError:
        # A folder on the way is not there; the answer hangs on it all the same.
        return _missing(context, request, dirfd, address)
    found = place.lstat()
    label = context.nodes.label(place.path.removesuffix("/."))
    os.close(place.folder)
    if label is None:
        return None
    asked = "look"
    if opens and found is not None and not flags & os.O_PATH:
        asked = "list" if os.path.isdir(place.path) else "read"
    said = {"op": "question", "q": asked, "path": label, "tid": request.tid}
    via = _as_written(context, request, dirfd, address)
    if via is not None and via != label:
        said["to"] = via  # symbolic links on the way were asked as well
    return said


def _missing(
    context: Context, request: Request, dirfd: int, address: int
) -> dict[str, Any] | None:
    label = _as_written(context, request, dirfd, address)
    if label is None:
        return None
    return {"op": "question", "q": "look", "path": label, "tid": request.tid}


def _as_written(
    context: Context, request: Request, dirfd: int, address: int
) -> str | None:
    """Return the log's name of a path with no link of it followed."""
    try:
        path = read_path(request.tid, address)
        base = f"/proc/{request.tid}/cwd" if dirfd == AT_FDCWD else ""
        base = base or f"/proc/{request.tid}/fd/{dirfd}"
        whole = os.path.normpath(os.path.join(os.readlink(base), path))
    except OSError:
        return None
    return context.nodes.label(whole)
