"""The program under test: a command line, where it runs, and with what around it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from spotchaos.errors import UsageError, closest
from spotchaos.launch.isolation.credentials import removed_names

_NO_TERMINAL = re.compile(
    r"Inappropriate ioctl for device|\bENOTTY\b|\[Errno 25\]|stty: |not a (?:tty|terminal)"
    r"|termios\.error|No such device or address: '/dev/tty'",
    re.IGNORECASE,
)


class ProgramSettings(Protocol):
    """What a program is made from: the fields of `settings.Settings` that concern it."""

    @property
    def command(self) -> tuple[str, ...]: ...
    @property
    def resume_cmd(self) -> tuple[str, ...] | None: ...
    @property
    def folder(self) -> Path: ...
    @property
    def environment(self) -> Mapping[str, str]: ...
    @property
    def ranks(self) -> int | None: ...
    @property
    def threads(self) -> int: ...
    @property
    def allow_network(self) -> bool: ...
    @property
    def tmp_elsewhere(self) -> bool: ...
    @property
    def keep_env(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class Program:
    """The training program as all phases of a campaign start it."""

    command: tuple[str, ...]
    folder: Path
    resume_command: tuple[str, ...] | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    ranks: int | None = None  # started by us, with the environment of torchrun
    threads: int = 1
    pty: bool = False  # it wants a terminal
    allow_network: bool = False
    tmp_elsewhere: bool = False  # TMPDIR on another file system than the folder
    keep_env: tuple[str, ...] = ()  # variables that attempts have although secret

    @classmethod
    def from_settings(cls, settings: ProgramSettings) -> Program:
        """Return the program that the settings name; their variables win over ours."""
        return cls(
            command=tuple(settings.command),
            folder=Path(settings.folder).absolute(),
            resume_command=settings.resume_cmd,
            environment={**os.environ, **settings.environment},
            ranks=settings.ranks,
            threads=settings.threads,
            allow_network=settings.allow_network,
            tmp_elsewhere=settings.tmp_elsewhere,
            keep_env=settings.keep_env,
        )

    @property
    def removed(self) -> list[str]:
        """Names of its variables that attempts do not have, since they open accounts."""
        return removed_names(self.environment, keep=self.keep_env)


def check_program(program: Program) -> None:
    """Raise UsageError for a program that cannot even be started."""
    if not program.folder.is_dir():
        raise UsageError(
            f"the folder {str(program.folder)!r} is not there",
            hint="name the folder in which the program runs",
        )
    _check_command(program.command, program, "the command")
    if program.resume_command is not None:
        _check_command(program.resume_command, program, "the command to resume")


def _check_command(command: tuple[str, ...], program: Program, what: str) -> None:
    if not command or not command[0]:
        raise UsageError(
            f"{what} is empty",
            hint="put it after `--`, as in `spotchaos run -- python train.py`",
        )
    name = command[0]
    if "/" in name:
        path = program.folder / name
        if not path.exists():
            raise UsageError(
                f"{what} {name!r} does not exist",
                hint=closest(name, _beside(path)) or "give the path of a program",
            )
        if path.is_dir() or not os.access(path, os.X_OK):
            raise UsageError(
                f"{what} {name!r} cannot be executed",
                hint=f"did you mean `python {name}`?"
                if name.endswith(".py")
                else "make it executable, or put its interpreter before it",
            )
        _check_script(command, program)
        return
    search = program.environment.get("PATH", os.defpath)
    if shutil.which(name, path=search) is None:
        raise UsageError(f"{what} {name!r} does not exist", hint=_hint(name, program))
    _check_script(command, program)


def _check_script(command: tuple[str, ...], program: Program) -> None:
    """Refuse `python SCRIPT` without its script: seconds before the interpreter would."""
    script = command[1] if len(command) > 1 else ""
    is_script = script.endswith(".py") and not script.startswith("-")
    if not Path(command[0]).name.startswith("python") or not is_script:
        return
    path = program.folder / script
    if not path.exists():
        near = (
            _beside(path) if "/" in script else [p.name for p in path.parent.iterdir()]
        )
        raise UsageError(
            f"the script {script!r} does not exist",
            hint=closest(script, near)
            or f"it is looked for in {str(program.folder)!r}",
        )


def _hint(name: str, program: Program) -> str:
    if (program.folder / name).is_file():
        if name.endswith(".py"):
            return f"did you mean `python {name}`?"
        return f"did you mean './{name}'?"
    if re.match(r"[A-Za-z_]\w*=", name):
        return f"variables are set by env: `-- env {name} ...`"
    if " " in name:
        return "leave out the quotes, so that its words stand alone"
    known: set[str] = set()
    for folder in program.environment.get("PATH", os.defpath).split(os.pathsep):
        try:
            known.update(path.name for path in Path(folder or ".").iterdir())
        except OSError:
            continue
    return closest(name, known) or "give the name of an installed program, or its path"


def _beside(path: Path) -> list[str]:
    try:
        return [str(Path(path.parent.name) / p.name) for p in path.parent.iterdir()]
    except OSError:
        return []


def wants_terminal(output_tail: str) -> bool:
    """Tell whether a program failed for want of a terminal, from its last lines."""
    return _NO_TERMINAL.search(output_tail) is not None
