"""Proxies between a program and the network: what we play on this machine is not behind them.

A proxy that the user's environment names is that of this machine. Not so one that a
program names by itself: then its requests go to it, as they would anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping

# By which clients (requests, urllib, httpx, curl, botocore) find a proxy for http.
VARIABLES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
EXCEPTIONS = ("no_proxy", "NO_PROXY")
THIS_MACHINE = ("127.0.0.1", "localhost")


def proxy_variable(environment: Mapping[str, str], hosts: tuple[str, ...]) -> str:
    """Return the variable whose proxy stands before one of `hosts`; empty: none does.

    With no hosts given, any will do.
    """
    excepted = set(_names(_first(environment, EXCEPTIONS)))
    if "*" in excepted or (hosts and set(hosts) <= excepted):
        return ""
    return next((name for name in VARIABLES if environment.get(name)), "")


def past_proxies(
    environment: Mapping[str, str], extra: Mapping[str, str]
) -> dict[str, str]:
    """Return what lets requests to our fakes pass a proxy by.

    Args:
        environment: the program's own.
        extra: variables of ours; its NO_PROXY names what we play.
    """
    played = _names(extra.get("NO_PROXY", ""))
    if not proxy_variable(environment, ()):
        # A program that names a proxy itself has to except its cloud itself as well.
        played = [name for name in played if name in THIS_MACHINE]
    own = _names(_first(environment, EXCEPTIONS))
    names = ",".join(dict.fromkeys([*own, *THIS_MACHINE, *played]))
    return dict.fromkeys(EXCEPTIONS, names)


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((environment[name] for name in names if environment.get(name)), "")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
