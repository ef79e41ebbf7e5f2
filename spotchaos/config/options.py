"""The options of a campaign, each declared once: name, heading, unit, default, parser.

The command, configuration files, scenario files and the pytest plugin all read this
table, so that one name, one validation and one hint serve all of them.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from spotchaos.config.output_options import OF_OUTPUTS
from spotchaos.config.settings import Known, Settings
from spotchaos.config.spellings import (
    file_name,
    grace,
    names,
    numbers,
    part_of,
    place as place_or_url,
    seconds,
    signal_name,
    slow_rank,
    words,
)
from spotchaos.errors import UsageError, closest

CAMPAIGNS = ("run", "explore", "replay")

WHERE = "Where it is interrupted"
HOW = "What comes with the kill"
PROGRAM = "The program"
PROMISE = "What must hold"
OUTPUTS = "What is left behind"
CAMPAIGN = "The campaign"
OUTPUT = "Output"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option, as every front offers it.

    `parse` turns the text of one value into what `Settings` holds, and raises
    ValueError where the text means nothing.
    """

    name: str  # as in the interface, without its dashes
    heading: str
    help: str
    metavar: str | None = None  # None: a flag
    parse: Callable[[str], Any] = str
    field: str | None = None  # of Settings, if it is not the name
    many: bool = False  # repeatable; a list in a file
    commands: tuple[str, ...] = CAMPAIGNS

    @property
    def target(self) -> str:
        return self.field or self.name.replace("-", "_")


def _flag(name: str, heading: str, text: str, **more: Any) -> Option:
    return Option(name=name, heading=heading, help=text, **more)


OPTIONS: tuple[Option, ...] = (
    Option(
        name="kill-at",
        heading=WHERE,
        metavar="WHERE",
        many=True,
        commands=("run",),
        help="random, edges, every-step, every-file-op, SITE:N, 50% or 12.5s; kill"
        " points joined by commas interrupt one attempt after the other (default:"
        " random)",
    ),
    Option(
        name="trials",
        heading=WHERE,
        metavar="N",
        parse=int,
        commands=("run", "explore"),
        help="plans that `random` draws (default: 5)",
    ),
    Option(
        name="seed",
        heading=WHERE,
        metavar="S",
        parse=int,
        commands=("run", "explore"),
        help="draws the plans; the report prints it (default: 0)",
    ),
    Option(
        name="power-loss",
        heading=WHERE,
        metavar="MODEL",
        commands=("explore",),
        help="what an unsynced disk may lose: ext4, posix or all (default: a process"
        " kill only)",
    ),
    Option(
        name="deviations",
        heading=WHERE,
        metavar="K",
        parse=int,
        commands=("explore",),
        help="file operations that a crash loses or reorders at once (default: 1)",
    ),
    Option(
        name="saves",
        heading=WHERE,
        metavar="N",
        parse=int,
        commands=("explore",),
        help="saves to explore (default: spread over the run)",
    ),
    Option(
        name="signal",
        heading=HOW,
        metavar="NAME",
        parse=signal_name,
        help="KILL, TERM, INT, HUP, USR1, USR2 or STOP; after any but KILL the reclaim"
        " follows when the grace window ends (default: KILL)",
    ),
    Option(
        name="to",
        heading=HOW,
        metavar="WHOM",
        help="all, leader, group, launcher, workers, rank:R or rank:R,R (default: all)",
    ),
    Option(
        name="then",
        heading=HOW,
        metavar="SIGNAL@WHEN",
        many=True,
        commands=("run", "replay"),
        help="another signal in the same attempt, at a site or after seconds, both"
        " counted from the first signal or notice: TERM@save-begin, KILL@0.5s",
    ),
    Option(
        name="stagger",
        heading=HOW,
        metavar="SECONDS",
        parse=seconds,
        field="stagger_s",
        commands=("run", "replay"),
        help="strike the ranks of --to one after the other, in the order in which they"
        " are written (default: all at once)",
    ),
    Option(
        name="slow-rank",
        heading=HOW,
        metavar="R[:SECONDS]",
        parse=slow_rank,
        commands=("run", "replay"),
        help="in trials rank R waits so long at each step and before each save (default:"
        " none is slow; 0.2 s)",
    ),
    Option(
        name="requeue",
        heading=HOW,
        metavar="N",
        parse=int,
        commands=("run", "replay"),
        help="starts beyond the plan of a program that fails by itself, as a scheduler"
        " makes them (default: 4)",
    ),
    Option(
        name="requeue-delay",
        heading=HOW,
        metavar="SECONDS",
        parse=seconds,
        field="requeue_delay_s",
        commands=("run", "replay"),
        help="before each start after the first (default: hardly any)",
    ),
    Option(
        name="notice",
        heading=HOW,
        metavar="STORY",
        help="play a provider's notice first: aws, gcp, azure, alibaba, ...",
    ),
    Option(
        name="grace",
        heading=HOW,
        metavar="SECONDS",
        parse=grace,
        help="from the notice or signal to the reclaim, or in steps: 3steps (default:"
        " the provider's own, 30 for a signal)",
    ),
    _flag(
        "find-grace",
        HOW,
        "search the smallest grace window that works, in real seconds",
        commands=("run",),
    ),
    Option(
        name="time-scale",
        heading=HOW,
        metavar="X",
        parse=float,
        help="cloud seconds per real second (default: such that the deadline falls"
        " before the program's end)",
    ),
    Option(
        name="lose",
        heading=HOW,
        metavar="WHAT",
        help="process, or machine: only what lies under --durable outlives the"
        " attempt (default: process)",
    ),
    Option(
        name="durable",
        heading=HOW,
        parse=place_or_url,
        metavar="DIR|URL",
        help="what outlives the machine (default: the working folder)",
    ),
    _flag("move", HOW, "with --lose machine: the folder's path changes as well"),
    Option(
        name="fault",
        heading=HOW,
        metavar="NAME[:N]",
        many=True,
        help="a fault without a kill, on the Nth operation that it can strike",
    ),
    _flag("tmp-elsewhere", HOW, "TMPDIR lies on another filesystem"),
    _flag("netns", HOW, "a private network with the clouds' real addresses in it"),
    Option(
        name="halt",
        heading=HOW,
        metavar="HOW",
        help="freeze every process before the kill, or let background writers run"
        " (default: freeze)",
    ),
    Option(
        name="ranks",
        heading=PROGRAM,
        metavar="N",
        parse=int,
        help="start N ranks with the environment of torchrun (default: the command's"
        " own)",
    ),
    Option(
        name="threads",
        heading=PROGRAM,
        metavar="N",
        parse=int,
        help="threads of each rank, the same in all phases (default: 1)",
    ),
    Option(
        name="seed-program",
        heading=PROGRAM,
        metavar="N",
        parse=int,
        help="seed torch, numpy and random from outside",
    ),
    _flag("deterministic", PROGRAM, "ask torch for deterministic algorithms"),
    Option(
        name="resume-cmd",
        heading=PROGRAM,
        metavar="CMD",
        parse=words,
        help="the command of every attempt after the first that finds a resume point"
        " (default: the same command)",
    ),
    _flag("keep-existing", PROGRAM, "leave checkpoints that lie in the folder there"),
    _flag("allow-network", PROGRAM, "attempts may reach the network"),
    Option(
        name="keep-env",
        heading=PROGRAM,
        metavar="NAME",
        many=True,
        help="a variable that attempts have although it looks like a credential; NAME*"
        " for all that begin so",
    ),
    _flag(
        "require-isolation",
        PROGRAM,
        "refuse to run where this machine cannot isolate the program",
    ),
    Option(
        name="promise",
        heading=PROMISE,
        metavar="PROMISE",
        help="resumes, state, samples or bitwise (default: bitwise)",
    ),
    Option(
        name="max-lost-steps",
        heading=PROMISE,
        metavar="N",
        parse=int,
        help="steps done again beyond the newest resume point (default: no bound)",
    ),
    _flag("accept-refusal", PROMISE, "a clear error instead of a wrong resume is fine"),
    Option(
        name="exit-code",
        heading=PROMISE,
        metavar="CODES",
        parse=numbers,
        help="what a program that a signal or notice stopped must exit with, joined"
        " by commas",
    ),
    *(Option(heading=OUTPUTS, **row) for row in OF_OUTPUTS),
    Option(
        name="fail-on",
        heading=PROMISE,
        metavar="NAMES",
        parse=names,
        help="findings that count, joined by commas (default: all)",
    ),
    Option(
        name="timeout",
        heading=CAMPAIGN,
        metavar="SECONDS",
        parse=seconds,
        field="timeout_s",
        help="for each phase (default: 600)",
    ),
    Option(
        name="budget",
        heading=CAMPAIGN,
        metavar="SECONDS",
        parse=seconds,
        field="budget_s",
        help="for the campaign; nothing starts after it (default: none)",
    ),
    Option(
        name="jobs",
        heading=CAMPAIGN,
        metavar="N",
        parse=int,
        help="attempts side by side (default: as many as fit)",
    ),
    Option(
        name="engine",
        heading=CAMPAIGN,
        metavar="NAME",
        help="who carries out trials (default: local)",
    ),
    Option(
        name="shard",
        heading=CAMPAIGN,
        metavar="I/N",
        parse=part_of,
        commands=("run",),
        help="carry out every Nth plan, from the Ith on; `spotchaos report` merges the"
        " reports of all N",
    ),
    Option(
        name="fingerprint",
        heading=CAMPAIGN,
        metavar="WHEN",
        help="all: every step; saves: saves and every tenth step (default: all)",
    ),
    _flag("no-skip", CAMPAIGN, "run again what is already known to be equal"),
    _flag("no-cache", CAMPAIGN, "start from nothing"),
    Option(
        name="keep",
        heading=CAMPAIGN,
        metavar="DIR",
        parse=file_name,
        help="keep traces and views there",
    ),
    Option(
        name="json",
        heading=OUTPUT,
        metavar="FILE",
        parse=file_name,
        commands=(*CAMPAIGNS, "report"),
        help="the report, schema 1",
    ),
    Option(
        name="jsonl",
        heading=OUTPUT,
        metavar="FILE",
        parse=file_name,
        help="events, one a line, as they happen",
    ),
    Option(
        name="junit",
        heading=OUTPUT,
        metavar="FILE",
        parse=file_name,
        commands=(*CAMPAIGNS, "report"),
        help="JUnit XML",
    ),
    Option(
        name="sarif",
        heading=OUTPUT,
        metavar="FILE",
        parse=file_name,
        commands=(*CAMPAIGNS, "report"),
        help="SARIF 2.1.0",
    ),
    Option(
        name="html",
        heading=OUTPUT,
        metavar="FILE",
        parse=file_name,
        commands=(*CAMPAIGNS, "report"),
        help="one self-contained page",
    ),
    _flag(
        "github",
        OUTPUT,
        "annotations, and a summary for $GITHUB_STEP_SUMMARY",
        commands=(*CAMPAIGNS, "report"),
    ),
    Option(
        name="issue",
        heading=OUTPUT,
        metavar="N",
        parse=int,
        commands=(*CAMPAIGNS, "report"),
        help="print a draft of a bug report about the Nth finding",
    ),
    _flag(
        "redact",
        OUTPUT,
        "remove local paths, the host's name and secrets of the environment",
        commands=(*CAMPAIGNS, "report"),
    ),
)

BY_NAME: dict[str, Option] = {option.name: option for option in OPTIONS}


def options_of(command: str) -> tuple[Option, ...]:
    """Return the options that `command` takes, in the order of the help."""
    return tuple(option for option in OPTIONS if command in option.commands)


def read_option(option: Option, given: Any, *, place: str | None = None) -> Any:
    """Turn what a front was given for an option into its value.

    Args:
        option: which one.
        given: text, a number, a boolean for a flag, or a list of them.
        place: where it stands, for the message; None: on the command line.

    Raises:
        UsageError: the value means nothing for this option.
    """
    label = f"--{option.name}" if place is None else f"{option.name!r} in {place}"
    if option.metavar is None:
        if not isinstance(given, bool):
            raise UsageError(
                f"{label} is {given!r}", hint="it is a switch: write true or false"
            )
        return given
    if option.many:
        several = given if isinstance(given, list | tuple) else (given,)
        return tuple(_parse_one(option, label, value) for value in several)
    if isinstance(given, list | tuple):
        join = shlex.join if option.parse is words else ",".join
        given = join([str(value) for value in given])
    return _parse_one(option, label, given)


def _parse_one(option: Option, label: str, given: Any) -> Any:
    if isinstance(given, bool | dict | list) or given is None:
        raise UsageError(f"{label} is {given!r}", hint=f"write {option.metavar}")
    try:
        return option.parse(str(given))
    except (ValueError, OverflowError):
        if option.parse in (file_name, place_or_url):
            raise UsageError(
                f"{label} is {str(given)!r}, which is no name of a file",
                hint=f"write {option.metavar}; ./-x is a file whose name begins with -",
            ) from None
        raise UsageError(
            f"{label} is {str(given)!r}",
            hint=f"write {option.metavar}: {option.help}",
        ) from None


def unknown_option(name: str, known: tuple[Option, ...], *, place: str) -> UsageError:
    """Return the error for a name that no option has, with the near miss."""
    near = closest(name, [option.name for option in known])
    return UsageError(
        f"unknown option {name!r} in {place}",
        hint=near or "`spotchaos run --help` lists every option",
    )


def make_settings(
    values: Mapping[str, Any],
    *,
    command: tuple[str, ...],
    folder: Path,
    known: Iterable[Known] = (),
    today: date | None = None,
    reference_trainer: bool = False,
) -> Settings:
    """Build the settings from values by option name; output options are left out.

    Args:
        values: what `read_option` returned, for the options that were given.
        command: the program.
        folder: its working folder.
        known: the findings that the team has listed.
        today: by which their dates are judged; None: none has passed.
        reference_trainer: the program is ours, since the user named none.

    Raises:
        UsageError: a value is out of range, or this release cannot do it yet.
    """
    fields: dict[str, Any] = {}
    for name, value in values.items():
        option = BY_NAME[name]
        if option.heading == OUTPUT:
            continue
        if name == "grace":
            fields["grace_s"], fields["grace_steps"] = value
        else:
            fields[option.target] = value
    return Settings(
        command=command,
        folder=folder,
        known=tuple(known),
        today=today,
        reference_trainer=reference_trainer,
        **fields,
    )
