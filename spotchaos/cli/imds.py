"""`spotchaos imds`: a metadata server that plays a notice, for anybody's test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event

import click

from spotchaos.cli.imds_script import Script, cue, script
from spotchaos.cli.serve import interruptible, say
from spotchaos.config.spellings import file_name, seconds
from spotchaos.errors import UsageError
from spotchaos.providers import PROVIDERS
from spotchaos.providers.scripts import Cue, scripted
from spotchaos.providers.service import NoticeService
from spotchaos.providers.service_faults import ENDLESS, ServiceFault
from spotchaos.providers.serving import on_loopback
from spotchaos.providers.stories import STEMS, Story, story


def _seconds(text: str) -> float:
    """Read seconds as `run` does: `10`, `10s`, `2min`."""
    try:
        return seconds(text)
    except ValueError:
        raise UsageError(
            f"{text!r} is no number of seconds", hint="write 10, 10s or 2min"
        ) from None


def _file(text: str) -> Path:
    try:
        return file_name(text)
    except ValueError:
        raise UsageError(
            f"--scenario is {text!r}, which is no name of a file",
            hint="write FILE; ./-x is a file whose name begins with -",
        ) from None


EPILOG = """\b
  spotchaos imds --provider aws --after 10s
  spotchaos imds --provider azure --after 5 --withdraw-after 12 --time-scale 2
  spotchaos imds --provider aws --phase '5s aws-rebalance' --phase '20s aws'
    --phase '30s withdraw' --phase '70s token-revoked' --phase '80s 503 for 10s'
  spotchaos imds --scenario phases.toml --time-scale 10
  curl -X POST http://127.0.0.1:PORT/_spotchaos/announce
  curl -X POST 'http://127.0.0.1:PORT/_spotchaos/fault?name=429&count=1+'

Orders: POST /_spotchaos/announce, /withdraw, /fault?name=...&count=..., /reset;
GET /_spotchaos/log. Runs until interrupted.

A phase is TIME WHAT, in cloud seconds from the start: WHAT is a notice (with
'grace TIME'), 'withdraw', or a fault of the service, which strikes the next
request, the Nth ('429:2'), all from then on ('403:1+'), or all 'for TIME'. A file
holds provider = "aws", phases = ["5s aws-rebalance", "20s aws"], time-scale = 10."""


@click.command(epilog=EPILOG)
@click.option(
    "--provider",
    metavar="NAME",
    help="aws, gcp, azure, alibaba, tencent, or a notice such as aws-early",
)
@click.option("--port", type=int, default=0, metavar="N", help="default: a free one")
@click.option(
    "--after",
    "after_s",
    type=_seconds,
    metavar="SECONDS",
    help="announce after so many cloud seconds (default: when ordered)",
)
@click.option(
    "--withdraw-after",
    "withdraw_s",
    type=_seconds,
    metavar="SECONDS",
    help="withdraw so many cloud seconds after the announcement",
)
@click.option(
    "--action",
    type=click.Choice(["terminate", "stop", "hibernate"]),
    help="what the notice of aws names (default: terminate)",
)
@click.option(
    "--phase",
    "phases",
    multiple=True,
    metavar="'TIME WHAT'",
    help="what happens, and when, such as '80s 503 for 10s'; may be given several times",
)
@click.option(
    "--scenario",
    "scenario",
    type=_file,
    metavar="FILE",
    help="phases from a TOML file",
)
@click.option("--require-token", is_flag=True, help="refuse requests without a token")
@click.option(
    "--grace",
    "grace_s",
    type=_seconds,
    metavar="SECONDS",
    help="cloud seconds from the notice to its deadline (default: the provider's own)",
)
@click.option(
    "--time-scale",
    type=float,
    metavar="X",
    help="cloud seconds per real second (default: 1)",
)
def command(
    *,
    provider: str | None,
    port: int,
    after_s: float | None,
    withdraw_s: float | None,
    action: str | None,
    phases: Sequence[str],
    scenario: Path | None,
    require_token: bool,
    grace_s: float | None,
    time_scale: float | None,
) -> None:
    """Serve a provider's metadata on 127.0.0.1, and play a notice when told."""
    read = script(scenario) if scenario is not None else Script(())
    cues = (*read.cues, *map(cue, phases))
    provider = provider or read.provider
    if provider is None:
        raise UsageError("no provider is named", hint="give --provider aws")
    if cues:
        _demand_none("--action", action)
        _demand_none("--grace", grace_s)
        _demand_none("--withdraw-after", withdraw_s)
        told = scripted(_alone(provider), cues)
        after_s = after_s or 0.0
    else:
        told = _story(provider, action=action, grace_s=grace_s)
    if withdraw_s is not None:
        told = told.withdrawn_after(withdraw_s)
    if require_token:
        needs_token = ServiceFault("token-required", 1, ENDLESS)
        told = replace(told, faults=(*told.faults, needs_token))
    if time_scale is None:
        time_scale = 1.0 if read.time_scale is None else read.time_scale
    service = NoticeService(told, time_scale=time_scale, on_entry=say)
    with interruptible() as interrupted, on_loopback(service, port=port) as base_url:
        begins = service.clock.now()
        if after_s is not None:
            service.announce(after_s=after_s)
            begins += timedelta(seconds=after_s / time_scale)
        say(base_url)
        _emit(cues, service, begins=begins, interrupted=interrupted)
        interrupted.wait()


def _emit(
    cues: Sequence[Cue], service: NoticeService, *, begins: datetime, interrupted: Event
) -> None:
    """Say each phase when it comes."""
    for one in sorted(cues, key=lambda one: one.at_s):
        comes = begins + timedelta(seconds=one.at_s / service.time_scale)
        left_s = (comes - service.clock.now()).total_seconds()
        if interrupted.wait(max(0.0, left_s)):
            return
        say(f"{comes:%H:%M:%S.%f} phase {one.text}")


def _demand_none(option: str, value: object) -> None:
    if value is not None:
        raise UsageError(f"{option} does not go with phases", hint="say it in a phase")


def _alone(name: str) -> str:
    """Return the provider of that name, which serves a script."""
    provider = _story(name, action=None, grace_s=None).provider
    if provider != name:
        raise UsageError(
            f"{name!r} is a notice, and phases are given",
            hint=f"give --provider {provider}, and the notice in a phase",
        )
    return provider


def _story(name: str, *, action: str | None, grace_s: float | None) -> Story:
    if action is not None:
        if name != "aws":
            raise UsageError(
                f"--action {action} does not fit {name!r}",
                hint="only aws names an action in its notice",
            )
        name = "aws" if action == "terminate" else f"aws-{action}"
    told = story(name, grace_s=grace_s)
    if told.provider not in PROVIDERS:
        served = ", ".join(n for n, stem in STEMS.items() if stem.provider in PROVIDERS)
        raise UsageError(
            f"{name!r} has no metadata service to imitate", hint=f"choose of {served}"
        )
    return told
