"""`spotchaos replay`: carry out one known plan again, from a token or from a report."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from spotchaos.cli.arguments import (
    REFERENCE,
    Command,
    given_values,
    listed_findings,
    names_no_program,
    outputs_of,
    with_options,
)
from spotchaos.config.option_files import read_config
from spotchaos.config.options import BY_NAME, make_settings
from spotchaos.config.replay_token import PREFIX, decode, encode, settings_of
from spotchaos.config.settings import Settings
from spotchaos.errors import ReportError, UsageError
from spotchaos.events import Listener, Outcome
from spotchaos.persistence.tokens import in_recording

EPILOG = """\b
  spotchaos replay sc1:eyJwbGFuIjoic3RlcC1lbmQ6MTIifQ -- python train.py
  spotchaos replay report.json --trial 3

A report names its command, which is printed before it is run; a token names
none. Options given here win over those of the token."""


@click.command(
    cls=Command,
    options_metavar="[options]",
    epilog=EPILOG,
)
@click.option(
    "--trial",
    metavar="N",
    type=int,
    help="of a report: which trial (default: the first that is violated)",
)
@click.option(
    "--trust",
    is_flag=True,
    help="of a report: run its command even where this machine cannot protect your"
    " files from it",
)
@with_options("replay")
@click.argument("target", metavar="TOKEN|REPORT.json")
@click.argument(
    "program", metavar="[-- COMMAND [ARG]...]", nargs=-1, type=click.UNPROCESSED
)
def command(
    target: str,
    program: tuple[str, ...],
    trial: int | None,
    trust: bool,  # noqa: FBT001 - click's
    **given: Any,
) -> int:
    """Carry out one known plan again."""
    given_here = given_values(given)
    token, told, beside = _token_of(target, trial)
    values = {**_from_file(), **beside, **given_here}
    is_reference = names_no_program(program) and not told
    theirs = {} if program or not told else {"command": told}
    if "resume-cmd" in beside and "resume-cmd" not in given_here:
        theirs["resume command"] = beside["resume-cmd"]
    if theirs:
        _show(theirs, values.get("durable"), target, trusts=trust)
    base = make_settings(
        values,
        command=program or told or REFERENCE,
        folder=Path.cwd(),
        reference_trainer=is_reference,
        **listed_findings(Path.cwd()),
    )
    content = decode(token)
    state = in_recording(content["plan"])
    if state is not None:
        token = encode({**content, "plan": "start:1"})  # no kill point is needed
    settings = _given_wins(settings_of(token, base), base, given_here)
    from spotchaos.cli.campaigns import carry_out

    if state is not None:
        from spotchaos.explore.exploration import replay

        def again(settings: Settings, listener: Listener) -> Outcome:
            return replay(settings, listener, content["plan"])

        return carry_out(again, settings, outputs_of(values))
    from spotchaos.campaign.campaign import run

    return carry_out(run, settings, outputs_of(values))


def _show(
    theirs: Mapping[str, tuple[str, ...]],
    durable: str | None,
    target: str,
    *,
    trusts: bool,
) -> None:
    """Print what a report wants run, before anything of it is run.

    Raises:
        UsageError: this machine cannot protect its user from it, and nobody vouches.
    """
    from spotchaos.launch.isolation.mechanisms import find_mechanisms

    for name, words in theirs.items():
        print(f"{name} of {_visible(target)}: {_visible(shlex.join(words))}")
    if durable is not None:
        print(f"durable folder of the replay: {_visible(durable)}")
    sys.stdout.flush()
    unprotected = find_mechanisms().unprotected()
    if unprotected and not trusts:
        raise UsageError(
            f"the command of {target!r} would run unprotected: {unprotected[0]}",
            hint="read the command; if you trust it, add --trust, or give your own"
            " after `--`",
        )


def _visible(text: str) -> str:
    """Return `text` with whatever a terminal would act on or hide spelled out."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in text
    )


def _token_of(
    target: str, trial: int | None
) -> tuple[str, tuple[str, ...], dict[str, Any]]:
    """Return the token to replay and, from a report, its command and what goes with it."""
    if target.startswith(PREFIX):
        if trial is not None:
            raise UsageError(
                "--trial goes with a report, not with a token", hint="leave out --trial"
            )
        return target, (), {}
    path = Path(target)
    if path.suffix != ".json" and not path.exists():
        # Neither: the token's own error names what is wrong with it.
        return target, (), {}
    from spotchaos.report.stored import read_report

    document = read_report(path)
    chosen = _trial_of(document["trials"], trial, target)
    if not chosen.get("replay"):
        raise ReportError(f"trial {chosen['number']} of {target!r} has no replay token")
    beside: dict[str, Any] = {}
    command, resume = document["command"], document.get("resume_command")
    if resume and resume != command:
        beside["resume-cmd"] = tuple(resume)
    if document.get("durable"):
        beside["durable"] = document["durable"]
    return chosen["replay"], tuple(command), beside


def _trial_of(
    trials: list[dict[str, Any]], number: int | None, target: str
) -> dict[str, Any]:
    if not trials:
        raise ReportError(f"the report {target!r} has no trials to replay")
    if number is None:
        return next((t for t in trials if t["verdict"] == "violated"), trials[0])
    for trial in trials:
        if trial["number"] == number:
            return trial
    numbers = [t["number"] for t in trials]
    raise ReportError(
        f"the report {target!r} has no trial {number}",
        hint=f"its trials are {min(numbers)} to {max(numbers)}",
    )


def _from_file() -> dict[str, Any]:
    """Return the file's values that a replay takes; the token brings the plan."""
    values = read_config(Path.cwd())
    return {k: v for k, v in values.items() if "replay" in BY_NAME[k].commands}


def _given_wins(replayed: Settings, base: Settings, given: dict[str, Any]) -> Settings:
    """Put back over the token what stands on the command line."""
    targets = {BY_NAME[name].target for name in given}
    if "grace" in given:
        targets = (targets - {"grace"}) | {"grace_s", "grace_steps"}
    own = {t: getattr(base, t) for t in targets if hasattr(base, t)}
    return replace(replayed, **own)
