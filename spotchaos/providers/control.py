"""The orders that a stand-alone server takes while it runs, under `/_spotchaos/`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import parse_qsl

from spotchaos.errors import UsageError, closest

PREFIX = "/_spotchaos/"
# What each order that is posted may be told.
_TOLD = {
    "announce": ("after",),
    "withdraw": (),
    "fault": ("name", "count"),
    "reset": (),
}


class Controlled(Protocol):
    """What can be ordered about; an order that makes no sense raises UsageError."""

    def order_announce(self, query: Mapping[str, str]) -> Mapping[str, Any]: ...

    def order_withdraw(self) -> Mapping[str, Any]: ...

    def order_fault(self, text: str) -> Mapping[str, Any]: ...

    def order_reset(self) -> Mapping[str, Any]: ...

    def order_log(self) -> Sequence[Mapping[str, Any]]: ...


def carry_out(
    target: Controlled,
    method: str,
    path: str,
    query: Mapping[str, str],
    body: bytes = b"",
) -> tuple[int, bytes]:
    """Carry out one order.

    Args:
        target: whom it is for.
        method: of the HTTP request.
        path: from the leading slash, prefix included.
        query: its parameters.
        body: more of them, as a form or a JSON object.

    Returns:
        An HTTP status and a JSON body: what is now, or `error` and `hint`.
    """
    order = path.removeprefix(PREFIX).rstrip("/")
    try:
        if (method, order) == ("GET", "log"):
            return _json(200, target.order_log())
        if method == "POST" and order in _TOLD:
            query = _told(order, query, body)
        if (method, order) == ("POST", "announce"):
            return _json(200, target.order_announce(query))
        if (method, order) == ("POST", "withdraw"):
            return _json(200, target.order_withdraw())
        if (method, order) == ("POST", "fault"):
            # In a query a plus sign is a space, unless it is written %2B.
            name, count = query.get("name", ""), query.get("count", "")
            count = f"{count[:-1]}+" if count.endswith(" ") else count
            text = f"{name}:{count}" if count else name
            return _json(200, target.order_fault(text))
        if (method, order) == ("POST", "reset"):
            return _json(200, target.order_reset())
    except UsageError as wrong:
        return _json(400, {"error": wrong.message, "hint": wrong.hint})
    hint = "POST announce, withdraw, fault?name=...&count=..., reset; GET log"
    return _json(404, {"error": f"no order {method} {path}", "hint": hint})


def _told(order: str, query: Mapping[str, str], body: bytes) -> Mapping[str, str]:
    """Return the parameters of an order, wherever they stand.

    Raises:
        UsageError: the body is neither a form nor a JSON object, or one of them means
            nothing to this order: it would be carried out otherwise than was meant.
    """
    told = {**query, **_fields(body)}
    for name in told:
        if name not in _TOLD[order]:
            known = ", ".join(_TOLD[order]) or "nothing"
            raise UsageError(
                f"{order} knows no {name[:40]!r}",
                hint=closest(name, _TOLD[order]) or f"it can be told {known}",
            )
    return told


def _fields(body: bytes) -> dict[str, str]:
    text = body.decode("utf-8", errors="replace").strip()
    if not text:
        return {}
    try:
        if not text.startswith(("{", "[")):
            return dict(parse_qsl(text, keep_blank_values=True, strict_parsing=True))
        found = json.loads(text)
        return {name: str(value) for name, value in found.items()}
    except (ValueError, AttributeError, RecursionError):
        raise UsageError(
            "the body is neither a form nor a JSON object",
            hint="send parameters in the URL, as in fault?name=429&count=3",
        ) from None


def _json(status: int, answer: Any) -> tuple[int, bytes]:
    return status, json.dumps(answer).encode() + b"\n"
