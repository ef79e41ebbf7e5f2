"""A story of several phases, told line by line: advice, a notice, its end, another, a fault.

A script is compiled into a `Story`, whose moments are all fixed when it begins: it plays
alike on every wire, and as fast as the clock that is injected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from spotchaos.errors import UsageError, closest
from spotchaos.providers.notice import check_seconds
from spotchaos.providers.service_faults import SERVICE_FAULTS, ServiceFault, TimedFault
from spotchaos.providers.stories import TOKENS, Act, Story, stories, story

WITHDRAW: Final = "withdraw"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cue:
    """One line of a script, in cloud seconds.

    `what` is a notice (`aws-rebalance`), a fault of the service (`503`, `429:2+`) or
    `withdraw`. A fault with `for_s` strikes all that it can in that time.
    """

    text: str  # as given, for messages
    at_s: float  # from the beginning
    what: str
    for_s: float | None = None
    grace_s: float | None = None  # of a notice; None: its own


def scripted(provider: str, cues: Sequence[Cue]) -> Story:
    """Return the story in which everything happens that a script says.

    Args:
        provider: whose service it is.
        cues: in any order.

    Raises:
        UsageError: a line means nothing to this provider, or cannot follow the others.
    """
    acts: list[Act] = []
    faults: list[TimedFault] = []
    settings: dict[str, Any] = {}
    for cue in sorted(cues, key=lambda cue: cue.at_s):
        check_seconds(cue.at_s, "moment")
        _demand_a_machine(cue, acts)
        if cue.what == WITHDRAW:
            _demand_no_more(cue, for_s=cue.for_s, grace_s=cue.grace_s)
            acts = _withdrawn(cue, acts)
        elif cue.what in stories():
            _demand_no_more(cue, for_s=cue.for_s)
            told = _notice(cue, provider)
            _demand_another(cue, told, acts)
            settings |= told.settings
            acts += [replace(act, at_s=act.at_s + cue.at_s) for act in told.acts]
        else:
            _demand_no_more(cue, grace_s=cue.grace_s)
            faults.append(_fault(cue, provider))
    return Story(
        name=f"{provider}-scripted",
        provider=provider,
        summary=f"a script of {len(cues)} phases",
        acts=tuple(acts),
        settings=MappingProxyType(settings),
        timed_faults=tuple(faults),
    )


def _notice(cue: Cue, provider: str) -> Story:
    told = story(cue.what, grace_s=cue.grace_s)
    if told.provider != provider:
        raise UsageError(
            f"{cue.what!r} in the phase {cue.text!r} is a notice of {told.provider}, and"
            f" {provider} is served",
            hint=f"give --provider {told.provider}, or another notice",
        )
    if told.faults:
        raise UsageError(
            f"{cue.what!r} in the phase {cue.text!r} is a notice and a fault in one",
            hint="give the fault a phase of its own",
        )
    return told


def _fault(cue: Cue, provider: str) -> TimedFault:
    name = cue.what.partition(":")[0]
    if name not in SERVICE_FAULTS:
        own = [one for one in stories() if one.split("-")[0] == provider]
        known = [*own, *SERVICE_FAULTS, WITHDRAW]
        raise UsageError(
            f"unknown notice or fault {cue.what!r} in the phase {cue.text!r}",
            hint=closest(cue.what, known)
            or f"a notice such as {provider!r}, {WITHDRAW!r}, or a fault:"
            f" {', '.join(SERVICE_FAULTS)}",
        )
    fault = ServiceFault.parse(cue.what)
    is_of_tokens = fault.is_of_tokens or name == "hop-limit"
    if is_of_tokens and provider not in TOKENS:
        raise UsageError(
            f"the phase {cue.text!r} is about tokens, and {provider} has none",
            hint=f"{' and '.join(sorted(TOKENS))} have tokens",
        )
    if cue.for_s is None:
        return TimedFault(fault, cue.at_s)
    check_seconds(cue.for_s, "duration")
    if fault.is_of_tokens or ":" in cue.what:
        raise UsageError(
            f"the phase {cue.text!r} does not last: it strikes at a moment, or so often",
            hint="leave out 'for ...'" + (", or the count" if ":" in cue.what else ""),
        )
    return TimedFault(fault, cue.at_s, cue.for_s)


def _demand_no_more(cue: Cue, **given: float | None) -> None:
    for name, value in given.items():
        if value is not None:
            word = name.removesuffix("_s")
            raise UsageError(
                f"{word!r} says nothing of {cue.what!r} in the phase {cue.text!r}",
                hint="'for' is of faults, 'grace' of notices",
            )


def _demand_a_machine(cue: Cue, acts: Sequence[Act]) -> None:
    ends = [act.at_s + act.reclaim_s for act in acts if act.reclaim_s is not None]
    if ends and min(ends) <= cue.at_s:
        raise UsageError(
            f"the phase {cue.text!r} comes after the machine is gone, at {min(ends):g} s",
            hint="let it come earlier, or withdraw the notice before",
        )


def _demand_another(cue: Cue, told: Story, acts: Sequence[Act]) -> None:
    kinds = {act.kind for act in told.acts}
    for act in acts:
        if act.kind in kinds and _is_in_force(act, cue.at_s):
            raise UsageError(
                f"at the phase {cue.text!r} the notice {act.kind!r} of {act.at_s:g} s is"
                " still in force",
                hint="withdraw it before, or use a notice such as aws-duplicated",
            )


def _withdrawn(cue: Cue, acts: Sequence[Act]) -> list[Act]:
    if not any(_is_in_force(act, cue.at_s) for act in acts):
        raise UsageError(
            f"at the phase {cue.text!r} no notice is in force",
            hint="announce one before withdrawing it",
        )
    return [
        replace(act, withdrawn_s=max(0.0, cue.at_s - act.at_s), reclaim_s=None)
        if act.withdrawn_s is None
        else act
        for act in acts
    ]


def _is_in_force(act: Act, at_s: float) -> bool:
    """Tell whether it has come by then and was not taken back; the machine lives."""
    return act.withdrawn_s is None and act.at_s <= at_s
