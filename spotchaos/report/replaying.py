"""The line that carries out a trial again: its token, and what no token names."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any


def replay_line(document: Mapping[str, Any], trial: Mapping[str, Any]) -> str | None:
    """Return the whole command that carries out `trial` again, None without a token.

    A token names no command and no path, so that those stand beside it.
    """
    if not trial.get("replay"):
        return None
    words = ["spotchaos", "replay", str(trial["replay"])]
    command = [str(word) for word in document["command"]]
    resume = [str(word) for word in document.get("resume_command") or command]
    if resume != command:
        words += ["--resume-cmd", shlex.join(resume)]
    if document.get("durable"):
        words += ["--durable", str(document["durable"])]
    return shlex.join([*words, "--", *command])
