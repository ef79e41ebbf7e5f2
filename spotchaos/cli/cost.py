"""`spotchaos cost`: what training on spot machines costs, and how often to save."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from spotchaos.config.spellings import file_name, seconds
from spotchaos.errors import UsageError
from spotchaos.trace.timing import Timing

EPILOG = """\b
  spotchaos cost report.json --hours 60 --mtbf 4 --provider aws
    --spot-price 0.92 --on-demand-price 3.06
  spotchaos cost report.json --hours 60 --trace traces/ --deadline 80
  spotchaos cost --hours 60 --mtbf 4 --html cost.html -- python train.py

A report is one of `spotchaos run --json`; a command is measured first, in two runs.
No price is built in. A trace is {"metadata": {"gap_seconds": 195}, "data": [1, 0, ...]}:
machines that could be had at each tick."""

# Option -> the time that it gives in place of a measured one.
GIVEN = {
    "step_seconds": "step_s",
    "save_stall": "save_stall_s",
    "save_seconds": "save_end_s",
    "start_seconds": "cold_start_s",
    "resume_seconds": "resumed_start_s",
    "notice_needs": "notice_s",
}


class _Seconds(click.ParamType):  # type: ignore[type-arg]
    name = "SECONDS"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        try:
            return seconds(str(value))
        except ValueError:
            self.fail(f"{value!r} is no number of seconds: write 10, 10s or 2min")


class _Weibull(click.ParamType):  # type: ignore[type-arg]
    name = "SHAPE,HOURS"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[float, float]:
        try:
            shape, scale = (float(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is no shape and scale: write 0.7,4")
        return shape, scale


class _Command(click.Command):
    """A command that knows what stood after `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        head, tail = args, []
        if "--" in args:
            place = args.index("--")
            head, tail = args[:place], args[place + 1 :]
            if not tail:
                raise UsageError(
                    "nothing stands after --", hint="write the command there"
                )
        ctx.meta["program"] = tuple(tail)
        return super().parse_args(ctx, head)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["[REPORT.json] [options] [-- COMMAND]"]


def _options(*rows: tuple[Any, ...]) -> Callable[[Any], Any]:
    def decorate(function: Any) -> Any:
        for spelled, kind, text in reversed(rows):
            name, _, metavar = spelled.partition(" ")
            more: dict[str, Any] = {"is_flag": True}
            if kind is not bool:
                more = {"type": kind, "metavar": metavar or None}
            function = click.option(name, help=text, default=None, **more)(function)
        return function

    return decorate


class _File(click.ParamType):  # type: ignore[type-arg]
    """The name of a file or folder, which is no option that went astray."""

    name = "file"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Path:
        try:
            return file_name(str(value))
        except ValueError:
            option = param.opts[0] if param is not None else "a file"
            raise UsageError(
                f"{option} is {value!r}, which is no name of a file",
                hint="give a name that does not begin with a dash, such as ./cost.json",
            ) from None


SECONDS, FILE = _Seconds(), _File()


@click.command(cls=_Command, epilog=EPILOG)
@click.argument("report", metavar="[REPORT.json]", required=False, type=FILE)
@_options(
    ("--steps N", int, "steps to train"),
    ("--hours H", float, "hours to train, uninterrupted; instead of --steps"),
    ("--nodes N", int, "machines, lost as one (default: 1)"),
    ("--elastic", bool, "go on with fewer machines"),
    ("--save-every N", int, "steps from save to save now (default: as measured)"),
    ("--deadline H", float, "hours by which it has to be finished"),
    ("--mtbf H", float, "hours until one machine is taken, exponential"),
    ("--weibull", _Weibull(), "hours until one machine is taken, Weibull"),
    ("--provider NAME", str, "whose notice and billing count"),
    ("--notice-seconds", SECONDS, "from a notice to the reclaim (default: provider's)"),
    ("--restart-seconds", SECONDS, "from getting a machine to its being up; paid"),
    ("--image-pull", SECONDS, "of the image, on each new machine; paid"),
    ("--queue", SECONDS, "from asking for a machine to getting it; not paid"),
    ("--spot-price X", float, "dollars for a spot machine and hour"),
    ("--on-demand-price X", float, "dollars for an on-demand machine and hour"),
    ("--storage-price X", float, "dollars for a gigabyte and month of checkpoints"),
    ("--checkpoints-kept N", int, "that lie in storage (default: 1)"),
    ("--billing", SECONDS, "seconds to which a lease is rounded up"),
    ("--billing-minimum", SECONDS, "the least that is billed of a lease"),
    ("--free-first", SECONDS, "a spot machine taken back within it is free"),
    ("--step-seconds", SECONDS, "of a step; instead of what was measured"),
    ("--save-stall", SECONDS, "by which a save delays training"),
    ("--save-seconds", SECONDS, "until a save is whole"),
    ("--start-seconds", SECONDS, "from start to first step"),
    ("--resume-seconds", SECONDS, "from start to first step, with a checkpoint"),
    ("--notice-needs", SECONDS, "from a notice until its save is whole"),
    (
        "--background-stall",
        SECONDS,
        "by which a save in the background delays training",
    ),
    ("--runs N", int, "simulated of each policy (default: 200)"),
    ("--seed N", int, "draws failures and beginnings (default: 0)"),
    ("--json FILE", FILE, "write the study"),
    ("--html FILE", FILE, "write a page with drawings"),
)
@click.option(
    "--trace",
    "traces",
    type=FILE,
    multiple=True,
    metavar="FILE",
    help="may be given several times: a trace, or a folder of one for each zone",
)
@click.pass_context
def command(ctx: click.Context, /, report: Path | None, **given: Any) -> None:
    """Say what training costs on spot machines, under each policy, and what to change."""
    program: tuple[str, ...] = ctx.meta["program"]
    if report is not None and program:
        raise UsageError("a report and a command are given", hint="give one of them")
    from spotchaos.cost.asking import question_of, with_given
    from spotchaos.report.formats import check_writable

    asked = _asked(given)
    for path in (given["json"], given["html"]):
        if path is not None:
            check_writable(path)
    timing = Timing()
    if report is not None:
        timing = _reported(report)
    elif program:
        if (asked.steps is None) == (asked.hours is None):
            question_of(Timing(), asked)  # says so before hours are spent
        timing = _measured(program, notice=given["provider"])
    question = question_of(timing, asked)
    document = _study(question, with_given(timing, asked.given), timing, asked)
    _show(document, given)


def _study(question: Any, timing: Timing, measured: Timing, asked: Any) -> Any:
    from dataclasses import replace

    from spotchaos.cost.asking import question_of
    from spotchaos.cost.cost_document import make_document
    from spotchaos.cost.study import alone, study

    found = study(question)
    quick = slow = None
    if measured.step_s is not None and measured.step_s.n > 1:
        # As much work as it is at the medians, whatever a step takes.
        same = replace(asked, steps=question.job.steps, hours=None)
        quick, slow = (
            alone(question_of(measured, same, share=share), found.rows[0].policy)
            for share in ("p10", "p90")
        )
    return make_document(found, timing, quick=quick, slow=slow)


def _asked(given: Mapping[str, Any]) -> Any:
    from spotchaos.cost.asking import Asked
    from spotchaos.cost.traces import read_traces

    billing, notice_s = _provided(given)
    plain = {
        "steps": given["steps"],
        "hours": given["hours"],
        "nodes": given["nodes"],
        "is_elastic": given["elastic"],
        "every": given["save_every"],
        "deadline_h": given["deadline"],
        "mtbf_h": given["mtbf"],
        "weibull": given["weibull"],
        "notice_s": notice_s,
        "queue_s": given["queue"],
        "spot_price": given["spot_price"],
        "on_demand_price": given["on_demand_price"],
        "storage_price": given["storage_price"],
        "checkpoints_kept": given["checkpoints_kept"],
        "background_stall_s": given["background_stall"],
        "runs": given["runs"],
        "seed": given["seed"],
    }
    boots = [given["restart_seconds"], given["image_pull"]]
    times = {name: given[option] for option, name in GIVEN.items()}
    return Asked(
        traces=read_traces(given["traces"]),
        billing=billing,
        provision_s=sum(each for each in boots if each is not None),
        given={name: s for name, s in times.items() if s is not None},
        **{name: value for name, value in plain.items() if value is not None},
    )


def _provided(given: Mapping[str, Any]) -> tuple[Any, float | None]:
    """Return billing and notice: as given, else as the provider has them."""
    from spotchaos.cost.billing import Billing
    from spotchaos.cost.units import us
    from spotchaos.providers.profiles import profile

    known = profile(given["provider"]) if given["provider"] else None
    rounds_s = known.billing_s if known is not None else None
    least_s = known.billing_minimum_s if known is not None else None
    free_s = known.free_first_s if known is not None else None

    def either(option: str, of_provider: float | None, default: float) -> float:
        found = given[option]
        if found is None:
            found = of_provider
        if found is not None and not 0 <= found < float("inf"):
            raise UsageError(f"--{option.replace('_', '-')} is no time: {found:g} s")
        return default if found is None else float(found)

    rounding = either("billing", rounds_s, 1.0)
    least = either("billing_minimum", least_s, 0.0)
    if rounding <= 0:
        raise UsageError("--billing is to be more than 0 s")
    billing = Billing(
        granularity_us=max(1, us(rounding)),
        minimum_us=us(least),
        free_us=us(either("free_first", free_s, 0.0)),
    )
    notice_s = given["notice_seconds"]
    if notice_s is None and known is not None:
        notice_s = known.notice_s
    return billing, notice_s


def _reported(path: Path) -> Timing:
    from spotchaos.report.stored import read_report

    timing = Timing.from_report(read_report(path).get("timing"))
    if timing.step_s is None:
        raise UsageError(
            f"the report {str(path)!r} measured nothing: it has no time of a step",
            hint="write it again with `spotchaos run --json` of this release",
        )
    return timing


def _measured(program: tuple[str, ...], *, notice: str | None) -> Timing:
    """Measure a command, and hear of its notice if the provider's can be played."""
    from rich.console import Console

    from spotchaos.campaign.timed_runs import measure
    from spotchaos.config.option_files import read_config
    from spotchaos.config.options import make_settings, options_of
    from spotchaos.events import Event, PhaseStarted
    from spotchaos.providers.stories import STEMS

    console = Console(stderr=True, highlight=False, markup=False)

    def tell(event: Event) -> None:
        if isinstance(event, PhaseStarted):
            console.print(f"measuring: {event.name}", style="dim")

    folder = Path.cwd()
    known = {option.name for option in options_of("run")}
    values = {k: v for k, v in read_config(folder).items() if k in known}
    if notice in STEMS:
        values.setdefault("notice", notice)
    return measure(make_settings(values, command=program, folder=folder), tell)


def _show(document: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    from rich.console import Console
    from rich.text import Text

    from spotchaos.report.cost_screen import cost_screen
    from spotchaos.report.screen import plain

    lines = cost_screen(document)
    if sys.stdout.isatty():
        console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        for line in lines:
            console.print(Text.assemble(*line) if line else "")
    else:
        sys.stdout.write(plain(lines))
    if given["json"] is not None:
        text = json.dumps(document, indent=1) + "\n"
        given["json"].write_text(text, encoding="utf-8")
    if given["html"] is not None:
        from spotchaos.report.cost_page import render

        given["html"].write_text(render(document), encoding="utf-8")
