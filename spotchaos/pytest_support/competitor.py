"""What ckpt-chaos says of a specimen, run with the options that its README recommends.

It is asked only about what it can be asked: one process, which is killed or sent SIGTERM
before, and no notice or fault. Its verdicts: PASS, HARD_FAIL (the resume raised),
SILENT_DIVERGENCE (other weights at the end) and LOST_WORK (an older checkpoint than the
newest whole one, where the names of checkpoints tell their steps).

Source: README of ckpt-chaos 0.1.8, "Try it on your own script" and "Resume contract".
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from spotchaos.launch.isolation.scratch import Scratch
from spotchaos.pytest_support.specimen_runs import COMMAND, Specimen

NAME = "ckpt-chaos"
TOLD = Path(__file__).parent / "competitor_program.py"
# Every one of its kill points is two fresh processes; it spreads these over the run.
MOST_POINTS = 12
TIMEOUT_S = 3600
GRACE_S = 5  # its own default
NO_STEP_IN_NAMES = "matched no checkpoint"
_COUNT = re.compile(r"\b([A-Z_]+): (\d+)")
VERDICTS = ("HARD_FAIL", "SILENT_DIVERGENCE", "LOST_WORK", "CONTROL_FAIL", "PASS")


def find() -> str | None:
    """Return its executable; None where it is not installed."""
    return shutil.which(NAME)


def can_be_asked(specimen: Specimen, program: Path) -> bool:
    """Tell whether its options can express what shows this specimen.

    A program that asks a metadata service is never started outside our attempts, in
    which nothing reaches a real one; and its weights must be called `model`.
    """
    source = program.read_text(encoding="utf-8")
    beyond = {"notice", "fault", "lose", "durable", "to", "then", "exit-code"}
    return (
        specimen.ranks is None
        and specimen.options.get("signal", "TERM") == "TERM"
        and not beyond & specimen.options.keys()
        and specimen.command == COMMAND
        and "169.254" not in source
        and "\nmodel = " in source
    )


def ask(
    specimen: Specimen,
    program: Path,
    *,
    executable: str = NAME,
    most_points: int = MOST_POINTS,
) -> str:
    """Return its verdicts on a program, worst first, with how many kill points each.

    Args:
        specimen: the row of the table.
        program: its mutant or its twin.
        executable: of ckpt-chaos.
        most_points: kill points at most.
    """
    options = [*options_of(specimen, program), "--max-points", str(most_points)]
    by_name = ["--checkpoint-glob", "{out}/checkpoints/*"]
    said = _run(executable, [*options, *by_name], program)
    if NO_STEP_IN_NAMES in said:
        said = _run(executable, options, program)
    return said


def options_of(specimen: Specimen, program: Path) -> list[str]:
    """Return the options that its README recommends for such a program."""
    options = [
        *("--step-regex", r"resumed from step (\d+)"),
        *("--result-file", "{out}/final.pt"),
        *("--fail-on", "HARD_FAIL,SILENT_DIVERGENCE,LOST_WORK,CONTROL_FAIL"),
    ]
    if "signal" in specimen.options:
        options += ["--modes", "term", "--grace", str(GRACE_S)]
    resume = specimen.options.get("resume-cmd")
    if resume is not None:
        more = shlex.split(str(resume))[2:]  # after {python} {specimen}
        options += ["--resume-cmd", shlex.join([*_told(program), *more])]
    return options


def _told(program: Path) -> list[str]:
    return [sys.executable, str(TOLD), "{out}", str(program)]


def _run(executable: str, options: list[str], program: Path) -> str:
    with Scratch(Path(tempfile.gettempdir())) as scratch:
        work = scratch.path / "work"
        done = subprocess.run(
            [executable, "run", "--work", str(work), *options, "--", *_told(program)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    return summary(done.stdout, done.stderr)


def summary(printed: str, complaint: str) -> str:
    """Return in one line what a run of it printed: `6 HARD_FAIL, 10 PASS`."""
    counts = dict(_COUNT.findall(printed))
    found = [f"{counts[name]} {name}" for name in VERDICTS if name in counts]
    if found:
        return ", ".join(found)
    lines = (complaint or printed).strip().splitlines()
    if NO_STEP_IN_NAMES in complaint:
        return NO_STEP_IN_NAMES
    return f"no verdict: {lines[-1][:60] if lines else 'it said nothing'}"
