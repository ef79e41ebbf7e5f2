"""EC2: what an instance can read about its own interruption.

Source: Amazon EC2 User Guide, "Spot Instance interruption notices", "EC2 instance
rebalance recommendations", "Retrieve instance metadata", "Use IMDSv2"; Auto Scaling guide,
"Retrieve the target lifecycle state through instance metadata". An item is absent (404)
until there is something to say; the notice comes two minutes ahead at best, and
hibernation begins with it. Bodies are text/plain, as on EC2; the well-known mock of these
pages sends application/json instead.

Not verified: the status of a method that is neither GET nor PUT (405 here), and a listing
asked for without its final slash (answered here like the one with it).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Self

from spotchaos.providers.exchange import (
    Request,
    Response,
    TokenIsBad,
    Tokens,
    read_ttl_s,
)
from spotchaos.providers.notice import Notice, Phase

ACTIONS = ("terminate", "stop", "hibernate")
TOKEN_HEADER = "X-aws-ec2-metadata-token"
TTL_HEADER = "X-aws-ec2-metadata-token-ttl-seconds"
SERVER = {"Server": "EC2ws"}
_PAGE = """\
<?xml version="1.0" encoding="iso-8859-1"?>
<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.0 Transitional//EN"
\t"http://www.w3.org/TR/xhtml1/DTD/xhtml1-transitional.dtd">
<html xmlns="http://www.w3.org/1999/xhtml" xml:lang="en" lang="en">
 <head>
  <title>{title}</title>
 </head>
 <body>
  <h1>{title}</h1>
 </body>
</html>
"""
_TITLES = {
    400: "400 - Bad Request",
    401: "401 - Unauthorized",
    403: "403 - Forbidden",
    404: "404 - Not Found",
    405: "405 - Method Not Allowed",
    429: "429 - Too Many Requests",
    500: "500 - Internal Server Error",
    503: "503 - Service Unavailable",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsMetadata:
    """Answers metadata requests as an EC2 Spot instance's service does."""

    ADDRESSES: ClassVar[tuple[str, ...]] = ("169.254.169.254", "fd00:ec2::254")
    ROOT: ClassVar[str] = "/latest/meta-data/"

    notices: tuple[Notice, ...] = ()
    require_token: bool = False
    tokens: Tokens = field(default_factory=Tokens)
    life_cycle: str = "spot"
    instance_id: str = "i-0123456789abcdef0"
    instance_type: str = "g5.xlarge"
    zone: str = "us-east-1a"
    # What `spot/termination-time` is while there is none: absent, or a text that is no
    # time. Source: "Spot Instance interruption notices".
    time_while_silent: str | None = None
    # Where the group wants the instance; None: absent, as on a very new one.
    lifecycle_state: str | None = "InService"
    maintenance_code: str = "instance-stop"
    more: Mapping[str, str] = field(default_factory=dict)

    def reply(self, request: Request, now: datetime) -> Response:
        if request.method == "PUT":
            return self._issue_token(request, now)
        if request.method not in {"GET", "HEAD"}:
            return self.refusal(405)
        token = request.headers.get(TOKEN_HEADER.lower())
        if token is None and self.require_token:
            return replace(self.refusal(401), note="no token, and one is required")
        if token is not None:
            try:
                self.tokens.check(token, now)
            except TokenIsBad as bad:
                return replace(self.refusal(401), note=str(bad))
        return self._look_up(_as_latest(request.path), now)

    def with_notices(self, notices: tuple[Notice, ...]) -> Self:
        return replace(self, notices=notices)

    def without_tokens(self) -> Self:
        return replace(self, tokens=self.tokens.revoked())

    def requiring_tokens(self) -> Self:
        return replace(self, require_token=True)

    def refusal(self, status: int) -> Response:
        page = _PAGE.format(title=_TITLES.get(status, str(status)))
        return Response(
            status=status, body=page.encode(), content_type="text/html", headers=SERVER
        )

    def documents(self, now: datetime) -> Mapping[str, Request]:
        items = (
            "spot/instance-action",
            "spot/termination-time",
            "events/recommendations/rebalance",
            "events/maintenance/scheduled",
            "autoscaling/target-lifecycle-state",
            "instance-life-cycle",
        )
        headers = {TOKEN_HEADER.lower(): self.tokens.issue(now, 60)}
        return {
            f"{self.ROOT[1:]}{item}": Request(
                method="GET", path=self.ROOT + item, received_at=now, headers=headers
            )
            for item in items
        }

    def _issue_token(self, request: Request, now: datetime) -> Response:
        if request.path != "/latest/api/token":
            # A dated version, or any other path: the service takes no PUT there.
            return replace(self.refusal(403), note="PUT anywhere but /latest/api/token")
        if "x-forwarded-for" in request.headers:
            return replace(self.refusal(403), note="PUT through a proxy")
        ttl_s = read_ttl_s(request.headers.get(TTL_HEADER.lower()))
        if ttl_s is None:
            return replace(self.refusal(400), note="token without a TTL of 1 to 21600")
        token = self.tokens.issue(now, ttl_s)
        return Response(body=token.encode(), headers={**SERVER, TTL_HEADER: str(ttl_s)})

    def _look_up(self, path: str, now: datetime) -> Response:
        tree = self._tree(now)
        # botocore asks for `placement/availability-zone/`, and gets it.
        item = path.rstrip("/")
        if item in tree:
            return Response(body=tree[item].encode(), headers=SERVER)
        names = _listing(tree, path)
        if names:
            # botocore takes the role's name as it comes: it has no line of its own.
            end = "" if path.endswith("/security-credentials/") else "\n"
            return Response(body=("\n".join(names) + end).encode(), headers=SERVER)
        note = "" if item in self._known() else "unknown path"
        return replace(self.refusal(404), note=note)

    def _tree(self, now: datetime) -> dict[str, str]:
        return self._identity(now) | self._warnings(now)

    def _warnings(self, now: datetime) -> dict[str, str]:
        """Return the items that exist only while there is something to say."""
        items = {}
        if self.time_while_silent is not None:
            items["spot/termination-time"] = self.time_while_silent
        for notice in self.notices:
            if notice.readable_at is None or now < notice.readable_at:
                continue
            told = notice.is_readable(now)
            if notice.kind in ACTIONS:
                # If a termination fails, the old time stays, then in the past.
                items["spot/termination-time"] = _instant(notice.announced_deadline)
                if told:
                    items["spot/instance-action"] = json.dumps(
                        {
                            "action": notice.kind,
                            "time": _instant(notice.announced_deadline),
                        }
                    )
            elif notice.kind == "rebalance" and told:
                items["events/recommendations/rebalance"] = json.dumps(
                    {"noticeTime": _instant(notice.readable_at)}
                )
            elif notice.kind == "autoscaling" and told:
                items["autoscaling/target-lifecycle-state"] = "Terminated"
            elif notice.kind == "maintenance":
                items["events/maintenance/scheduled"] = _maintenance(
                    notice, self.maintenance_code, now
                )
        return {self.ROOT + item: text for item, text in items.items()}

    def _identity(self, now: datetime) -> dict[str, str]:
        """Return the items that every instance has and that pollers read."""
        region = self.zone[:-1]
        role = "iam/security-credentials/spotchaos"
        items = {
            "ami-id": "ami-0123456789abcdef0",
            "events/maintenance/history": "[]",
            "events/maintenance/scheduled": "[]",
            "hostname": "ip-10-0-0-1.ec2.internal",
            "instance-id": self.instance_id,
            "instance-life-cycle": self.life_cycle,
            "instance-type": self.instance_type,
            "local-hostname": "ip-10-0-0-1.ec2.internal",
            "local-ipv4": "10.0.0.1",
            "placement/availability-zone": self.zone,
            "placement/region": region,
            role: _credentials(now),
            "services/domain": "amazonaws.com",
            "services/partition": "aws",
            **self.more,
        }
        if self.lifecycle_state is not None:
            items["autoscaling/target-lifecycle-state"] = self.lifecycle_state
        document = {
            "accountId": "123456789012",
            "architecture": "x86_64",
            "availabilityZone": self.zone,
            "imageId": items["ami-id"],
            "instanceId": self.instance_id,
            "instanceType": self.instance_type,
            "privateIp": items["local-ipv4"],
            "region": region,
            "version": "2017-09-30",
        }
        identity = "/latest/dynamic/instance-identity/document"
        return {self.ROOT + name: text for name, text in items.items()} | {
            identity: json.dumps(document, indent=2)
        }

    def _known(self) -> set[str]:
        """Return the paths whose absence is an answer and not a surprise."""
        names = (
            "spot/instance-action",
            "spot/termination-time",
            "spot",
            "events/recommendations/rebalance",
            "events/recommendations",
            "autoscaling/target-lifecycle-state",
        )
        return {self.ROOT + name for name in names}


def _as_latest(path: str) -> str:
    """Read a dated version (`/2021-07-15/...`) as the latest one."""
    first, _, rest = path.lstrip("/").partition("/")
    if len(first) == 10 and first[:4].isdecimal() and first[4] == "-":
        return f"/latest/{rest}"
    return path


def _listing(tree: Mapping[str, str], path: str) -> list[str]:
    folder = path if path.endswith("/") else path + "/"
    below = {name[len(folder) :] for name in tree if name.startswith(folder)}
    names = {head + slash for head, slash, _ in (n.partition("/") for n in below)}
    return sorted(names)


def _instant(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def _maintenance(notice: Notice, code: str, now: datetime) -> str:
    state = "active"
    if notice.withdrawn_at is not None and now >= notice.withdrawn_at:
        state = "canceled"
    elif notice.phase(now) is Phase.GONE:
        state = "completed"
    form = "%-d %b %Y %H:%M:%S GMT"
    begins = notice.announced_deadline
    return json.dumps(
        [
            {
                "NotBefore": begins.strftime(form),
                "Code": code,
                "Description": "The instance is running on degraded hardware",
                "EventId": "instance-event-0123456789abcdef0",
                "NotAfter": (begins + timedelta(hours=2)).strftime(form),
                "NotBeforeDeadline": (begins + timedelta(days=9)).strftime(form),
                "State": state,
            }
        ]
    )


def _credentials(now: datetime) -> str:
    """Return dummies in the shape of a role's credentials: they open nothing."""
    return json.dumps(
        {
            "Code": "Success",
            "LastUpdated": _instant(now),
            "Type": "AWS-HMAC",
            "AccessKeyId": "ASIASPOTCHAOSDUMMY00",
            "SecretAccessKey": "spotchaos-dummy",
            "Token": "spotchaos-dummy",
            "Expiration": _instant(now + timedelta(hours=6)),
        }
    )
