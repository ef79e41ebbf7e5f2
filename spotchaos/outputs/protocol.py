"""In which order an uninterrupted run writes its records and what tells of progress."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from spotchaos.oracles.resume_points import pattern_of
from spotchaos.persistence.oplog import OpLog

# What tells how far the work is, is short.
MOST_MARK_BYTES = 4096


def marks_ahead(log: OpLog | None) -> Mapping[str, str]:
    """Return, by group of files, what tells of its records before they are written.

    Where the mark of each record comes after it, so does the last mark after the last
    record; where the last record comes after the last mark, the mark was ahead.

    Args:
        log: file ops of an uninterrupted run; None: nothing is known.
    """
    last: dict[str, int] = {}
    marks: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    ops_made = log.ops if log is not None else ()
    # What is given another name or taken away tells nothing for long.
    passing = {op.path for op in ops_made if op.kind in ("rename", "unlink")}
    names: dict[int | None, str] = {}
    for at, op in enumerate(ops_made):
        name = op.to if op.kind == "rename" else op.path
        # A store into a map is made on no name.
        name = names.get(op.node) if name is None else names.setdefault(op.node, name)
        if op.kind == "rename" and op.to is not None:
            name = names[op.node] = op.to
        if op.error is not None or name is None or name in passing:
            continue
        root, _, inner = name.partition("/")
        group = ("{out}/" if root == "1" else "") + pattern_of(inner)
        if op.kind in ("write", "mwrite", "rename"):
            last[group] = at
        if op.kind in ("write", "rename", "creat"):
            marks[group].append((at, op.length, inner))
    found: dict[str, str] = {}
    for group, end in last.items():
        for other, ops in marks.items():
            is_short = all(length <= MOST_MARK_BYTES for _, length, _ in ops)
            is_between = sum(at < end for at, _, _ in ops) > 1
            if other != group and is_short and is_between and ops[-1][0] < end:
                found.setdefault(group, ops[-1][2])
    return found
