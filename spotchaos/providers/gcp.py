"""Compute Engine: what a VM can read about its own preemption or maintenance.

Source: Compute Engine docs, "Query metadata server for maintenance event notices", "View
and query VM metadata", "Create and use Spot VMs"; the maintenance sample of
GoogleCloudPlatform/python-docs-samples (`compute/metadata/main.py`). `preempted` turns
TRUE when the preemption begins: 30 s before the machine is lost for Spot VMs, 120 s for
standard ones; `maintenance-event` changes 60 s before its event. An ETag belongs to a
value, and a hanging GET answers at once when the caller's differs.

Not verified: `timeout_sec`, which here bounds the wait and then answers with the value
unchanged; the body of the 403 without the header; a redirect from a folder's name without
its slash (301 here).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar, Self, TypeAlias

from spotchaos.providers.exchange import Delivery, Request, Response
from spotchaos.providers.notice import Notice

FLAVOR = {"Metadata-Flavor": "Google"}
SERVER = {"Server": "Metadata Server for VM", **FLAVOR}
_TEXT = "application/text"
_YES = {"true", "TRUE", "True", "1"}

Tree: TypeAlias = dict[str, "str | Tree"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GcpMetadata:
    """Answers metadata requests as a Compute Engine VM's server does."""

    ADDRESSES: ClassVar[tuple[str, ...]] = (
        "metadata.google.internal",
        "metadata",
        "169.254.169.254",
    )
    ROOT: ClassVar[str] = "/computeMetadata/v1/"

    notices: tuple[Notice, ...] = ()
    # Real seconds after each announcement in which the server answers 503; Google says
    # that it is "under a second" during maintenance.
    unavailable_s: float = 0.0
    # The older sample of Google names it SHUTDOWN_ON_HOST_MAINTENANCE.
    stop_event: str = "TERMINATE_ON_HOST_MAINTENANCE"
    name: str = "spotchaos-vm"
    zone: str = "us-central1-a"
    machine_type: str = "g2-standard-8"
    more: Mapping[str, str] = field(default_factory=dict)

    def reply(self, request: Request, now: datetime) -> Response:
        if request.method not in {"GET", "HEAD"}:
            return self.refusal(405)
        if request.path == "/":
            return Response(
                body=b"computeMetadata/\n", content_type=_TEXT, headers=SERVER
            )
        flavor = request.headers.get("metadata-flavor", "").strip().lower()
        if flavor != "google" or "x-forwarded-for" in request.headers:
            return replace(self.refusal(403), note="no Metadata-Flavor: Google")
        if self._is_unavailable(now):
            return replace(self.refusal(503), note="during maintenance")
        return self._look_up(request, now)

    def with_notices(self, notices: tuple[Notice, ...]) -> Self:
        return replace(self, notices=notices)

    def without_tokens(self) -> Self:
        return self

    def requiring_tokens(self) -> Self:
        return self

    def refusal(self, status: int) -> Response:
        body = f"<!DOCTYPE html>\n<html><title>Error {status}</title></html>\n"
        return Response(
            status=status, body=body.encode(), content_type="text/html", headers=SERVER
        )

    def documents(self, now: datetime) -> Mapping[str, Request]:
        names = ("instance/preempted", "instance/maintenance-event", "instance/id")
        headers = {name.lower(): value for name, value in FLAVOR.items()}
        return {
            f"{self.ROOT[1:]}{name}": Request(
                method="GET", path=self.ROOT + name, received_at=now, headers=headers
            )
            for name in names
        }

    def _is_unavailable(self, now: datetime) -> bool:
        window = timedelta(seconds=self.unavailable_s)
        return any(
            n.readable_at is not None and n.readable_at <= now < n.readable_at + window
            for n in self.notices
        )

    def _look_up(self, request: Request, now: datetime) -> Response:
        if not request.path.startswith(self.ROOT):
            if request.path.rstrip("/") + "/" in self.ROOT:
                return _text(b"v1/\n")
            return replace(self.refusal(404), note="unknown path")
        parts = [part for part in request.path[len(self.ROOT) :].split("/") if part]
        found: str | Tree = self._tree(now)
        for part in parts:
            if not isinstance(found, dict) or part not in found:
                return replace(self.refusal(404), note="unknown path")
            found = found[part]
        if isinstance(found, dict) and not request.path.endswith("/"):
            return replace(
                self.refusal(301), headers={**SERVER, "Location": request.path + "/"}
            )
        answer = _shape(found, request)
        return self._hold(request, now, answer) or answer

    def _hold(
        self, request: Request, now: datetime, answer: Response
    ) -> Response | None:
        """Return a response that waits, or None if there is something to say now."""
        if request.query.get("wait_for_change") not in _YES:
            return None
        seen = request.query.get("last_etag")
        if seen is None:  # the next change from the moment of asking
            at_arrival = self._look_up(
                replace(request, query={**request.query, "wait_for_change": "false"}),
                request.received_at,
            )
            seen = at_arrival.headers.get("ETag", "")
        if seen != answer.headers["ETag"]:
            return None
        until = None
        timeout = request.query.get("timeout_sec", "")
        if timeout.isdecimal():
            # A wait of more than a day has no end that anybody would see.
            longest_s = int(timeout[:5]) if len(timeout) <= 5 else 86_400
            until = request.received_at + timedelta(seconds=longest_s)
            if now >= until:
                return replace(answer, note="timeout_sec passed, value unchanged")
        return replace(answer, delivery=Delivery.HOLD, hold_until=until)

    def _tree(self, now: datetime) -> Tree:
        told = [n for n in self.notices if n.is_readable(now)]
        # Once preempted, a VM stays so: the value never turns back but with the notice.
        preempted = any(n.kind == "preempt" for n in told)
        events = {n.kind for n in told}
        maintenance = "NONE"
        if "host-maintenance" in events:
            maintenance = self.stop_event
        elif "live-migration" in events:
            maintenance = "MIGRATE_ON_HOST_MAINTENANCE"
        scheduling: Tree = {
            "automatic-restart": "FALSE",
            "on-host-maintenance": "TERMINATE",
            "preemptible": "TRUE",
        }
        account: Tree = {
            "aliases": "default\n",
            "email": "spotchaos@spotchaos.iam.gserviceaccount.com",
            "scopes": "https://www.googleapis.com/auth/cloud-platform\n",
            "token": json.dumps(
                {"access_token": "dummy", "expires_in": 3600, "token_type": "Bearer"}
            ),
        }
        instance: Tree = {
            "attributes": {},
            "hostname": f"{self.name}.{self.zone}.c.spotchaos.internal",
            "id": "1234567890123456789",
            "machine-type": f"projects/123456789012/machineTypes/{self.machine_type}",
            "maintenance-event": maintenance,
            "name": self.name,
            "preempted": "TRUE" if preempted else "FALSE",
            "scheduling": scheduling,
            "service-accounts": {"default": account},
            "zone": f"projects/123456789012/zones/{self.zone}",
            **self.more,
        }
        project: Tree = {
            "attributes": {},
            "numeric-project-id": "123456789012",
            "project-id": "spotchaos",
        }
        return {"instance": instance, "project": project}


def _text(body: bytes) -> Response:
    return Response(
        body=body,
        content_type=_TEXT,
        headers={**SERVER, "ETag": hashlib.sha256(body).hexdigest()[:16]},
    )


def _shape(found: str | Tree, request: Request) -> Response:
    is_recursive = request.query.get("recursive") in _YES
    form = request.query.get("alt", "")
    if isinstance(found, str):
        if form == "json":
            return _as_json(found if found.startswith("{") else json.dumps(found))
        if found.startswith("{"):
            return _as_json(found)
        return _text(found.encode())
    if is_recursive and form != "text":
        return _as_json(json.dumps(_camel(found)))
    if is_recursive:
        return _text("".join(f"{n} {v}\n" for n, v in _flat(found)).encode())
    names = [n + "/" if isinstance(v, dict) else n for n, v in sorted(found.items())]
    if form == "json":
        return _as_json(json.dumps(names))
    return _text("".join(f"{name}\n" for name in names).encode())


def _as_json(text: str) -> Response:
    return replace(_text(text.encode()), content_type="application/json")


def _camel(tree: Tree) -> dict[str, Any]:
    """Spell names as the recursive form does: maintenance-event is maintenanceEvent."""
    camel = {}
    for name, value in tree.items():
        first, *rest = name.split("-")
        key = first + "".join(part.capitalize() for part in rest)
        camel[key] = _camel(value) if isinstance(value, dict) else value
    return camel


def _flat(tree: Tree, above: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name, value in sorted(tree.items()):
        if isinstance(value, dict):
            rows += _flat(value, f"{above}{name}/")
        else:
            rows.append((above + name, value))
    return rows
