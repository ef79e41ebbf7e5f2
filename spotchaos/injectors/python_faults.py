"""Faults of the disk where no supervisor can be had: the probe lets Python's calls fail.

It counts opens, not writes, and only what Python announces; so it is said of each run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from spotchaos.errors import HarnessError
from spotchaos.injectors.disks import DiskFault
from spotchaos.launch.supervisor.notify_rules import rule_for
from spotchaos.model import Injected, SaveMark

# What Python cannot be made to see: it writes on by itself after either.
BELOW_PYTHON: Final = frozenset({"eintr", "short-write"})


@dataclass(frozen=True, slots=True)
class PythonRule:
    """A fault as the probe carries it out; see `probe.refusals`."""

    text: str
    kind: str
    errno: int
    delay_s: float
    nth: int
    onwards: bool
    from_save: int  # which save of a process is the first that it may strike

    def order(self) -> dict[str, Any]:
        """Return it as the probe is told."""
        return asdict(self)


def python_rule_of(
    fault: DiskFault, saves: Sequence[SaveMark], *, before: int | None = None
) -> PythonRule:
    """Return the rule by which the probe carries a fault out.

    Args:
        fault: an error or a delay.
        saves: of an uninterrupted run, in order.
        before: with `:last`, the step before which the last save began.

    Raises:
        HarnessError: Python hides such a fault from the program.
    """
    if fault.name in BELOW_PYTHON:
        raise HarnessError(
            f"the fault {fault.text!r} needs file sites, which are off here: Python"
            " writes on by itself",
            hint="ask `spotchaos doctor` why they are off",
        )
    rule = rule_for(fault.name)
    is_delay = rule.action == "delay"
    from_save = 0
    if fault.on_last_save:
        early = [s for s in saves if before is None or s.step < before] or list(saves)
        from_save = early[-1].number if early else 1 << 62
    return PythonRule(
        text=fault.text,
        kind=rule.kind,
        errno=0 if is_delay else int(rule.value),
        delay_s=rule.value if is_delay else 0.0,
        nth=fault.nth or 1,
        onwards=fault.onwards or fault.on_last_save,
        from_save=from_save,
    )


def injected_step_in_python(rule: PythonRule, saves: Sequence[SaveMark]) -> int | None:
    """Return after how many steps it has struck, if each save is struck once or more.

    None: nothing is saved.
    """
    steps = [save.step for save in saves if save.number >= rule.from_save]
    return steps[min(rule.nth, len(steps)) - 1] if steps else None


def seen_by_probe(
    folder: Path, faults: Iterable[tuple[DiskFault, PythonRule]]
) -> list[Injected]:
    """Return what came of each fault, from what the processes of an attempt wrote down."""
    lines = [
        json.loads(line)
        for path in sorted(folder.glob("*.faults"))
        for line in path.read_text("utf-8").splitlines()
    ]
    found = []
    for fault, _ in faults:
        mine = sorted(
            (line for line in lines if line["fault"] == fault.text),
            key=lambda line: float(line["t"]),
        )
        found.append(
            Injected(
                fault.text,
                fault.kind,
                len(mine),
                at_s=mine[0]["t"] if mine else None,
                path=mine[0]["path"] if mine else None,
            )
        )
    return found
