"""What a program will import, as far as its script says so before it has run."""

from __future__ import annotations

import ast
from pathlib import Path

from spotchaos.launch.zygote.forkable import Start

# Whatever else it imports, a program that trains imports this.
TORCH = "torch"


def imports_of_script(start: Start, folder: Path) -> list[str]:
    """Return packages that a program's first statements import, in order.

    They are imported in advance while the program runs for the first time; what it then
    imported decides, and a forecast that was wrong is thrown away.

    Args:
        start: how the program is started; of a module or a console script only torch is
            foreseen.
        folder: its working folder: what lies there is the program's own, and left out.
    """
    if start.script is None or not start.script.endswith(".py"):
        return [TORCH]
    script = folder / start.script
    try:
        body = ast.parse(script.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return []
    names: list[str] = []
    for node in body:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.append(node.module)
    found = [
        name
        for name in names
        if name != "__future__" and not _is_own(name, {folder, script.parent})
    ]
    return list(dict.fromkeys([*found, TORCH]))


def _is_own(name: str, folders: set[Path]) -> bool:
    top = name.partition(".")[0]
    return any(
        (folder / f"{top}.py").exists() or (folder / top).exists() for folder in folders
    )
