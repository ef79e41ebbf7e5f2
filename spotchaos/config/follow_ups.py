"""What follows the first signal of an attempt: a second one, and ranks struck in turn."""

from __future__ import annotations

from dataclasses import dataclass

from spotchaos.config.plan import KillPoint
from spotchaos.errors import PlanError, UsageError
from spotchaos.trace.format import FILE_SITES, PROBE_SITES

# STOP is answered by CONT a moment later, which would undo it for who follows.
FOLLOWING = ("KILL", "TERM", "INT", "HUP", "USR1", "USR2")
# An attempt passes the others before anything could strike it, or only as it ends.
_FITTING = tuple(s for s in (*PROBE_SITES, *FILE_SITES) if s not in ("start", "finish"))


@dataclass(frozen=True, slots=True)
class FollowUp:
    """A signal that follows the first one, or the notice, in the same attempt.

    Attributes:
        signal: without SIG; KILL is the reclaim, before the grace window ends.
        point: where or when, counted from the first signal.
    """

    signal: str
    point: KillPoint

    @classmethod
    def parse(cls, text: str) -> FollowUp:
        """Read `TERM@save-begin`, `TERM@step-end:2`, `KILL@write:1/half` or `INT@0.5s`.

        Raises:
            UsageError: it is none of these.
        """
        name, at, where = text.strip().partition("@")
        name = name.upper().removeprefix("SIG")
        if name not in FOLLOWING or not at:
            raise UsageError(
                f"--then is {text!r}",
                hint=f"write SIGNAL@SITE:N or SIGNAL@SECONDSs, such as TERM@save-begin:1;"
                f" signals are {', '.join(FOLLOWING)}",
            )
        if where in _FITTING:
            where += ":1"
        try:
            point = KillPoint.parse(where)
        except PlanError as error:
            raise UsageError(f"--then is {text!r}: {error}", hint=error.hint) from None
        if point.after_s is None and point.site not in _FITTING:
            raise UsageError(
                f"--then is {text!r}, which names no site that can follow a signal",
                hint=f"choose one of {', '.join(_FITTING)}, or seconds",
            )
        return cls(name, point)

    def __str__(self) -> str:
        return f"{self.signal}@{self.point}"


def ranks_in_order(target: str) -> tuple[str, ...]:
    """Return each rank of `rank:2,0,1` by itself, in the order in which it is written."""
    ranks = target.removeprefix("rank:").split(",")
    return tuple(f"rank:{rank}" for rank in dict.fromkeys(ranks))
