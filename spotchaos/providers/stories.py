"""Stories: what a provider does to one machine, from the first word to the reclaim.

`story("azure-withdrawn")` names one. A story is a provider's own event (`aws`, `aws-stop`,
`azure-reboot`), alone or followed by one variant that fits every provider: `withdrawn`,
`early`, `late`, `missing`, `duplicated`, `overdue`; or by one fault of the metadata
service: `token-required`, `429`, ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

from spotchaos.errors import UsageError, closest
from spotchaos.providers.notice import (
    Follows,
    Notice,
    check_grace,
    check_seconds,
    check_time_scale,
)
from spotchaos.providers.profiles import profile
from spotchaos.providers.service_faults import ENDLESS, ServiceFault, TimedFault

# An agent once stopped machines 95 s before the announced time, 25 s into the 120.
# Source: runs-on/runs-on, thread 277.
EARLY_SHARE = 25 / 120
LATE_SHARE = 0.5
WITHDRAWN_SHARE = 0.5
AGAIN_SHARE = 0.25
OVERDUE_SHARE = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One notice of a story, in cloud seconds from the story's beginning."""

    kind: str
    grace_s: float
    at_s: float = 0.0
    # From `at_s`; None: it can never be read.
    readable_s: float | None = 0.0
    # From `at_s`; None: nothing follows.
    reclaim_s: float | None
    withdrawn_s: float | None = None
    follows: Follows = Follows.RECLAIM
    is_for_us: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """Everything that one provider will do to one machine; frozen."""

    name: str
    provider: str
    summary: str
    acts: tuple[Act, ...]
    # Arguments of the provider's class.
    settings: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    faults: tuple[ServiceFault, ...] = ()
    # ... that come at a moment of the story, and not from the start.
    timed_faults: tuple[TimedFault, ...] = ()
    # Sent to the program when the notice becomes readable; None: no signal comes.
    signal: str | None = None

    @property
    def grace_s(self) -> float:
        """Cloud seconds from the first announcement of the loss to its deadline."""
        losses = [act.grace_s for act in self.acts if act.reclaim_s is not None]
        return max(losses or [act.grace_s for act in self.acts], default=0.0)

    @property
    def lasts_s(self) -> float:
        """Cloud seconds from the beginning to the last thing that happens."""
        ends = [
            act.at_s + max(act.grace_s, act.reclaim_s or 0, act.withdrawn_s or 0)
            for act in self.acts
        ]
        return max(ends, default=0.0)

    @property
    def is_reclaimed(self) -> bool:
        """Whether the machine is lost in the end, if nobody interferes."""
        return any(act.reclaim_s is not None for act in self.acts)

    def begin(self, now: datetime, *, time_scale: float = 1.0) -> tuple[Notice, ...]:
        """Fix every moment of the story, beginning at `now`.

        Args:
            now: the real moment of the beginning.
            time_scale: cloud seconds per real second. The moments, and so the times that
                the answers show, are real ones: a program that subtracts its own clock
                from the deadline gets the seconds that it truly has.
        """
        check_time_scale(time_scale)

        def at(cloud_s: float) -> datetime:
            return now + timedelta(seconds=cloud_s / time_scale)

        def after(act: Act, cloud_s: float | None) -> datetime | None:
            return None if cloud_s is None else at(act.at_s + cloud_s)

        return tuple(
            Notice(
                kind=act.kind,
                announced_at=at(act.at_s),
                deadline=at(act.at_s + act.grace_s),
                readable_at=after(act, act.readable_s),
                reclaim_at=after(act, act.reclaim_s),
                withdrawn_at=after(act, act.withdrawn_s),
                follows=act.follows,
                is_for_us=act.is_for_us,
            )
            for act in self.acts
        )

    def withdrawn_after(self, cloud_s: float) -> Story:
        """Return the story in which each notice is taken back `cloud_s` after it came.

        Raises:
            UsageError: that is impossible, or later than the reclaim.
        """
        check_seconds(cloud_s, "withdrawal")
        for act in self.acts:
            if act.reclaim_s is not None and cloud_s > act.reclaim_s:
                raise UsageError(
                    f"a withdrawal after {cloud_s:g} s comes too late: "
                    f"{self.name!r} reclaims after {act.reclaim_s:g} s",
                    hint="withdraw before the reclaim",
                )
        acts = tuple(
            replace(act, withdrawn_s=cloud_s, reclaim_s=None) for act in self.acts
        )
        return replace(self, acts=acts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stem:
    """A provider's own event; `grace_s` None: the profile's."""

    provider: str
    kind: str
    summary: str
    grace_s: float | None = None
    follows: Follows = Follows.RECLAIM
    settings: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    signal: str | None = None
    is_for_us: bool = True
    # The event is under way when it is first seen: the grace window is all that is left.
    starts_at_once: bool = False


STEMS: Final[Mapping[str, _Stem]] = {
    "aws": _Stem(
        provider="aws", kind="terminate", summary="two minutes to termination"
    ),
    "aws-stop": _Stem(provider="aws", kind="stop", summary="two minutes to a stop"),
    "aws-hibernate": _Stem(
        provider="aws",
        kind="hibernate",
        summary="frozen with the notice, thawed later",
        grace_s=0,
        follows=Follows.FREEZE,
    ),
    "aws-rebalance": _Stem(
        provider="aws",
        kind="rebalance",
        summary="advice that no reclaim follows",
        follows=Follows.NOTHING,
    ),
    "aws-autoscaling": _Stem(
        provider="aws",
        kind="autoscaling",
        summary="the group moves the instance to Terminated; no Spot notice",
    ),
    "aws-maintenance": _Stem(
        provider="aws",
        kind="maintenance",
        summary="a scheduled stop of the host",
    ),
    "aws-no-time": _Stem(
        provider="aws",
        kind="terminate",
        summary="two minutes to termination; until then the time is a text that is none",
        settings={"time_while_silent": "not scheduled"},
    ),
    "gcp": _Stem(provider="gcp", kind="preempt", summary="preempted turns TRUE"),
    "gcp-shutdown": _Stem(
        provider="gcp",
        kind="preempt",
        summary="preempted turns TRUE as the guest is shut down (SIGTERM)",
        signal="TERM",
    ),
    "gcp-extended": _Stem(
        provider="gcp",
        kind="preempt",
        summary="a preemption notice of 120 s before the 30 s of shutdown",
        grace_s=150,
    ),
    "gcp-maintenance": _Stem(
        provider="gcp",
        kind="host-maintenance",
        summary="60 s to a stop for maintenance; the server answers 503 for a while",
        grace_s=60,
        settings={"unavailable_s": 0.5},
    ),
    "gcp-old-maintenance": _Stem(
        provider="gcp",
        kind="host-maintenance",
        summary="60 s to a stop for maintenance, under the older name",
        grace_s=60,
        settings={"stop_event": "SHUTDOWN_ON_HOST_MAINTENANCE"},
    ),
    "gcp-migrate": _Stem(
        provider="gcp",
        kind="live-migration",
        summary="60 s to a live migration; no reclaim follows",
        grace_s=60,
        follows=Follows.NOTHING,
    ),
    "azure": _Stem(provider="azure", kind="Preempt", summary="30 s to the eviction"),
    "azure-iso": _Stem(
        provider="azure",
        kind="Preempt",
        summary="30 s to the eviction; times as ISO 8601",
        settings={"time_format": "iso"},
    ),
    "azure-first-call": _Stem(
        provider="azure",
        kind="Preempt",
        summary="the service tells nothing in the two minutes after its first request",
        grace_s=300,
        settings={"enable_s": 120.0},
    ),
    "azure-terminate": _Stem(
        provider="azure", kind="Terminate", summary="5 min to a deletion", grace_s=300
    ),
    "azure-redeploy": _Stem(
        provider="azure", kind="Redeploy", summary="10 min to another node", grace_s=600
    ),
    "azure-reboot": _Stem(
        provider="azure", kind="Reboot", summary="15 min to a restart", grace_s=900
    ),
    # How long a machine lives once the event has started is not documented.
    "azure-hardware": _Stem(
        provider="azure",
        kind="Reboot",
        summary="a failure of hardware: the restart is Started when it is first seen",
        starts_at_once=True,
    ),
    "azure-freeze": _Stem(
        provider="azure",
        kind="Freeze",
        summary="15 min to a pause of seconds",
        grace_s=900,
        follows=Follows.FREEZE,
    ),
    "azure-other-vm": _Stem(
        provider="azure",
        kind="Preempt",
        summary="the eviction of another machine of the set",
        follows=Follows.NOTHING,
        is_for_us=False,
    ),
    "alibaba": _Stem(
        provider="alibaba", kind="release", summary="5 min to the release"
    ),
    "alibaba-empty": _Stem(
        provider="alibaba",
        kind="release",
        summary="5 min to the release; an empty item before, not a 404",
        settings={"absent": "empty"},
    ),
    "tencent": _Stem(
        provider="tencent", kind="terminate", summary="a termination time"
    ),
    "oracle": _Stem(
        provider="oracle", kind="preempt", summary="an event, then the end"
    ),
    "metaflow": _Stem(provider="metaflow", kind="terminate", summary="a file appears"),
    **{
        name: _Stem(provider=name, kind="shutdown", summary="SIGTERM", signal="TERM")
        for name in (
            "gke",
            "nebius",
            "yandex",
            "coreweave",
            "runpod",
            "kubernetes",
            "slurm",
        )
    },
    **{
        name: _Stem(provider=name, kind="stop", summary="no notice is documented")
        for name in ("vast", "verda", "salad")
    },
}


def _early(act: Act) -> Iterator[Act]:
    yield replace(act, reclaim_s=act.grace_s * EARLY_SHARE)


def _late(act: Act) -> Iterator[Act]:
    yield replace(act, readable_s=act.grace_s * LATE_SHARE)


def _missing(act: Act) -> Iterator[Act]:
    yield replace(act, readable_s=None)


def _withdrawn(act: Act) -> Iterator[Act]:
    yield replace(act, withdrawn_s=act.grace_s * WITHDRAWN_SHARE, reclaim_s=None)


def _duplicated(act: Act) -> Iterator[Act]:
    yield act
    # The second one names the same deadline: it is the same loss, told twice.
    gap_s = act.grace_s * AGAIN_SHARE
    rest_s = act.grace_s - gap_s
    yield replace(
        act,
        at_s=act.at_s + gap_s,
        grace_s=rest_s,
        reclaim_s=None if act.reclaim_s is None else rest_s,
    )


def _overdue(act: Act) -> Iterator[Act]:
    yield replace(act, reclaim_s=act.grace_s * OVERDUE_SHARE)


VARIANTS: Final[Mapping[str, Callable[[Act], Iterator[Act]]]] = {
    "early": _early,
    "late": _late,
    "missing": _missing,
    "withdrawn": _withdrawn,
    "duplicated": _duplicated,
    "overdue": _overdue,
}
# Which requests each fault strikes when a story is named after it: a burst of three, an
# event in mid-run (the third request that could carry a token), or for good.
SERVICE_VARIANTS: Final[Mapping[str, ServiceFault]] = {
    "token-required": ServiceFault("token-required", 1, ENDLESS),
    "token-expired": ServiceFault("token-expired", 3, 3),
    "token-revoked": ServiceFault("token-revoked", 3, 3),
    "hop-limit": ServiceFault("hop-limit", 1, ENDLESS),
    "403": ServiceFault("403", 1, ENDLESS),
    "429": ServiceFault("429", 1, 3),
    "500": ServiceFault("500", 1, 3),
    "503": ServiceFault("503", 1, 3),
    "slow": ServiceFault("slow", 1, ENDLESS),
    "closed": ServiceFault("closed", 1, 3),
}
TOKENS: Final = frozenset({"aws", "alibaba"})
_HTTP = {"aws", "gcp", "azure", "alibaba", "tencent"}


def stories() -> list[str]:
    """Return every name that `story` takes, sorted."""
    return sorted(name for stem in STEMS for name in _names(stem))


def story(name: str, *, grace_s: float | None = None) -> Story:
    """Return the story of that name.

    Args:
        name: one of `stories()`.
        grace_s: cloud seconds from the announcement to the deadline; None: the
            provider's own.

    Raises:
        UsageError: there is no such story; or it needs a grace window and none is
            documented; or the window is impossible.
    """
    stem_name, variant = _split(name)
    stem = STEMS[stem_name]
    grace_s = _grace_s(stem_name, stem, grace_s)
    act = Act(
        kind=stem.kind,
        grace_s=grace_s,
        reclaim_s=None if stem.follows is Follows.NOTHING else grace_s,
        follows=stem.follows,
        is_for_us=stem.is_for_us,
    )
    if stem.starts_at_once:
        act = replace(act, grace_s=0.0)
    if profile(stem.provider).notice == "none":
        act = replace(act, readable_s=None)
    told = Story(
        name=name,
        provider=stem.provider,
        summary=stem.summary,
        acts=(act,),
        settings=stem.settings,
        signal=stem.signal,
    )
    if variant in SERVICE_VARIANTS:
        return replace(told, faults=(SERVICE_VARIANTS[variant],))
    if variant == "first":  # aws-rebalance-first: the order in which FIS plays it
        return replace(told, acts=_rebalance_first(act))
    if variant:
        return replace(told, acts=tuple(VARIANTS[variant](act)))
    return told


def _grace_s(name: str, stem: _Stem, given_s: float | None) -> float:
    own = profile(stem.provider)
    if given_s is not None:
        return check_grace(given_s)
    if stem.grace_s is not None:
        return stem.grace_s
    if own.notice_s is not None:
        return own.notice_s
    if own.notice == "none":
        return 0.0
    raise UsageError(
        f"the notice of {name!r} has no length of its own ({own.says})",
        hint="give one with --grace SECONDS",
    )


def _rebalance_first(advice: Act) -> tuple[Act, ...]:
    """Advise, then give notice 20 s later, then reclaim, as fault injection on AWS does.

    Source: the printed run of spot-interrupter: rebalance at 0 s, notice at about 20 s,
    shutdown 120 s later.
    """
    loss = replace(
        advice,
        kind="terminate",
        at_s=20.0,
        reclaim_s=advice.grace_s,
        follows=Follows.RECLAIM,
    )
    return advice, loss


def _names(stem: str) -> Iterator[str]:
    provider = STEMS[stem].provider
    yield stem
    if stem == "aws-rebalance":
        yield "aws-rebalance-first"
    if profile(provider).notice == "none":
        return
    for variant in VARIANTS:
        yield f"{stem}-{variant}"
    if provider in _HTTP:
        for fault in SERVICE_VARIANTS:
            takes_tokens = fault.startswith("token-") or fault == "hop-limit"
            if provider in TOKENS or not takes_tokens:
                yield f"{stem}-{fault}"


def _split(name: str) -> tuple[str, str]:
    for stem in sorted(STEMS, key=len, reverse=True):
        if name in _names(stem):
            return stem, name[len(stem) :].removeprefix("-")
    raise UsageError(
        f"unknown provider or notice {name!r}",
        hint=closest(name, stories()) or f"notices are {', '.join(STEMS)}",
    )
