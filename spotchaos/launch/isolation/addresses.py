"""Addresses and ports that a program needs in a network of its own."""

from __future__ import annotations

import functools
import ipaddress
import socket


@functools.cache
def own_addresses() -> tuple[str, ...]:
    """Return the addresses that our host name stands for, loopback ones left out.

    Gloo binds to the address of the host name; in a network that has only loopback, that
    address must be there as well.
    """
    try:
        answers = socket.getaddrinfo(
            socket.gethostname(), None, type=socket.SOCK_STREAM
        )
    except OSError:
        return ()
    found = dict.fromkeys(str(answer[4][0]).split("%")[0] for answer in answers)
    return tuple(a for a in found if not ipaddress.ip_address(a).is_loopback)


def free_port() -> int:
    """Return a TCP port on 127.0.0.1 that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
