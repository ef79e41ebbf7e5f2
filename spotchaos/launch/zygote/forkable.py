"""Which commands a zygote can serve: what one interpreter would have started.

A script, `-m`, a console script, or a torchrun that only starts ranks; every other one
takes the cold path.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

# Options of the interpreter that a zygote can be started with as well.
_FLAGS = re.compile(r"^-([uOBPqsvb]+|W.+|X.+)$")
_TAKING_A_WORD = ("-W", "-X")
_TORCHRUN = re.compile(r"^--(nproc[-_]per[-_]node|standalone|nnodes)(?:=(\w+))?$")


@dataclass(frozen=True, slots=True)
class Start:
    """How a command starts Python: by which interpreter, with which flags, what."""

    interpreter: str
    flags: tuple[str, ...]
    argv: tuple[str, ...]  # the program's sys.argv
    script: str | None = None
    module: str | None = None
    ranks: int | None = None  # of a torchrun that only starts ranks
    word: str | None = None  # how the interpreter was named; None: by its path
    name: str | None = None  # of the file that was executed; None: the interpreter's

    @property
    def command(self) -> list[str]:
        """Return the command line of one process of the program."""
        what = ["-m", self.module] if self.module else [self.script or ""]
        return [self.word or self.interpreter, *self.flags, *what, *self.argv[1:]]

    def beside(self, folder: Path) -> Path:
        """Return the folder that comes first on the program's path.

        Args:
            folder: where the program runs.
        """
        if self.script is None:
            return folder
        script = (folder / self.script).resolve()
        beside = script if script.is_dir() else script.parent
        return beside if beside.is_dir() else folder

    def as_request(self) -> dict[str, Any]:
        return {
            "script": self.script,
            "module": self.module,
            "argv": list(self.argv),
            "command": self.command,
            "flags": list(self.flags),
            "name": Path(self.name or self.interpreter).name,
        }


def start_of(
    command: Sequence[str], environment: Mapping[str, str], folder: Path
) -> Start | None:
    """Return how a zygote would start a command; None if it takes the cold path."""
    path = _which(command[0], environment, folder)
    if path is None:
        return None
    if re.match(r"^python[\d.]*$", path.name):
        interpreter = _interpreter(path, environment, folder)
        start = interpreter and _of_arguments(interpreter, command[1:])
        if not start or start.ranks is not None or interpreter != str(path):
            return start or None
        return replace(start, word=command[0])
    shebang = _shebang(path)
    if shebang is None:
        return None
    if path.name == "torchrun":
        module = ["-m", "torch.distributed.run"]
        return start_of([shebang, *module, *command[1:]], environment, folder)
    # As the kernel hands a script to its interpreter: found on PATH, by its full name.
    name = command[0] if "/" in command[0] else str(path)
    if "/" not in shebang:  # `env` looks for it
        return start_of([shebang, name, *command[1:]], environment, folder)
    return Start(shebang, (), (name, *command[1:]), script=name, name=name)


def _of_arguments(interpreter: str, arguments: Sequence[str]) -> Start | None:
    flags: list[str] = []
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "-m" and rest:
            if rest[0] in ("torch.distributed.run", "torch.distributed.launch"):
                return _of_torchrun(interpreter, rest[1:])
            return Start(interpreter, tuple(flags), tuple(rest), module=rest[0])
        if word in _TAKING_A_WORD and rest:
            flags += [word, rest.pop(0)]
        elif _FLAGS.match(word):
            flags.append(word)
        else:
            return None
    if not rest:
        return None
    return Start(interpreter, tuple(flags), tuple(rest), script=rest[0])


def _of_torchrun(interpreter: str, arguments: Sequence[str]) -> Start | None:
    """Serve a torchrun that does nothing but start N ranks on this machine."""
    rest = list(arguments)
    ranks = 1
    is_module = False
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word in ("-m", "--module"):
            is_module = True
            continue
        found = _TORCHRUN.match(word)
        if found is None:
            return None
        name, value = found[1].replace("_", "-"), found[2]
        if name == "standalone":
            continue
        if value is None:
            if not rest:
                return None
            value = rest.pop(0)
        if not value.isdecimal() or (name == "nnodes" and value != "1"):
            return None
        if name == "nproc-per-node":
            ranks = int(value)
    if not rest:
        return None
    flags, argv = ("-u",), tuple(rest)
    if is_module:
        return Start(interpreter, flags, argv, module=rest[0], ranks=ranks)
    if not rest[0].endswith(".py"):
        return None
    return Start(interpreter, flags, argv, script=rest[0], ranks=ranks)


def _which(name: str, environment: Mapping[str, str], folder: Path) -> Path | None:
    if "/" in name:
        path = folder / name
        return path if path.is_file() else None
    found = shutil.which(name, path=environment.get("PATH", os.defpath))
    return None if found is None else Path(found)


def _shebang(path: Path) -> str | None:
    """Return the Python that a script names, for `env` by its name; None: it names another."""
    with path.open("rb") as file:
        line = file.readline(500)
    found = re.match(
        rb"#!\s*(?:/\S*/env\s+(?=python)|(?=/))(\S*python[\d.]*)\s*$", line
    )
    return None if found is None else found[1].decode()


def _interpreter(
    path: Path, environment: Mapping[str, str], folder: Path
) -> str | None:
    """Return the interpreter behind a name: version managers put scripts in front."""
    with path.open("rb") as file:
        if file.read(2) != b"#!":
            return str(path)
    return _ask_interpreter(path, tuple(sorted(environment.items())), folder)


@functools.cache
def _ask_interpreter(
    path: Path, environment: tuple[tuple[str, str], ...], folder: Path
) -> str | None:
    code = "import sys; print(sys.executable)"
    try:
        said = subprocess.run(
            [str(path), "-c", code],
            env=dict(environment),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.strip() or None
