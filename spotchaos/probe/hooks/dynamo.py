"""Keeping torch's compiler out of the probe's code.

A compiled function that steps its optimizer would have our hooks traced into it, down to
the system calls of a mark: minutes of compiling, and warnings of it on the user's screen.
What wraps a module's call stays: it is traced through, and leaves nothing in the graph.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_TRACED = "forward.py"


def hook_dynamo(rules: Any) -> None:
    """Add our files to those that `torch._dynamo.trace_rules` skips."""
    rules.SKIP_DIRS.extend(_own_files())
    rules._recompile_re()


def _own_files() -> Iterator[str]:
    hooks = os.path.dirname(os.path.abspath(__file__))
    probe = os.path.dirname(hooks)
    yield os.path.join(os.path.dirname(probe), "trace", "")
    for folder in (probe, hooks):
        for name in sorted(os.listdir(folder)):
            if name.endswith(".py") and (folder, name) != (hooks, _TRACED):
                yield os.path.join(folder, name)
