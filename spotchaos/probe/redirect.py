"""Sockets of this process: metadata addresses lead to our servers, all others lead nowhere.

`install` patches `connect` and the name look-ups of Python's socket module, on which
requests, urllib, http.client, httpx, aiohttp and botocore all rest. Standard library only:
it runs inside the program. It cannot reach what opens sockets outside of Python (curl,
gRPC, uvloop): for those there is the private network namespace.
"""

from __future__ import annotations

import _socket
import errno
import os
import socket
from collections.abc import Iterable, Mapping
from typing import Any, Callable

# `ADDRESS:PORT=HOST:PORT`, joined by commas; written by the harness.
VARIABLE = "SPOTCHAOS_REDIRECT"
# `HOST:PORT` or `HOST`, joined by commas: what else may be reached; `*` is everything.
ALLOW_VARIABLE = "SPOTCHAOS_ALLOW_CONNECT"

# Python builds an IntEnum whenever a socket's `family` is read; the C type does not, and
# this is on the path of every connection.
_family_of = _socket.socket.family.__get__
_INET = int(socket.AF_INET)
_INET6 = int(socket.AF_INET6)
# A name that is redirected has to resolve to something: an address of the loopback net
# that nothing listens on, one for each name.
_STAND_IN = "127.83.67.%d"

Address = tuple[str, int]


class _Patch:
    """The patched functions, and what they need to know; one at a time."""

    def __init__(self, mapping: Mapping[str, str], allow: Iterable[str]) -> None:
        self.targets: dict[tuple[str, int], Address] = {}
        self.stand_ins: dict[str, str] = {}
        for source, target in mapping.items():
            self.targets[_split(source, default=80)] = _split(target, default=80)
        for (host, port), leads_to in list(self.targets.items()):
            if not _is_numeric(host):
                stand_in = self._stand_in(leads_to)
                self.stand_ins[host] = stand_in
                self.targets[stand_in, port] = leads_to
        self.allow = {_split(text, default=0) for text in allow if text != "*"}
        self.allows_all = "*" in set(allow)
        # Names and addresses of this machine: torchrun connects to them.
        self.own: dict[str, bool] = {}
        self.original: list[tuple[Any, str, Any]] = []

    def _stand_in(self, target: Address) -> str:
        """Return the address that a name resolves to: its real one where that is known."""
        for (address, _), leads_to in self.targets.items():
            if leads_to == target and _is_numeric(address) and ":" not in address:
                return address
        return _STAND_IN % (len(self.stand_ins) + 1)

    def where(self, family: int, address: Any) -> Any:
        """Return where a connection to `address` really goes.

        Raises:
            OSError: it would leave the machine.
        """
        if not isinstance(address, tuple) or len(address) < 2:
            return address  # the original says what is wrong with it
        host, port = address[0], address[1]
        if not isinstance(host, str):
            host = bytes(host).decode("ascii", "replace")
        if host.startswith("127.") and (host, port) not in self.targets:
            return address
        target = self.targets.get((_plain(host), port))
        if target is not None:
            if family == _INET6:
                # An IPv6 socket reaches an IPv4 loopback server by the mapped address.
                return ("::ffff:" + target[0], target[1], 0, 0)
            return target
        if self.is_allowed(host, port):
            return address
        raise _refusal(host, port)

    def is_allowed(self, host: str, port: int | None) -> bool:
        """Tell whether `host` is this machine, or was allowed by name."""
        host = _plain(host)
        if self.allows_all or _is_loopback(host) or host in self.stand_ins:
            return True
        if (host, 0) in self.allow or (host, port) in self.allow:
            return True
        if host not in self.own:
            self.own[host] = _is_own(host)
        return self.own[host]


_INHERITED = object()
_installed: _Patch | None = None


def install(mapping: Mapping[str, str], allow: Iterable[str] = ()) -> None:
    """Redirect connections, and refuse those that would leave the machine.

    A second call replaces the first one's mapping.

    Args:
        mapping: `{"169.254.169.254:80": "127.0.0.1:4321", ...}`; a source may be an IPv4
            address, an IPv6 one in brackets, or a name; its port is 80 if left out.
        allow: `HOST` or `HOST:PORT` that may be reached all the same; `*` is everything.

    Raises:
        ValueError: an address cannot be read.
    """
    global _installed
    uninstall()
    patch = _Patch(mapping, list(allow))
    for owner, name, make in _PATCHES:
        # The class inherits most of them from C: then there is nothing of its own.
        patch.original.append((owner, name, vars(owner).get(name, _INHERITED)))
        setattr(owner, name, make(getattr(owner, name), patch))
    _installed = patch


def install_from_environment() -> bool:
    """Install what `SPOTCHAOS_REDIRECT` says; return False if it says nothing."""
    text = os.environ.get(VARIABLE, "")
    if not text:
        return False
    pairs = [pair.partition("=") for pair in text.split(",") if pair]
    allow = [name for name in os.environ.get(ALLOW_VARIABLE, "").split(",") if name]
    install({source: target for source, _, target in pairs}, allow)
    return True


def uninstall() -> None:
    """Put back what was patched; safe to call twice."""
    global _installed
    if _installed is None:
        return
    for owner, name, original in reversed(_installed.original):
        if original is _INHERITED:
            delattr(owner, name)
        else:
            setattr(owner, name, original)
    _installed = None


def _connecting(original: Callable[..., Any], patch: _Patch) -> Callable[..., Any]:
    where = patch.where

    def connect(self: socket.socket, address: Any) -> Any:
        family = _family_of(self)
        if family in (_INET, _INET6):
            address = where(family, address)
        return original(self, address)

    return connect


def _connecting_ex(original: Callable[..., Any], patch: _Patch) -> Callable[..., Any]:
    def connect_ex(self: socket.socket, address: Any) -> Any:
        family = _family_of(self)
        if family in (_INET, _INET6):
            try:
                address = patch.where(family, address)
            except OSError as refused:
                return refused.errno
        return original(self, address)

    return connect_ex


def _sending_to(original: Callable[..., Any], patch: _Patch) -> Callable[..., Any]:
    def sendto(self: socket.socket, *args: Any) -> Any:
        family = _family_of(self)
        if family in (_INET, _INET6) and args and isinstance(args[-1], tuple):
            args = (*args[:-1], patch.where(family, args[-1]))
        return original(self, *args)

    return sendto


def _sending_message(original: Callable[..., Any], patch: _Patch) -> Callable[..., Any]:
    def sendmsg(self: socket.socket, *args: Any) -> Any:
        family = _family_of(self)
        if family in (_INET, _INET6) and len(args) == 4 and args[3] is not None:
            args = (*args[:3], patch.where(family, args[3]))
        return original(self, *args)

    return sendmsg


def _looking_up(original: Callable[..., Any], patch: _Patch) -> Callable[..., Any]:
    def getaddrinfo(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        return original(_name(host, patch), port, *args, **kwargs)

    return getaddrinfo


def _looking_up_one(original: Callable[..., Any], patch: _Patch) -> Callable[..., Any]:
    def gethostbyname(hostname: Any) -> Any:
        return original(_name(hostname, patch))

    return gethostbyname


def _looking_up_address(original: Callable[..., Any], patch: _Patch) -> Any:
    def gethostbyaddr(ip_address: Any) -> Any:
        # The name of an address is asked of a name server, even where it is a number.
        if not patch.is_allowed(str(ip_address), None):
            raise _unknown(str(ip_address))
        return original(ip_address)

    return gethostbyaddr


def _naming(original: Callable[..., Any], patch: _Patch) -> Callable[..., Any]:
    def getnameinfo(sockaddr: Any, flags: int) -> Any:
        if not flags & socket.NI_NUMERICHOST and not patch.is_allowed(
            str(sockaddr[0]), None
        ):
            raise _unknown(str(sockaddr[0]))
        return original(sockaddr, flags)

    return getnameinfo


def _name(host: Any, patch: _Patch) -> Any:
    """Return the name or address to look up without asking anybody outside.

    Raises:
        socket.gaierror: only a name server could know it.
    """
    if host is None or host in ("", b"", "<broadcast>"):
        return host
    name = host.decode("idna") if isinstance(host, (bytes, bytearray)) else str(host)
    plain = _plain(name)
    if plain in patch.stand_ins:
        return patch.stand_ins[plain]
    if _is_numeric(plain) or patch.is_allowed(plain, None):
        return host
    raise _unknown(name)


def _unknown(name: str) -> OSError:
    reason = "spotchaos: the name %s is not looked up, no request leaves the machine"
    return socket.gaierror(socket.EAI_NONAME, reason % name)


def _refusal(host: str, port: int) -> OSError:
    reason = "spotchaos: connection to %s:%s refused, no request leaves the machine"
    return ConnectionRefusedError(errno.ECONNREFUSED, reason % (host, port))


def _plain(host: str) -> str:
    """Drop what does not tell hosts apart: case, a final dot, a zone, brackets."""
    return host.partition("%")[0].strip("[]").rstrip(".").lower()


def _is_loopback(host: str) -> bool:
    host = host.removeprefix("::ffff:")
    if host in ("localhost", "::1", "::", "0.0.0.0", "") or host.endswith(".localhost"):
        return True
    return host.startswith("127.") and _is_numeric(host)


def _is_own(host: str) -> bool:
    """Tell whether `host` is this machine's name or address, without asking anybody."""
    if host == socket.gethostname().lower():
        return True
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if not _is_numeric(host):
        return False
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as any_socket:
            any_socket.bind((host, 0))  # possible for one's own addresses only
    except OSError:
        return False
    return True


def _is_numeric(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except (OSError, ValueError):
            continue
        return True
    return False


def _split(text: str, default: int) -> Address:
    """Read `HOST:PORT`, `[IPv6]:PORT` or either without its port."""
    host, bracket, rest = text.rpartition("]")
    if bracket:
        port = rest.lstrip(":")
    else:
        host, _, port = text.partition(":")
    if not host or (port and not port.isdigit()):
        raise ValueError(f"cannot read the address {text!r}")
    return _plain(host), int(port) if port else default


_PATCHES = (
    (socket.socket, "connect", _connecting),
    (socket.socket, "connect_ex", _connecting_ex),
    (socket.socket, "sendto", _sending_to),
    (socket.socket, "sendmsg", _sending_message),
    (socket, "getaddrinfo", _looking_up),
    (socket, "gethostbyname", _looking_up_one),
    (socket, "gethostbyname_ex", _looking_up_one),
    (socket, "gethostbyaddr", _looking_up_address),
    (socket, "getnameinfo", _naming),
)
