"""What becomes of the times of files between two machines: a wrong clock, a careless copy.

Strikes once the machine is gone, all files at once that its attempts wrote. Who picks the
newest checkpoint by the time of its file is then wrong; who asks its name or content is not.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from spotchaos.launch.isolation.view import Changed, View

# `clock-skew`: the machine's clock was ahead of that of the next one.
# `equal-times`: an archive or a store that keeps one time for all, or whole days.
# `lost-times`: a copy without `-p`; files have the time at which each was copied, and no
# copier promises an order: here the newest goes first.
TIMES: Final = ("clock-skew", "equal-times", "lost-times")
# By how much the clock of the skewed machine is ahead, in seconds.
SKEW_S: Final = 3600


def move_times(fault: str, view: View) -> int:
    """Move the times of what attempts wrote; return of how many files.

    Args:
        fault: one of `TIMES`.
        view: whose machine is gone.
    """
    files = view.changed()
    if fault == "lost-times":
        _copy_again(view, files)
        return len(files)
    latest_ns = max((one.mtime_ns for one in files), default=0)
    for one in files:
        ahead_ns = one.mtime_ns + SKEW_S * 10**9
        _set(view.path(one.path), latest_ns if fault == "equal-times" else ahead_ns)
    for place in _folders(view, files):
        ahead_ns = place.stat().st_mtime_ns + SKEW_S * 10**9
        _set(place, latest_ns if fault == "equal-times" else ahead_ns)
    return len(files)


def _copy_again(view: View, files: Sequence[Changed]) -> None:
    """Give each file, and then its folder, the present time: what was newest comes first.

    The time of a change is the present one too, which nobody can set.
    """
    known: dict[Path, int] = {}
    for one in sorted(files, key=lambda one: (-one.mtime_ns, one.path)):
        place = view.path(one.path)
        known[place] = _touch(place, after_ns=max(known.values(), default=0))
    for folder in _folders(view, files):
        inside = [ns for place, ns in known.items() if place.is_relative_to(folder)]
        _set(folder, max(inside))


def _touch(place: Path, *, after_ns: int) -> int:
    """Give a file the present time, once that is another one; return it."""
    while True:  # the kernel's clock ticks each few milliseconds
        os.utime(place, follow_symlinks=False)
        now_ns = place.lstat().st_mtime_ns
        if now_ns > after_ns:
            return now_ns


def _set(place: Path, ns: int) -> None:
    os.utime(place, ns=(ns, ns), follow_symlinks=False)


def _folders(view: View, files: Iterable[Changed]) -> list[Path]:
    """Return the folders of the view that hold these files, innermost first."""
    found = {
        str(folder)
        for one in files
        for folder in PurePosixPath(one.path).parents
        if str(folder) not in (".", "{out}")
    }
    places = [view.path(folder) for folder in found]
    mine = [place for place in places if place.is_relative_to(view.place)]
    return sorted(mine, key=lambda place: (-len(place.parts), place))
