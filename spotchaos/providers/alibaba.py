"""Alibaba Cloud ECS: the release time of a spot instance, five minutes ahead.

Source: Alibaba ECS docs, "Detect and handle spot instance interruptions", "View instance
metadata" (the token of security hardening mode lives 1 to 21600 s). The item is the UTC
time of the release when the instance is marked; otherwise absent or empty. The same fact
is in the API as `OperationLocks[].LockReason == Recycling`, which is not imitated.

Not verified: the status without a token in hardened mode (403 here) and with a bad one
(401 here).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import ClassVar, Literal, Self

from spotchaos.providers.exchange import (
    Request,
    Response,
    TokenIsBad,
    Tokens,
    read_ttl_s,
)
from spotchaos.providers.notice import Notice

TOKEN_HEADER = "X-aliyun-ecs-metadata-token"
TTL_HEADER = "X-aliyun-ecs-metadata-token-ttl-seconds"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlibabaMetadata:
    """Answers metadata requests as an ECS spot instance's service does."""

    ADDRESSES: ClassVar[tuple[str, ...]] = ("100.100.100.200",)
    ROOT: ClassVar[str] = "/latest/meta-data/"
    ITEM: ClassVar[str] = "instance/spot/termination-time"

    notices: tuple[Notice, ...] = ()
    # What the item is while there is nothing to say.
    absent: Literal["404", "empty"] = "404"
    require_token: bool = False
    tokens: Tokens = field(default_factory=Tokens)

    def reply(self, request: Request, now: datetime) -> Response:
        if request.method == "PUT":
            ttl_s = read_ttl_s(request.headers.get(TTL_HEADER.lower()))
            if request.path != "/latest/api/token" or ttl_s is None:
                return replace(self.refusal(400), note="bad token request")
            token = self.tokens.issue(now, ttl_s)
            return Response(body=token.encode(), headers={TTL_HEADER: str(ttl_s)})
        if request.method not in {"GET", "HEAD"}:
            return self.refusal(405)
        token_given = request.headers.get(TOKEN_HEADER.lower())
        if token_given is None and self.require_token:
            return replace(self.refusal(403), note="no token, and one is required")
        if token_given is not None:
            try:
                self.tokens.check(token_given, now)
            except TokenIsBad as bad:
                return replace(self.refusal(401), note=str(bad))
        return self._look_up(request.path, now)

    def with_notices(self, notices: tuple[Notice, ...]) -> Self:
        return replace(self, notices=notices)

    def without_tokens(self) -> Self:
        return replace(self, tokens=self.tokens.revoked())

    def requiring_tokens(self) -> Self:
        return replace(self, require_token=True)

    def refusal(self, status: int) -> Response:
        body = f"<html><head><title>{status}</title></head></html>\n"
        return Response(status=status, body=body.encode(), content_type="text/html")

    def documents(self, now: datetime) -> Mapping[str, Request]:
        headers = {TOKEN_HEADER.lower(): self.tokens.issue(now, 60)}
        return {
            f"{self.ROOT[1:]}{item}": Request(
                method="GET", path=self.ROOT + item, received_at=now, headers=headers
            )
            for item in (self.ITEM, "instance-id")
        }

    def _look_up(self, path: str, now: datetime) -> Response:
        items = self._items(now)
        name = path.removeprefix(self.ROOT)
        if name in items:
            return Response(body=items[name].encode())
        folder = name if name.endswith("/") or not name else name + "/"
        below = [n[len(folder) :] for n in items if n.startswith(folder)]
        if path.startswith(self.ROOT.rstrip("/")) and below:
            names = {
                head + slash for head, slash, _ in (n.partition("/") for n in below)
            }
            return Response(body="\n".join(sorted(names)).encode())
        note = "" if name == self.ITEM else "unknown path"
        return replace(self.refusal(404), note=note)

    def _items(self, now: datetime) -> dict[str, str]:
        items = {
            "instance-id": "i-bp1spotchaos00000000",
            "instance/instance-type": "ecs.gn7i-c8g1.2xlarge",
            "region-id": "cn-hangzhou",
            "zone-id": "cn-hangzhou-i",
        }
        told = [n for n in self.notices if n.is_readable(now)]
        if told:
            release = told[-1].announced_deadline
            items[self.ITEM] = f"{release:%Y-%m-%dT%H:%M:%SZ}"
        elif self.absent == "empty":
            items[self.ITEM] = ""
        return items
