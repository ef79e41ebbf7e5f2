"""`spotchaos imds`: a metadata server that plays a notice, for anybody's test."""

from __future__ import annotations

from dataclasses import replace

import click

from spotchaos.cli.serve import interruptible, say
from spotchaos.errors import UsageError
from spotchaos.providers import PROVIDERS
from spotchaos.providers.service import NoticeService
from spotchaos.providers.service_faults import ENDLESS, ServiceFault
from spotchaos.providers.serving import on_loopback
from spotchaos.providers.stories import STEMS, Story, story
from spotchaos.spellings import seconds


def _seconds(text: str) -> float:
    """Read seconds as `run` does: `10`, `10s`, `2min`."""
    try:
        return seconds(text)
    except ValueError:
        raise UsageError(
            f"{text!r} is no number of seconds", hint="write 10, 10s or 2min"
        ) from None


EPILOG = """\b
  spotchaos imds --provider aws --after 10s
  spotchaos imds --provider azure --after 5 --withdraw-after 12 --time-scale 2
  curl -X POST http://127.0.0.1:PORT/_spotchaos/announce
  curl -X POST 'http://127.0.0.1:PORT/_spotchaos/fault?name=429&count=1+'

Orders: POST /_spotchaos/announce, /withdraw, /fault?name=...&count=..., /reset;
GET /_spotchaos/log. Runs until interrupted."""


@click.command(epilog=EPILOG)
@click.option(
    "--provider",
    metavar="NAME",
    required=True,
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
    default=1.0,
    show_default=True,
    metavar="X",
    help="cloud seconds per real second",
)
def command(
    *,
    provider: str,
    port: int,
    after_s: float | None,
    withdraw_s: float | None,
    action: str | None,
    require_token: bool,
    grace_s: float | None,
    time_scale: float,
) -> None:
    """Serve a provider's metadata on 127.0.0.1, and play a notice when told."""
    told = _story(provider, action=action, grace_s=grace_s)
    if withdraw_s is not None:
        told = told.withdrawn_after(withdraw_s)
    if require_token:
        needs_token = ServiceFault("token-required", 1, ENDLESS)
        told = replace(told, faults=(*told.faults, needs_token))
    service = NoticeService(told, time_scale=time_scale, on_entry=say)
    with interruptible() as interrupted, on_loopback(service, port=port) as base_url:
        if after_s is not None:
            service.announce(after_s=after_s)
        say(base_url)
        interrupted.wait()


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
