"""`spotchaos explain`: what a finding means, how it arises, how to mend it."""

from __future__ import annotations

import sys

import click

from spotchaos.errors import UsageError, closest
from spotchaos.explanations import page
from spotchaos.findings import FINDINGS, NOTES

_HEADINGS = {
    "resume": "Resume",
    "state": "State",
    "data": "Data",
    "divergence": "Divergence",
    "durability": "Durability",
    "interruption": "Interruption",
    "ranks": "Ranks",
    "storage": "Storage",
    "outputs": "Outputs",
    "tool": "The tool could not tell (verdict unknown)",
}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("finding", metavar="[FINDING]", required=False)
def command(finding: str | None) -> int:
    """Say what a finding means; without a name, list them all."""
    if finding is None:
        _list()
        return 0
    known = (*FINDINGS, *NOTES)
    if finding not in known:
        holding = [name for name in known if finding in name]
        raise UsageError(
            f"unknown finding {finding!r}",
            hint=closest(finding, known)
            or (f"one of {', '.join(holding)}?" if holding else None)
            or "`spotchaos explain` lists them all",
        )
    _show(page(finding))
    return 0


def _list() -> None:
    width = max(len(name) for name in (*FINDINGS, *NOTES))
    for group, heading in _HEADINGS.items():
        print(heading)
        for kind in FINDINGS.values():
            if kind.group == group:
                print(f"  {kind.name:<{width}}  {kind.summary}")
        print()
    print("Notes (seen, and no promise broken)")
    for name, summary in NOTES.items():
        print(f"  {name:<{width}}  {summary}")


def _show(text: str) -> None:
    """Render Markdown on a terminal; give the text itself to a file or a pipe."""
    if not sys.stdout.isatty():
        sys.stdout.write(text)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console(width=min(88, Console().width))
    console.print(Markdown(text))
