"""Providers without a metadata service: their notice as one small document.

A file that appears (Metaflow), an event (Oracle) or a signal (Kubernetes, Nebius, Yandex,
RunPod, Slurm) tells no more than that the end is near; the document adds the deadline, for
programs that want to read it. Over HTTP there is nothing: every other path is 404.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import ClassVar, Self

from spotchaos.providers.exchange import Request, Response
from spotchaos.providers.notice import Notice


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainNotice:
    """Tells of its notices in one document, `spot-termination-notice`."""

    PATH: ClassVar[str] = "/spot-termination-notice"

    notices: tuple[Notice, ...] = ()

    def reply(self, request: Request, now: datetime) -> Response:
        told = [n for n in self.notices if n.is_readable(now)]
        if request.path != self.PATH or not told:
            note = "" if request.path == self.PATH else "unknown path"
            return replace(self.refusal(404), note=note)
        at = told[-1].announced_deadline
        body = {"kind": told[-1].kind, "deadline": f"{at:%Y-%m-%dT%H:%M:%SZ}"}
        return Response(body=json.dumps(body).encode(), content_type="application/json")

    def with_notices(self, notices: tuple[Notice, ...]) -> Self:
        return replace(self, notices=notices)

    def without_tokens(self) -> Self:
        return self

    def requiring_tokens(self) -> Self:
        return self

    def refusal(self, status: int) -> Response:
        return Response(status=status)

    def documents(self, now: datetime) -> Mapping[str, Request]:
        return {self.PATH[1:]: Request(method="GET", path=self.PATH, received_at=now)}
