"""What passes between a program and a metadata service: one request, one response.

Both are frozen and know no socket: the three wires of `serving.py` translate them.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from spotchaos.providers.notice import Notice

NO_ITEMS: Mapping[str, str] = MappingProxyType({})


class Delivery(StrEnum):
    """What the wire does with a response."""

    ANSWER = "answer"
    HOLD = "hold"  # nothing to say yet: ask again when something changes
    SILENCE = "silence"  # the packets do not arrive: the client times out
    CLOSE = "close"  # the connection is closed without an answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request as a metadata service sees it."""

    method: str
    path: str
    received_at: datetime
    query: Mapping[str, str] = field(default_factory=dict)
    # Names in lower case.
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @classmethod
    def of(
        cls,
        method: str,
        url: str,
        *,
        at: datetime,
        headers: Mapping[str, str] = NO_ITEMS,
        body: bytes = b"",
    ) -> Self:
        """Take a URL or a bare path apart; header names may have any case."""
        parts = urlsplit(url)
        return cls(
            method=method.upper(),
            path=unquote(parts.path) or "/",
            received_at=at,
            query=dict(parse_qsl(parts.query, keep_blank_values=True)),
            headers={name.lower(): value for name, value in headers.items()},
            body=body,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One answer, and what the request changed."""

    status: int = 200
    body: bytes = b""
    content_type: str = "text/plain"
    headers: Mapping[str, str] = field(default_factory=dict)
    delivery: Delivery = Delivery.ANSWER
    # With HOLD: when to ask again at the latest; None: only when something changes.
    hold_until: datetime | None = None
    # The provider as it stands after this request; None: unchanged.
    after: Provider | None = None
    # For the log: what was unusual.
    note: str = ""


class Provider(Protocol):
    """Answers metadata requests as one cloud would, from its notices and the time.

    Implementations are frozen dataclasses; a request that changes something (a token is
    no such thing, an acknowledgement is) returns the changed copy in `Response.after`.
    """

    @property
    def notices(self) -> tuple[Notice, ...]: ...

    def reply(self, request: Request, now: datetime) -> Response:
        """Answer `request` at `now`; a pure function of both and of `self`."""
        ...

    def with_notices(self, notices: tuple[Notice, ...]) -> Provider:
        """Return a copy that tells of `notices` and of no others."""
        ...

    def without_tokens(self) -> Provider:
        """Return a copy for which every token issued so far is invalid."""
        ...

    def requiring_tokens(self) -> Provider:
        """Return a copy that answers no request without a token."""
        ...

    def refusal(self, status: int) -> Response:
        """Return this cloud's page for an error status."""
        ...

    def documents(self, now: datetime) -> Mapping[str, Request]:
        """Return, by relative file name, a proper request for each item of interest."""
        ...


class TokenIsBad(Exception):  # noqa: N818 - it is a fact about a request, not an error
    """A token that was never issued here, has run out, or was revoked."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Issues session tokens and checks them without remembering any.

    A token carries its moment and its time to live, signed with `seed`; so `reply` stays
    a pure function. Times to live count real seconds, since the client keeps its own
    clock. Tokens of an earlier generation are revoked.
    """

    seed: str = "spotchaos"
    generation: int = 0

    def issue(self, now: datetime, ttl_s: int) -> str:
        """Return a new token for `ttl_s` seconds from `now`."""
        claim = json.dumps([now.isoformat(), ttl_s, self.generation]).encode()
        return base64.urlsafe_b64encode(self._sign(claim) + claim).decode()

    def check(self, token: str, now: datetime) -> None:
        """Return if `token` is good at `now`.

        Raises:
            TokenIsBad: with the reason, for the log.
        """
        try:
            signed = base64.urlsafe_b64decode(token)
            claim = signed[16:]
            if not hmac.compare_digest(signed[:16], self._sign(claim)):
                raise TokenIsBad("token unknown")
            issued_at, ttl_s, generation = json.loads(claim)
        except ValueError:
            raise TokenIsBad("token unknown") from None
        if generation != self.generation:
            raise TokenIsBad("token revoked")
        if now >= datetime.fromisoformat(issued_at) + timedelta(seconds=ttl_s):
            raise TokenIsBad("token expired")

    def revoked(self) -> Tokens:
        """Return an issuer for which every token issued so far is invalid."""
        return replace(self, generation=self.generation + 1)

    def _sign(self, claim: bytes) -> bytes:
        return hmac.new(self.seed.encode(), claim, hashlib.sha256).digest()[:16]


def read_ttl_s(text: str | None) -> int | None:
    """Read a token's time to live, 1 to 21600 seconds; None if it is not one.

    Source:
        EC2 User Guide, "Use IMDSv2"; Alibaba ECS, "View instance metadata": both give
        1 to 21600.
    """
    number = "" if text is None else text.strip()
    # More digits than these are too long in any case, and int() has a limit of its own.
    if not number.isdecimal() or len(number) > 9:
        return None
    ttl_s = int(number)
    return ttl_s if 1 <= ttl_s <= 21_600 else None
