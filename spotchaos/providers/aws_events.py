"""EventBridge's twins of the EC2 notices, for programs that are told instead of asking.

Source: EC2 User Guide, "Spot Instance interruption notices" and "EC2 instance rebalance
recommendations", section "Monitor with EventBridge".
"""

from __future__ import annotations

from datetime import UTC
from typing import Any

from spotchaos.errors import UsageError
from spotchaos.providers.aws import ACTIONS, AwsMetadata
from spotchaos.providers.notice import Notice

ACCOUNT = "123456789012"


def event(notice: Notice, metadata: AwsMetadata) -> dict[str, Any]:
    """Return the event that EventBridge sends when `notice` becomes readable.

    Args:
        notice: a readable one, of a kind that EventBridge knows.
        metadata: of the instance concerned.

    Raises:
        UsageError: nobody is told of this notice.
    """
    if notice.readable_at is None or notice.kind not in {*ACTIONS, "rebalance"}:
        raise UsageError(
            f"EventBridge sends nothing for the notice {notice.kind!r}",
            hint=f"it tells of rebalance, {', '.join(ACTIONS)}, once they can be read",
        )
    detail = {"instance-id": metadata.instance_id}
    kind = "EC2 Instance Rebalance Recommendation"
    if notice.kind in ACTIONS:
        detail["instance-action"] = notice.kind
        kind = "EC2 Spot Instance Interruption Warning"
    place = f"{metadata.zone}:instance/{metadata.instance_id}"
    return {
        "version": "0",
        "id": "12345678-1234-1234-1234-123456789012",
        "detail-type": kind,
        "source": "aws.ec2",
        "account": ACCOUNT,
        "time": f"{notice.readable_at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "region": metadata.zone[:-1],
        "resources": [f"arn:aws:ec2:{place}"],
        "detail": detail,
    }
