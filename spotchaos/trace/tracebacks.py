"""Tracebacks as text: whose lines they name, and what was raised where."""

from __future__ import annotations

import re

from spotchaos.model import ProgramException

FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
# Files that are not the program's own.
LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3|/spotchaos/probe/|^<")
_RAISED = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")


def quoted(message: str) -> ProgramException | None:
    """Return the exception of another process whose traceback a message quotes.

    So do `mp.spawn`, loader workers and pools; what they raise themselves says no more
    than that.
    """
    _, head, text = message.rpartition("Traceback (most recent call last):\n")
    if not head:
        return None
    place: tuple[str, int] | None = None
    lines = text.splitlines()
    for number, line in enumerate(lines):
        frame, raised = FRAME.search(line), _RAISED.match(line)
        if frame is not None:
            if place is None or not LIBRARY.search(frame["file"]):
                place = (frame["file"], int(frame["line"]))
        elif raised is not None and place is not None:
            words = [raised["message"] or "", *lines[number + 1 :]]
            return ProgramException(
                type=raised["type"].rpartition(".")[2],
                message="\n".join(words).strip(),
                file=place[0],
                line=place[1],
            )
    return None
