"""Tencent Cloud: a termination time under the provider's own metadata name.

Source: public scripts that poll it, second-hand. Nothing here is verified against the
provider's documentation: neither how long ahead the time appears (no grace window is
assumed, so one must be given) nor what absence looks like (404 here).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import ClassVar, Self

from spotchaos.providers.exchange import Request, Response
from spotchaos.providers.notice import Notice


@dataclass(frozen=True, slots=True, kw_only=True)
class TencentMetadata:
    """Answers the one metadata request that is known of Tencent's spot instances."""

    ADDRESSES: ClassVar[tuple[str, ...]] = ("metadata.tencentyun.com",)
    PATH: ClassVar[str] = "/latest/meta-data/spot/termination-time"

    notices: tuple[Notice, ...] = ()

    def reply(self, request: Request, now: datetime) -> Response:
        if request.method not in {"GET", "HEAD"}:
            return self.refusal(405)
        if request.path != self.PATH:
            return replace(self.refusal(404), note="unknown path")
        told = [n for n in self.notices if n.is_readable(now)]
        if not told:
            return self.refusal(404)
        at = told[-1].announced_deadline
        return Response(body=f"{at:%Y-%m-%dT%H:%M:%SZ}".encode())

    def with_notices(self, notices: tuple[Notice, ...]) -> Self:
        return replace(self, notices=notices)

    def without_tokens(self) -> Self:
        return self

    def requiring_tokens(self) -> Self:
        return self

    def refusal(self, status: int) -> Response:
        body = f"<html><head><title>{status}</title></head></html>\n"
        return Response(status=status, body=body.encode(), content_type="text/html")

    def documents(self, now: datetime) -> Mapping[str, Request]:
        return {self.PATH[1:]: Request(method="GET", path=self.PATH, received_at=now)}
