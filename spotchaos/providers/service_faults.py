"""What can be wrong with a metadata service itself, and which requests it strikes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

from spotchaos.errors import UsageError, closest
from spotchaos.providers.exchange import Request

# How long a slow service takes, in real seconds: longer than the 1 s that botocore waits
# and the 2 s that aws-node-termination-handler waits.
SLOW_S = 3.0

SERVICE_FAULTS: Final = {
    "token-required": "requests without a token are refused from then on",
    "token-expired": "every token issued so far runs out",
    "token-revoked": "every token issued so far is revoked",
    "hop-limit": "the answer to a token request does not arrive",
    "400": "the service finds the request malformed",
    "401": "the service finds the token invalid",
    "403": "the service is switched off",
    "404": "the service knows of nothing",
    "429": "the service throttles",
    "500": "the service fails",
    "503": "the service is unavailable",
    "slow": f"the answer takes {SLOW_S:g} s",
    "closed": "the connection is closed without an answer",
}
_COUNT = re.compile(r"(?P<first>[1-9]\d*)(?P<on>\+)?")
ENDLESS = 1 << 62


@dataclass(frozen=True, slots=True)
class ServiceFault:
    """A fault of the service, on the requests numbered `first` to `last` that it can strike."""

    name: str
    first: int = 1
    last: int = 1

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `NAME[:N]`: on the Nth request that it can strike; `N+`: from then on.

        Raises:
            UsageError: the name or the count is unknown; the hint names the nearest.
        """
        name, colon, count = text.partition(":")
        if name not in SERVICE_FAULTS:
            raise UsageError(
                f"unknown fault {name!r} of a metadata service",
                hint=closest(name, SERVICE_FAULTS)
                or f"faults are {', '.join(SERVICE_FAULTS)}",
            )
        first, last = read_count(text, count) if colon else (1, 1)
        return cls(name, first, last)

    def can_inject(self, request: Request) -> bool:
        """Tell whether `request` is one of those that this fault counts."""
        is_token_request = request.method == "PUT"
        if self.name == "hop-limit":
            return is_token_request
        if self.is_of_tokens:
            return not is_token_request
        return True

    @property
    def is_of_tokens(self) -> bool:
        """Whether it changes which tokens are good: it happens once, and stays."""
        return self.name.startswith("token-")

    def injects(self, number: int) -> bool:
        """Tell whether it strikes the `number`th request that it can strike, from 1."""
        return self.first <= number <= self.last

    def __str__(self) -> str:
        if self.last >= ENDLESS:
            return f"{self.name}:{self.first}+"
        if self.last > self.first:
            return f"{self.name}:{self.first}-{self.last}"
        return f"{self.name}:{self.first}"


@dataclass(frozen=True, slots=True)
class TimedFault:
    """A fault that comes at a moment of a story, in cloud seconds from its beginning.

    From then on it counts as any other; with `for_s` it strikes all that it can for so
    long.
    """

    fault: ServiceFault
    at_s: float
    for_s: float | None = None


def read_count(text: str, count: str) -> tuple[int, int]:
    """Read `N` or `N+` as the first and last number struck.

    Args:
        text: the whole fault as given, for the message.
        count: what stands after its colon.

    Raises:
        UsageError: it is neither; occurrences count from 1.
    """
    match = _COUNT.fullmatch(count)
    if match is None:
        raise UsageError(
            f"fault {text!r} has no count {count!r}",
            hint="counts begin at 1: write 3 for the third time, 3+ from then on",
        )
    first = int(match["first"])
    return first, ENDLESS if match["on"] else first
