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
    from spotchaos.harness.specimens import Specimen


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--run", "is_run", is_flag=True, help="carry out each, and say what was found"
)
def command(names: tuple[str, ...], is_run: bool) -> int:  # noqa: FBT001 - click's
    """List the programs that prove the tool: flawed ones, and their mended twins.

    With --run each is interrupted as the table says; exit status 1 if anything is said
    that should not be, or is not said.
    """
    from spotchaos.harness.specimens import read_table  # imports the campaign

    table = read_table()
    if unknown := [name for name in names if name not in table]:
        raise UsageError(
            f"there is no specimen {unknown[0]!r}",
            hint=closest(unknown[0], table) or "`spotchaos specimens` lists them",
        )
    chosen = [s for name, s in table.items() if not names or name in names]
    return _run(chosen) if is_run else _list(chosen)


def _list(chosen: Iterable[Specimen]) -> int:
    """Print a line for each: its name, what convicts it, the plan that shows it."""
    rows = [("specimen", "expected", "plan", "what it is")]
    for specimen in chosen:
        program = specimen.mutant or specimen.mended
        rows.append(
            (
                specimen.name,
                specimen.finding or "held",
                specimen.plan,
                _first_line(program),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        cells = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)]
        print("  ".join([*cells, row[3]]))
    return 0


def _run(chosen: Iterable[Specimen]) -> int:
    """Carry out both programs of each specimen, and print what was found."""
    from spotchaos.harness import SPECIMENS
    from spotchaos.harness.groundworks import Groundworks
    from spotchaos.harness.specimens import try_program, unmet_by_mutant, unmet_by_twin

    clock, wrong = SystemClock(), 0
    groundworks = Groundworks(ready=[SPECIMENS])
    try:
        for specimen in chosen:
            for program, judge in (
                (specimen.mutant, unmet_by_mutant),
                (specimen.mended, unmet_by_twin),
            ):
                if program is None:
                    continue
                begun_s = clock.monotonic()
                with tempfile.TemporaryDirectory() as folder:
                    outcome = try_program(
                        specimen, program, folder=Path(folder), layer=groundworks.layer
                    )
                unmet = judge(specimen, outcome)
                wrong += bool(unmet)
                name = f"{program.parent.name}/{program.stem}"
                found = _found(outcome)
                print(f"{'WRONG' if unmet else 'right'}  {name:<40}  {found}", end="")
                print(f"  {clock.monotonic() - begun_s:.1f} s", flush=True)
                for sentence in unmet:
                    print(f"         {sentence}")
    finally:
        groundworks.close()
    return 1 if wrong else 0


def _found(outcome: Outcome) -> str:
    names = ", ".join(name for name, _ in outcome.findings)
    return f"{outcome.verdict} {names}".strip()


def _first_line(program: Path) -> str:
    said = ast.get_docstring(ast.parse(program.read_text(encoding="utf-8")))
    return (said or "").split("\n")[0]
