"""`spotchaos specimens`: the table of flawed and mended programs, and what is said of each.

The programs are read, never imported: each is somebody's training script.
"""

from __future__ import annotations

import ast
from importlib import resources
from importlib.resources.abc import Traversable

import click

from spotchaos.errors import UsageError


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
def command() -> int:
    """List the flawed programs that prove the tool, and their mended twins."""
    root = resources.files("spotchaos.specimens")
    mutants = _programs(root.joinpath("mutants"))
    mended = _programs(root.joinpath("mended"))
    if not mutants:
        raise UsageError("this release carries no specimens")
    width = max(len(name) for name in mutants)
    for name, said in sorted(mutants.items()):
        twin = "mended twin" if name in mended else "no twin"
        print(f"{name:<{width}}  {twin:<11}  {said}")
    return 0


def _programs(folder: Traversable) -> dict[str, str]:
    """Return the programs of a folder, each with the first line of its docstring."""
    found: dict[str, str] = {}
    if not folder.is_dir():
        return found
    for file in folder.iterdir():
        name = file.name.removesuffix(".py")
        if name != file.name and not name.startswith("_"):
            said = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
            found[name] = (said or "").split("\n")[0]
    return found
