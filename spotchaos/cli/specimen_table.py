"""`spotchaos specimens`: the table of flawed and mended programs, and what is said of each.

The programs are read and run, never imported: each is somebody's training script.
"""

from __future__ import annotations

import ast
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spotchaos.clock import SystemClock
from spotchaos.errors import UsageError, closest

if TYPE_CHECKING:
    from spotchaos.events import Outcome
    from spotchaos.pytest_support.shared_baselines import SharedBaselines
    from spotchaos.pytest_support.specimen_runs import Specimen


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--run", "is_run", is_flag=True, help="carry out each, and say what was found"
)
@click.option(
    "--by",
    type=click.Choice(["random", "edges"]),
    help="with --run: these plans instead of the one that is known to show the flaw",
)
@click.option(
    "--beside",
    "is_beside",
    is_flag=True,
    help="with --run: what ckpt-chaos says of the same program, if it is installed",
)
def command(
    names: tuple[str, ...],
    is_run: bool,  # noqa: FBT001 - click's
    by: str | None,
    is_beside: bool,  # noqa: FBT001 - click's
) -> int:
    """List the programs that prove the tool: flawed ones, and their mended twins.

    With --run each is interrupted as the table says; exit status 1 if anything is said
    that should not be, or is not said. With --by, a flaw that these plans do not show is
    told as `unseen`, and is nothing wrong.
    """
    from spotchaos.pytest_support.specimen_runs import (
        read_table,  # imports the campaign
    )

    table = read_table()
    if unknown := [name for name in names if name not in table]:
        raise UsageError(
            f"there is no specimen {unknown[0]!r}",
            hint=closest(unknown[0], table) or "`spotchaos specimens` lists them",
        )
    if (by or is_beside) and not is_run:
        raise UsageError(
            f"{'--by' if by else '--beside'} says nothing without --run",
            hint="add --run, and names of specimens if all of them take too long",
        )
    chosen = [s for name, s in table.items() if not names or name in names]
    return (
        _run(chosen, by, _competitor() if is_beside else None)
        if is_run
        else _list(chosen)
    )


def _competitor() -> str:
    """Return the executable that is asked beside us."""
    from spotchaos.pytest_support import competitor

    found = competitor.find()
    if found is None:
        raise UsageError(
            f"{competitor.NAME} is not installed here",
            hint=f"`pip install {competitor.NAME}`, or `tox -e beside`",
        )
    return found


def _list(chosen: Iterable[Specimen]) -> int:
    """Print a line for each: its name, what convicts it, what shows it, what it is."""
    rows = [("specimen", "expected", "shown by", "what it is")]
    for specimen in chosen:
        program = specimen.mutant or specimen.mended
        plan = "every crash state" if specimen.explore else specimen.plan
        rows.append(
            (
                specimen.name,
                specimen.finding or "held",
                ", ".join((plan, *specimen.shown_by)),
                _first_line(program),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        cells = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)]
        print("  ".join([*cells, row[3]]))
    return 0


def _run(chosen: Iterable[Specimen], by: str | None, beside: str | None) -> int:
    """Carry out both programs of each specimen, and print what was found."""
    from spotchaos.pytest_support import SPECIMENS
    from spotchaos.pytest_support.shared_baselines import SharedBaselines

    shared_baselines = SharedBaselines(ready=[SPECIMENS])
    columns = ["", f"{'program':<40}", f"{'expected':<26}", f"{'found':<26}", "time"]
    print("  ".join([f"{'':<6}", *columns[1:], *(["ckpt-chaos"] if beside else [])]))
    try:
        wrong = [
            _try(specimen, program, shared_baselines, by, beside)
            for specimen in chosen
            for program in (specimen.mutant, specimen.mended)
            if program is not None
        ]
    finally:
        shared_baselines.close()
    return 1 if any(wrong) else 0


def _try(
    specimen: Specimen,
    program: Path,
    shared_baselines: SharedBaselines,
    by: str | None,
    beside: str | None,
) -> bool:
    """Carry out one program and print its line; return whether anything is wrong."""
    from spotchaos.launch.isolation.scratch import Scratch
    from spotchaos.pytest_support import competitor
    from spotchaos.pytest_support.specimen_runs import (
        try_program,
        unmet_by_mutant,
        unmet_by_twin,
    )

    clock = SystemClock()
    begun_s = clock.monotonic()
    options = {} if by is None else {"kill_at": (by,)}
    with Scratch(Path(tempfile.gettempdir())) as scratch:
        outcome = try_program(
            specimen,
            program,
            folder=scratch.path,
            layer=shared_baselines.layer,
            **options,
        )
    is_mutant = program == specimen.mutant
    unmet = (unmet_by_mutant if is_mutant else unmet_by_twin)(specimen, outcome)
    told = "WRONG" if unmet else "right"
    if by is not None and is_mutant:
        names = [name for name, _ in outcome.findings]
        told, unmet = ("shown" if specimen.finding in names else "unseen"), []
    cells = [
        f"{told:<6}",
        f"{f'{program.parent.name}/{program.stem}':<40}",
        f"{(specimen.finding if is_mutant else None) or 'held':<26}",
        f"{_found(outcome):<26}",
        f"{clock.monotonic() - begun_s:.1f} s",
    ]
    if beside is not None:
        asked = competitor.can_be_asked(specimen, program)
        cells.append(
            competitor.ask(specimen, program, executable=beside)
            if asked
            else "cannot be asked"
        )
    print("  ".join(cells), flush=True)
    for sentence in unmet:
        print(f"        {sentence}")
    return bool(unmet)


def _found(outcome: Outcome) -> str:
    names = ", ".join(name for name, _ in outcome.findings)
    return names or str(outcome.verdict)


def _first_line(program: Path) -> str:
    said = ast.get_docstring(ast.parse(program.read_text(encoding="utf-8")))
    return (said or "").split("\n")[0]
