"""Built-in addresses lead to our server, whatever client asks; all others lead nowhere.

Every program here runs where there is no network at all but a loopback of its own: a
request that was not redirected could not leave.
"""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import spotchaos
from spotchaos.probe import redirect

CLIENTS = Path(__file__).with_name("clients.py")


@pytest.fixture(scope="module")
def answers():
    """Run every client once, in a network namespace of its own."""
    try:
        subprocess.run(["unshare", "-r", "-n", "true"], check=True, timeout=10)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("network namespaces are not allowed here")
    done = subprocess.run(
        ["unshare", "-r", "-n", sys.executable, str(CLIENTS)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("client", "expected"),
    [
        ("requests", "terminate"),
        ("requests over ipv6", "terminate"),
        ("urllib", "terminate"),
        ("http.client", "terminate"),
        ("httpx", "terminate"),
        ("httpx async", "terminate"),
        ("aiohttp", "terminate"),
        ("asyncio over ipv6", "terminate"),
        ("botocore", "spotchaos"),
        ("requests at google", "TRUE"),
        ("aiohttp at google", "TRUE"),
        ("requests at alibaba", 200),
        ("requests at azure", "Preempt"),
        ("curl", "terminate"),
    ],
)
def test_a_built_in_address_leads_to_our_server(answers, client, expected):
    if answers[client] is None:
        pytest.skip(f"{client} is not installed")
    assert answers[client] == expected


@pytest.mark.parametrize(
    ("poller", "sees_it"),
    [
        ("poller of version 1", True),
        ("poller without a token", False),
        ("poller without a notice", False),
    ],
)
def test_the_tutorial_poller_sees_version_1_only(answers, poller, sees_it):
    assert answers[poller] is sees_it


@pytest.mark.parametrize(
    "way",
    [
        "tcp",
        "ipv6",
        "name",
        "gethostbyname",
        "gethostbyname_ex",
        "gethostbyaddr",
        "getnameinfo",
        "udp",
        "sendto",
        "sendmsg",
        "connect_ex",
    ],
)
def test_no_request_leaves_the_machine(answers, way):
    assert answers["elsewhere"][way] is True


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def mapped(listener):
    port = listener.getsockname()[1]
    redirect.install({"192.0.2.7:80": f"127.0.0.1:{port}"}, ["192.0.2.9:443"])
    yield port
    redirect.uninstall()


def test_loopback_connections_are_left_alone(mapped):
    with socket.create_connection(("localhost", mapped), timeout=5) as link:
        assert link.getpeername()[1] == mapped


def test_connect_ex_is_redirected_too(mapped):
    with socket.socket() as link:
        assert link.connect_ex(("192.0.2.7", 80)) == 0
        assert link.getpeername() == ("127.0.0.1", mapped)


def test_another_port_of_a_redirected_address_is_refused(mapped):
    with (
        socket.socket() as link,
        pytest.raises(ConnectionRefusedError, match="refused"),
    ):
        link.connect(("192.0.2.7", 81))


def test_an_address_of_this_machine_is_not_refused(mapped, monkeypatch):
    own = {"192.0.2.10"}
    monkeypatch.setattr(redirect, "_is_own", lambda host: host in own)
    found = []
    for host in ("192.0.2.10", "192.0.2.11"):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
            try:
                # The suite's own guard stands behind the redirect and says no to both.
                link.connect((host, 9))
            except ConnectionRefusedError:
                found.append("refused by the redirect")
            except AssertionError:
                found.append("let through")
    assert found == ["let through", "refused by the redirect"]


def test_one_knows_its_own_addresses_without_asking():
    assert redirect._is_own("127.0.0.1")
    assert redirect._is_own(socket.gethostname().lower())
    assert not redirect._is_own("192.0.2.1")
    assert not redirect._is_own("example.com")


def test_a_malformed_address_is_left_to_the_socket(mapped):
    with socket.socket() as link:
        for address in (("127.0.0.1",), None):
            with pytest.raises((TypeError, OSError)):
                link.connect(address)


def test_an_address_may_be_bytes(mapped):
    with socket.socket() as link:
        link.connect((b"192.0.2.7", 80))
        assert link.getpeername() == ("127.0.0.1", mapped)


def test_unix_sockets_are_left_alone(mapped, tmp_path):
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as link:
        server.bind(path)
        server.listen()
        link.connect(path)


def test_uninstalling_leaves_sockets_as_they_were(listener):
    names = ("connect", "connect_ex", "sendto", "sendmsg")
    before = [vars(socket.socket).get(name) for name in names], socket.getaddrinfo
    redirect.install({"192.0.2.7": "127.0.0.1:1"})
    redirect.install({"192.0.2.8": "127.0.0.1:1"})
    redirect.uninstall()
    redirect.uninstall()
    after = [vars(socket.socket).get(name) for name in names], socket.getaddrinfo
    assert after == before


@pytest.mark.parametrize("text", ["", ":80", "127.0.0.1:http"])
def test_an_address_that_cannot_be_read_is_named(text):
    with pytest.raises(ValueError, match="cannot read the address"):
        redirect.install({text: "127.0.0.1:1"})


def test_the_environment_says_what_to_redirect(monkeypatch, listener):
    port = listener.getsockname()[1]
    monkeypatch.delenv(redirect.VARIABLE, raising=False)
    assert not redirect.install_from_environment()
    monkeypatch.setenv(redirect.VARIABLE, f"192.0.2.7:80=127.0.0.1:{port}")
    try:
        assert redirect.install_from_environment()
        with socket.create_connection(("192.0.2.7", 80), timeout=5) as link:
            assert link.getpeername() == ("127.0.0.1", port)
    finally:
        redirect.uninstall()


def test_both_sides_spell_the_variable_alike():
    from spotchaos.providers.machine_profile import REDIRECT_VARIABLE

    assert REDIRECT_VARIABLE == redirect.VARIABLE


def test_the_module_needs_only_the_standard_library():
    code = (
        "import sys; before = set(sys.modules); import runpy; "
        f"runpy.run_path({str(Path(redirect.__file__))!r}); "
        "print(sorted(n for n in set(sys.modules) - before if 'spotchaos' in n))"
    )
    found = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert found.stdout.strip() == "[]"
    assert spotchaos.__version__
