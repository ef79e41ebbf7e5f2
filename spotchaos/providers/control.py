"""The orders that a stand-alone server takes while it runs, under `/_spotchaos/`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from spotchaos.errors import UsageError

PREFIX = "/_spotchaos/"


class Controlled(Protocol):
    """What can be ordered about; an order that makes no sense raises UsageError."""

    def order_announce(self, query: Mapping[str, str]) -> Mapping[str, Any]: ...

    def order_withdraw(self) -> Mapping[str, Any]: ...

    def order_fault(self, text: str) -> Mapping[str, Any]: ...

    def order_reset(self) -> Mapping[str, Any]: ...

    def order_log(self) -> Sequence[Mapping[str, Any]]: ...


def carry_out(
    target: Controlled, method: str, path: str, query: Mapping[str, str]
) -> tuple[int, bytes]:
    """Carry out one order.

    Args:
        target: whom it is for.
        method: of the HTTP request.
        path: from the leading slash, prefix included.
        query: its parameters.

    Returns:
        An HTTP status and a JSON body: what is now, or `error` and `hint`.
    """
    order = path.removeprefix(PREFIX).rstrip("/")
    try:
        if (method, order) == ("GET", "log"):
            return _json(200, target.order_log())
        if (method, order) == ("POST", "announce"):
            return _json(200, target.order_announce(query))
        if (method, order) == ("POST", "withdraw"):
            return _json(200, target.order_withdraw())
        if (method, order) == ("POST", "fault"):
            name, count = query.get("name", ""), query.get("count", "")
            text = f"{name}:{count}" if count else name
            return _json(200, target.order_fault(text))
        if (method, order) == ("POST", "reset"):
            return _json(200, target.order_reset())
    except UsageError as wrong:
        return _json(400, {"error": wrong.message, "hint": wrong.hint})
    hint = "POST announce, withdraw, fault?name=...&count=..., reset; GET log"
    return _json(404, {"error": f"no order {method} {path}", "hint": hint})


def _json(status: int, answer: Any) -> tuple[int, bytes]:
    return status, json.dumps(answer).encode() + b"\n"
