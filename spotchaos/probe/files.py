"""Following files that the program opens and renames itself, through Python's audit hook.

The hook cannot be taken away again, sees each event of the process, and may be called
anywhere: it looks at few events, and never raises.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING

from spotchaos.probe.checkpoint_io import SAVES
from spotchaos.probe.paths import absolute, looks_like_checkpoint, matters
from spotchaos.probe.session import SESSION

if TYPE_CHECKING:
    from typing import Any

_WRITING = os.O_WRONLY | os.O_RDWR
_busy = threading.local()


def watch_files() -> None:
    """Install the audit hook."""
    sys.addaudithook(_audit)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        path = arguments[0]
        # Importing is most of what is opened.
        if path.__class__ is int or (
            path.__class__ is str and path.endswith((".pyc", ".py"))
        ):
            return
        action = _opened
    elif event in ("os.rename", "os.link", "os.symlink"):
        action = _moved
    else:
        return
    if SESSION.role == "helper" or getattr(_busy, "now", False):
        return
    _busy.now = True
    try:
        action(event, arguments)
    except OSError as error:
        SESSION.trouble("audit of a file", error)
    finally:
        _busy.now = False


def _opened(event: str, arguments: tuple[Any, ...]) -> None:
    del event
    path = absolute(arguments[0])
    if path is None or not matters(path):
        return
    flags = arguments[2] if len(arguments) > 2 and isinstance(arguments[2], int) else 0
    if not flags & _WRITING:
        if os.path.isfile(path):
            SAVES.read(path)
        return
    if flags & os.O_APPEND:
        return
    # Data are mapped for writing where nobody writes: only a known file is updated.
    if not flags & (os.O_CREAT | os.O_TRUNC) and not SAVES.knows(path):
        return
    # Before the first step only the writers that are known make a save: programs set up
    # their folders then.
    is_new = not SAVES.is_open and not SAVES.is_late(path)
    if (
        is_new
        and SESSION.steps
        and (looks_like_checkpoint(path) or SAVES.expects(path))
    ):
        # The kill point's wait may run a signal's handler, whose files count again.
        _busy.now = False
        SAVES.begin("open")
    if SAVES.is_open or looks_like_checkpoint(path):
        SAVES.wrote(path)


def _moved(event: str, arguments: tuple[Any, ...]) -> None:
    _busy.now = False
    if event == "os.rename":
        SAVES.renamed(arguments[0], arguments[1])
    elif SAVES.is_open:
        target = absolute(arguments[1])
        if target is not None and matters(target):
            SAVES.wrote(target)
