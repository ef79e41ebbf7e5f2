"""Ask a provider's metadata service whether this machine will be lost.

One class for each provider, all alike: `ask` makes one exchange and returns what stands,
`period_s` says how long to wait before the next. An answer that says nothing is None; an
exchange that failed raises `PollError`, and whoever polls backs off.

Sources: contracts are in the docstring of each class.
"""

from __future__ import annotations

import email.utils
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from spotchaos.clock import Clock, SystemClock
from spotchaos.training.kept_connection import Answer, KeptConnection, PollError

TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Sighting:
    """What a provider says of this machine."""

    source: str
    # False: advice, which no reclaim need follow.
    is_order: bool
    # When the machine is lost, in UTC; None where the provider does not say.
    deadline: datetime | None = None
    detail: str = ""


class Poller(Protocol):
    """Asks one provider."""

    period_s: float
    hang_s: float  # how long the server may hold a request; 0: it answers at once

    def ask(self) -> Sighting | None:
        """Return what stands now; raises PollError when that cannot be known."""
        ...


@runtime_checkable
class Acknowledging(Protocol):
    """Can tell its provider that the machine may go now."""

    def acknowledged(self) -> None:
        """Say so; raises PollError if it could not be said."""
        ...


class AwsPoller:
    """EC2: `spot/instance-action` is the order, `rebalance` the advice.

    Tokens (IMDSv2) are asked for six hours, renewed before they end and whenever a 401
    says so; where no token is to be had, requests go without one (IMDSv1). 404 is the
    normal answer; a time that has passed, or is not a time, is no notice.

    Source: EC2 User Guide, "Spot Instance interruption notices", "EC2 instance rebalance
    recommendations", "Retrieve instance metadata"; botocore's environment variables.

    Args:
        base_url: of the service; AWS_EC2_METADATA_SERVICE_ENDPOINT by default.
        timeout_s: of one request.
        clock: tells the time.
    """

    TOKEN_LIFE_S = 21600
    RENEW_S = 60  # before its end

    def __init__(
        self, base_url: str | None = None, *, timeout_s: float = TIMEOUT_S,
        clock: Clock | None = None,
    ) -> None:  # fmt: skip
        self.period_s = 5.0
        self.hang_s = 0.0
        self._clock = clock or SystemClock()
        url = base_url or os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT")
        self._http = KeptConnection(url or "http://169.254.169.254", timeout_s)
        self._token: str | None = None
        self._renew_at_s = 0.0

    def ask(self) -> Sighting | None:
        action = self._get("/latest/meta-data/spot/instance-action")
        if action is not None:
            sighting = self._order(action)
            if sighting is not None:
                return sighting
        advice = self._get("/latest/meta-data/events/recommendations/rebalance")
        if advice is not None:
            return Sighting("aws", is_order=False, detail=advice.strip())
        return None

    def _order(self, body: str) -> Sighting | None:
        try:
            order = json.loads(body)
            deadline = datetime.fromisoformat(order["time"]).astimezone(UTC)
        except (ValueError, KeyError, TypeError):
            raise PollError(
                f"instance-action is not as documented: {body[:80]!r}"
            ) from None
        if deadline < self._clock.now():
            # A termination that failed leaves its old time behind.
            return None
        return Sighting("aws", is_order=True, deadline=deadline, detail=order["action"])

    def _get(self, path: str) -> str | None:
        response = self._http("GET", path, headers=self._token_header())
        if response.status == 401:  # the token ran out, or was needed after all
            self._token, self._renew_at_s = None, 0.0
            response = self._http("GET", path, headers=self._token_header())
        if response.status == 404:
            return None
        if response.status != 200:
            raise PollError(f"GET {path}: status {response.status}")
        return response.text

    def _token_header(self) -> dict[str, str]:
        now_s = self._clock.monotonic()
        if now_s >= self._renew_at_s:
            self._token = None
            # Without a token IMDSv1 is tried, and a token again a minute later.
            self._renew_at_s = now_s + self.RENEW_S
            try:
                response = self._http(
                    "PUT", "/latest/api/token",
                    headers={
                        "X-aws-ec2-metadata-token-ttl-seconds": str(self.TOKEN_LIFE_S)
                    },
                )  # fmt: skip
            except PollError:
                response = None
            if response is not None and response.status == 200:
                life_s = float(
                    response.headers.get(
                        "X-aws-ec2-metadata-token-ttl-seconds", self.TOKEN_LIFE_S
                    )
                )
                self._token = response.text
                self._renew_at_s = now_s + max(
                    1.0, life_s - min(self.RENEW_S, life_s / 2)
                )
        return {} if self._token is None else {"X-aws-ec2-metadata-token": self._token}


class GcpPoller:
    """Google Cloud: a hanging GET on `instance/`, which tells of preemption and maintenance.

    The answer comes when a value changes; its ETag says what is known already. A live
    migration is no order: the machine stays.

    Source: Compute docs, "View and query VM metadata", "Create and use Spot VMs"; the
    variable GCE_METADATA_HOST of Google's clients. Spot VMs end 30 s after the change, and a
    host's maintenance that terminates them begins after 60 s.

    Args:
        base_url: of the service; `http://` and GCE_METADATA_HOST by default.
        hang_s: how long the server may hold a request.
        timeout_s: of one request, beyond that.
        clock: tells the time.
    """

    GRACE_S = 30.0
    MAINTENANCE_S = 60.0
    PATH = "/computeMetadata/v1/instance/"

    def __init__(
        self, base_url: str | None = None, *, hang_s: float = 30.0,
        timeout_s: float = TIMEOUT_S, clock: Clock | None = None,
    ) -> None:  # fmt: skip
        self.period_s = 1.0  # the waiting is the server's
        self._clock = clock or SystemClock()
        host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
        self._http = KeptConnection(base_url or f"http://{host}", timeout_s)
        self.hang_s = hang_s
        self._timeout_s = timeout_s
        self._etag = "0"

    def ask(self) -> Sighting | None:
        response = self._http(
            "GET", self.PATH, headers={"Metadata-Flavor": "Google"},
            timeout_s=self.hang_s + self._timeout_s,
            params={"recursive": "true", **self._waiting()},
        )  # fmt: skip
        if response.status == 404:
            return None
        if response.status != 200:
            raise PollError(f"GET {self.PATH}: status {response.status}")
        if response.headers.get("Metadata-Flavor") != "Google":
            raise PollError("whoever answered is not Google's metadata server")
        try:
            instance = json.loads(response.text)
            preempted = str(instance.get("preempted", "FALSE"))
            maintenance = str(instance.get("maintenanceEvent", "NONE"))
        except (ValueError, AttributeError):
            raise PollError(f"GET {self.PATH}: no JSON object") from None
        self._etag = response.headers.get("ETag", "0")
        if preempted == "TRUE":
            return self._order(self.GRACE_S, "preempted")
        if maintenance.startswith(("TERMINATE", "SHUTDOWN")):  # the older sample
            return self._order(self.MAINTENANCE_S, maintenance)
        return None

    def _order(self, grace_s: float, detail: str) -> Sighting:
        now_s = self._clock.now().timestamp()
        deadline = datetime.fromtimestamp(now_s + grace_s, UTC)
        return Sighting("gcp", is_order=True, deadline=deadline, detail=detail)

    def _waiting(self) -> dict[str, str]:
        if self.hang_s < 1.0:
            return {}
        return {
            "wait_for_change": "true",
            "last_etag": self._etag,
            "timeout_sec": str(int(self.hang_s)),
        }


class AzurePoller:
    """Azure: Scheduled Events; `Preempt` and `Terminate` are orders.

    Source: Azure docs, "Scheduled Events for Linux VMs". The first call switches the
    service on and may take two minutes. `NotBefore` is blank once the event has started.

    Args:
        base_url: of the service.
        name: this machine's name in the events' `Resources`; None takes every event.
        acknowledge: tell Azure to go ahead once `acknowledged` is called.
        timeout_s: of one request.
        clock: tells the time.
    """

    ORDERS = ("Preempt", "Terminate")
    PATH = "/metadata/scheduledevents"
    VERSION = "2020-07-01"

    def __init__(
        self, base_url: str | None = None, *, name: str | None = None,
        acknowledge: bool = False, timeout_s: float = TIMEOUT_S, clock: Clock | None = None,
    ) -> None:  # fmt: skip
        self.period_s = 1.0
        self.hang_s = 0.0
        self._clock = clock or SystemClock()
        self._http = KeptConnection(base_url or "http://169.254.169.254", timeout_s)
        self._name = name
        self.acknowledge = acknowledge
        self._event_id: str | None = None

    def ask(self) -> Sighting | None:
        response = self._request("GET")
        try:
            events = json.loads(response.text)["Events"]
            ours = [event for event in events if self._is_ours(event)]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise PollError("scheduledevents is not as documented") from None
        if not ours:
            return None
        event = ours[0]
        self._event_id = event.get("EventId")
        return Sighting(
            "azure", is_order=True, deadline=_moment(event.get("NotBefore", "")),
            detail=event["EventType"],
        )  # fmt: skip

    def acknowledged(self) -> None:
        """Say that this machine may go now; does nothing unless that was asked for."""
        if self.acknowledge and self._event_id is not None:
            self._request("POST", {"StartRequests": [{"EventId": self._event_id}]})

    def _is_ours(self, event: Mapping[str, Any]) -> bool:
        if event["EventType"] not in self.ORDERS:
            return False
        return self._name is None or self._name in event.get("Resources", [])

    def _request(self, method: str, body: Any = None) -> Answer:
        headers = {"Metadata": "true"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        response = self._http(
            method, self.PATH, headers=headers,
            params={"api-version": self.VERSION},
            body=None if body is None else json.dumps(body),
        )  # fmt: skip
        if response.status != 200:
            raise PollError(f"{method} {self.PATH}: status {response.status}")
        return response


class AlibabaPoller:
    """Alibaba Cloud: `instance/spot/termination-time` is a time once it is ordered.

    Source: ECS docs, "Detect and handle spot instance interruptions". 404 or an empty
    body otherwise; the hardened mode wants a token.

    Args:
        base_url: of the service.
        timeout_s: of one request.
        clock: tells the time.
    """

    PATH = "/latest/meta-data/instance/spot/termination-time"
    TOKEN_LIFE_S = 21600

    def __init__(
        self, base_url: str | None = None, *, timeout_s: float = TIMEOUT_S,
        clock: Clock | None = None,
    ) -> None:  # fmt: skip
        self.period_s = 5.0
        self.hang_s = 0.0
        self._clock = clock or SystemClock()
        self._http = KeptConnection(base_url or "http://100.100.100.200", timeout_s)
        self._headers: dict[str, str] = {}

    def ask(self) -> Sighting | None:
        response = self._http("GET", self.PATH, headers=self._headers)
        if response.status in (401, 403):
            life = {"X-aliyun-ecs-metadata-token-ttl-seconds": str(self.TOKEN_LIFE_S)}
            token = self._http("PUT", "/latest/api/token", headers=life)
            if token.status != 200:
                raise PollError(f"PUT /latest/api/token: status {token.status}")
            self._headers = {"X-aliyun-ecs-metadata-token": token.text}
            response = self._http("GET", self.PATH, headers=self._headers)
        if response.status == 404 or not response.text.strip():
            return None
        if response.status != 200:
            raise PollError(f"GET {self.PATH}: status {response.status}")
        deadline = _moment(response.text.strip())
        if deadline is None or deadline < self._clock.now():
            return None
        return Sighting("alibaba", is_order=True, deadline=deadline)


POLLERS: Mapping[str, type[AwsPoller | GcpPoller | AzurePoller | AlibabaPoller]] = {
    "aws": AwsPoller,
    "gcp": GcpPoller,
    "azure": AzurePoller,
    "alibaba": AlibabaPoller,
}


# What the firmware of a machine says about who made it, for the providers that are polled.
_MAKERS = {
    "Amazon EC2": "aws",
    "Google": "gcp",
    "Microsoft Corporation": "azure",
    "Alibaba Cloud": "alibaba",
}


def detect(
    environment: Mapping[str, str] = os.environ,
    maker: Path = Path("/sys/class/dmi/id/sys_vendor"),
) -> list[Poller]:
    """Return pollers for where this machine runs; none on a machine of one's own.

    Nothing is asked over the network: a variable that redirects a provider's own clients
    says it, or the firmware does.
    """
    if "AWS_EC2_METADATA_SERVICE_ENDPOINT" in environment:
        return [AwsPoller()]
    if "GCE_METADATA_HOST" in environment:
        return [GcpPoller()]
    try:
        name = _MAKERS.get(maker.read_text(encoding="ascii", errors="replace").strip())
    except OSError:
        return []
    if name == "aws" and environment.get("AWS_EC2_METADATA_DISABLED", "") == "true":
        return []
    return [] if name is None else [POLLERS[name]()]


def _moment(text: str) -> datetime | None:
    """Read a time as ISO 8601 or as RFC 1123 writes it; None if it is neither."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        try:
            moment = email.utils.parsedate_to_datetime(text)
        except (ValueError, TypeError):
            return None
    return (
        moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    )
