"""Azure: Scheduled Events, the one place where a VM learns that it will be evicted.

Source: MicrosoftDocs/azure-compute-docs, "Scheduled Events for Linux VMs". An event is
Scheduled, then Started (its `NotBefore` is blank from there), then gone; there is no
"Completed". It may vanish unstarted, and hardware failure skips Scheduled. Preempt comes
30 s ahead, best effort. A request that came through a proxy (`X-Forwarded-For`) is
dropped (microsoft/AntiSSRF, `AddXFFHeader`). The documentation writes `NotBefore` as GMT text; Microsoft's own
mock sends ISO 8601: both are offered.

Not verified: how soon an acknowledged event starts (one cloud second here), and the text
of the error bodies.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from email.utils import format_datetime
from typing import Any, ClassVar, Literal, Self

from spotchaos.providers.exchange import Request, Response
from spotchaos.providers.notice import Notice, Phase, count_changes

EVENT_TYPES = ("Freeze", "Reboot", "Redeploy", "Preempt", "Terminate")
# Versions of the endpoint, and what came with them. Source: ibid., "Version and region
# availability".
API_VERSIONS = (
    "2017-08-01",
    "2017-11-01",
    "2019-01-01",
    "2019-04-01",
    "2019-08-01",
    "2020-07-01",
)
LATEST = API_VERSIONS[-1]
_SINCE = {"Preempt": "2017-11-01", "Terminate": "2019-01-01"}
_SOURCE_SINCE = "2019-08-01"
_DURATION_SINCE = "2020-07-01"
# Expected seconds of impact; -1: unknown, or for good.
_DURATION_S = {"Freeze": 5}
_DISABLED_AFTER = timedelta(hours=24)


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureMetadata:
    """Answers Scheduled Events requests as Azure's metadata service does."""

    ADDRESSES: ClassVar[tuple[str, ...]] = ("169.254.169.254",)
    PATH: ClassVar[str] = "/metadata/scheduledevents"

    notices: tuple[Notice, ...] = ()
    time_format: Literal["rfc1123", "iso"] = "rfc1123"
    # Real seconds from the first request to the first event that it can tell of.
    enable_s: float = 0.0
    # Real seconds from an acknowledgement to the start of the event.
    start_after_s: float = 1.0
    first_asked_at: datetime | None = None
    last_asked_at: datetime | None = None
    vm: str = "spotchaos_0"
    others: tuple[str, ...] = ("spotchaos_1",)

    def reply(self, request: Request, now: datetime) -> Response:
        if request.path.startswith("/metadata/instance"):
            return self._instance(request)
        if request.path.rstrip("/") != self.PATH:
            return replace(self.refusal(404), note="unknown path")
        if request.headers.get("metadata", "").strip().lower() != "true":
            return _bad("Bad request. Required metadata header not specified")
        if "x-forwarded-for" in request.headers:
            return _bad("Bad request. Requests through a proxy are not allowed")
        version = request.query.get("api-version")
        if version is None:
            return _bad("Bad request. api-version was not specified in the request")
        if version not in API_VERSIONS:
            known = ", ".join(API_VERSIONS)
            return _bad(f"Bad request. api-version is invalid, use one of: {known}")
        asked = self._asked(now)
        if request.method in {"GET", "HEAD"}:
            document = asked.document(now, version=version)
            body = json.dumps(document).encode()
            return Response(body=body, content_type="application/json", after=asked)
        if request.method == "POST":
            return asked.acknowledge(request.body, now)
        return self.refusal(405)

    def document(self, now: datetime, *, version: str = LATEST) -> dict[str, Any]:
        """Return the events document as it stands at `now`, in the form of `version`."""
        if not self._is_enabled(now):
            return {"DocumentIncarnation": 0, "Events": []}
        events = [
            self._event(number, notice, now, version)
            for number, notice in enumerate(self.notices, start=1)
            if self._shows(notice, now) and version >= _SINCE.get(notice.kind, "")
        ]
        incarnation = 1 + count_changes(self.notices, now)
        return {"DocumentIncarnation": incarnation, "Events": events}

    def acknowledge(self, body: bytes, now: datetime) -> Response:
        """Start the events that a POST names, for all of their resources at once.

        A valid id is accepted however often it is sent; an unknown one is malformed.
        """
        try:
            wanted = [str(e["EventId"]) for e in json.loads(body)["StartRequests"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            return _bad("Bad request. The body is not a list of StartRequests")
        shown = {
            self._event_id(number): notice
            for number, notice in enumerate(self.notices, start=1)
            if self._shows(notice, now)
        }
        if not wanted or not set(wanted) <= set(shown):
            return _bad("Bad request. No such event")
        notices = tuple(
            notice.acknowledge(now, start_after_s=self.start_after_s)
            if self._event_id(number) in wanted
            else notice
            for number, notice in enumerate(self.notices, start=1)
        )
        note = f"acknowledged {', '.join(wanted)}"
        return Response(after=replace(self, notices=notices), note=note)

    def with_notices(self, notices: tuple[Notice, ...]) -> Self:
        return replace(self, notices=notices)

    def without_tokens(self) -> Self:
        return self

    def requiring_tokens(self) -> Self:
        return self

    def refusal(self, status: int) -> Response:
        body = json.dumps({"error": f"HTTP {status}"}).encode()
        return Response(status=status, body=body, content_type="application/json")

    def documents(self, now: datetime) -> Mapping[str, Request]:
        return {
            "metadata/scheduledevents": Request(
                method="GET",
                path=self.PATH,
                received_at=now,
                query={"api-version": LATEST},
                headers={"metadata": "true"},
            )
        }

    def _asked(self, now: datetime) -> Self:
        """Remember the request: the first one enables the service for 24 hours."""
        first = self.first_asked_at
        if first is None or (
            self.last_asked_at is not None
            and now - self.last_asked_at > _DISABLED_AFTER
        ):
            first = now
        return replace(self, first_asked_at=first, last_asked_at=now)

    def _is_enabled(self, now: datetime) -> bool:
        first = self.first_asked_at
        return first is None or now >= first + timedelta(seconds=self.enable_s)

    def _shows(self, notice: Notice, now: datetime) -> bool:
        """Tell whether an event is in the document: announced, and neither ended nor cancelled."""
        return notice.is_readable(now) and notice.phase(now) is not Phase.GONE

    def _event(
        self, number: int, notice: Notice, now: datetime, version: str
    ) -> dict[str, Any]:
        has_started = notice.phase(now) is Phase.DUE
        event: dict[str, Any] = {
            "EventId": self._event_id(number),
            "EventStatus": "Started" if has_started else "Scheduled",
            "EventType": notice.kind,
            "ResourceType": "VirtualMachine",
            "Resources": [self.vm] if notice.is_for_us else list(self.others),
            "NotBefore": "" if has_started else self._moment(notice.announced_deadline),
        }
        if version >= _SOURCE_SINCE:
            event |= {"Description": _description(notice), "EventSource": "Platform"}
        if version >= _DURATION_SINCE:
            event["DurationInSeconds"] = _DURATION_S.get(notice.kind, -1)
        return event

    def _event_id(self, number: int) -> str:
        return f"5907C0A5-0000-4000-8000-{number:012d}"

    def _moment(self, at: datetime) -> str:
        if self.time_format == "iso":
            return f"{at:%Y-%m-%dT%H:%M:%SZ}"
        return format_datetime(at, usegmt=True)

    def _instance(self, request: Request) -> Response:
        if request.headers.get("metadata", "").strip().lower() != "true":
            return _bad("Bad request. Required metadata header not specified")
        compute = {
            "evictionPolicy": "Delete",
            "location": "eastus",
            "name": self.vm,
            "priority": "Spot",
            "vmId": "00000000-0000-4000-8000-000000000000",
            "vmSize": "Standard_NC4as_T4_v3",
        }
        rest = request.path[len("/metadata/instance") :].strip("/")
        if rest == "":
            found: Any = {"compute": compute}
        elif rest == "compute":
            found = compute
        else:
            found = compute.get(rest.removeprefix("compute/"))
            if found is None:
                return replace(self.refusal(404), note="unknown path")
        if isinstance(found, str) and request.query.get("format") == "text":
            return Response(body=found.encode())
        return Response(
            body=json.dumps(found).encode(), content_type="application/json"
        )


def _bad(why: str) -> Response:
    body = json.dumps({"error": why}).encode()
    return Response(status=400, body=body, content_type="application/json", note=why)


def _description(notice: Notice) -> str:
    texts = {
        "Preempt": "Virtual machine is being evicted to reclaim capacity.",
        "Terminate": "Virtual machine is going to be deleted.",
        "Freeze": "Virtual machine is being paused because of a memory-preserving operation.",
        "Reboot": "Virtual machine is going to be restarted.",
        "Redeploy": "Virtual machine is going to be moved to another node.",
    }
    return texts.get(notice.kind, "")
