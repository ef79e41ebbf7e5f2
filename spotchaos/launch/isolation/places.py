"""The folders in which runs of this user have kept scratch, so that a later one looks there.

A list in the user's cache folder, one path a line. It is a help only: whether something
in such a folder may be removed is decided there (`scratch.sweep`), so a list that is
missing, damaged or cannot be written costs nothing but that help.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

NAME = "places"
MOST_PLACES = 64
MOST_BYTES = 1 << 18


def cache_folder() -> Path | None:
    """Return our own cache folder; None for a user who has no home."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(base or Path.home() / ".cache") / "spotchaos"
    except RuntimeError:  # neither HOME nor an entry in the list of users
        return None


def known() -> list[Path]:
    """Return the folders in the list, those that were added last at the end."""
    folder = cache_folder()
    if folder is None:
        return []
    try:
        with (folder / NAME).open("rb") as file:
            content = file.read(MOST_BYTES)
    except OSError:
        return []
    lines = dict.fromkeys(line for line in content.split(b"\n") if _is_path(line))
    return [Path(os.fsdecode(line)) for line in lines][-MOST_PLACES:]


def add(place: Path) -> None:
    """Put a folder on the list, if that can be done."""
    line = os.fsencode(place)
    folder = cache_folder()
    if folder is None or not _is_path(line) or b"\n" in line:
        return
    before = known()
    if place in before:
        return
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if len(before) < MOST_PLACES:
            with (folder / NAME).open("ab") as file:  # one write, whoever else adds
                file.write(b"\n" + line + b"\n")
            return
        new = folder / f".{NAME}-{secrets.token_hex(6)}"
        kept = [os.fsencode(known) for known in before[1:]]
        try:
            new.write_bytes(b"\n".join([*kept, line, b""]))
            new.replace(folder / NAME)
        finally:
            new.unlink(missing_ok=True)


def _is_path(line: bytes) -> bool:
    return line.startswith(b"/") and len(line) < os.pathconf("/", "PC_PATH_MAX")
