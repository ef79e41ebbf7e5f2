"""Wires to a notice, under a clock that stands still."""

import _socket
import os
import socket
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
import requests

from spotchaos.clock import ManualClock
from spotchaos.probe import redirect
from spotchaos.providers import ADDRESSES
from spotchaos.providers.loopback import LoopbackServer
from spotchaos.providers.machine_profile import redirects_for, url_host
from spotchaos.providers.service import NoticeService
from spotchaos.providers.serving import MetadataApp, in_process, on_loopback
from spotchaos.providers.stories import Story, story

START = datetime(2026, 1, 1, tzinfo=UTC)


class Asker:
    """One wire, its service and its clock."""

    def __init__(self, service, clock, base_url):
        self.service = service
        self.clock = clock
        self.base_url = base_url

    def ask(self, method, path, body=None, **headers):
        return requests.request(
            method,
            self.base_url + path,
            data=body,
            headers={name.replace("_", "-"): value for name, value in headers.items()},
            timeout=10,
            allow_redirects=False,
        )

    def get(self, path, **headers):
        return self.ask("GET", path, **headers)


@contextmanager
def redirected(service):
    """Answer at the provider's own address, as the probe has it for the program's sockets."""
    address = ADDRESSES[service.story.provider][0]
    with on_loopback(service) as base_url:
        redirect.install(redirects_for(service.story.provider, base_url))
        try:
            yield f"http://{url_host(address)}"
        finally:
            redirect.uninstall()


@contextmanager
def at_real_address(service):
    """Answer at the provider's own address, in a network that has nothing else."""
    known = ADDRESSES[service.story.provider]
    address = next((a for a in known if a[0].isdigit()), "169.254.169.254")
    app = MetadataApp(service)
    with LoopbackServer(app, host=address, port=80):
        yield f"http://{address}"
        service.close()


# In a network namespace of its own (`test_contracts`) there is one more, and only that.
IS_ALONE = bool(os.environ.get("SPOTCHAOS_TEST_ALONE"))
WIRES = {
    "in-process": in_process,
    "loopback": on_loopback,
    "redirected": redirected,
}


@pytest.fixture(params=["real-address"] if IS_ALONE else list(WIRES))
def play(request, monkeypatch):
    """Open a wire to a story; call it with the story, or its name."""
    wire = WIRES.get(request.param, at_real_address)
    monkeypatch.setenv("NO_PROXY", "*")
    if IS_ALONE:
        devices = Path("/proc/net/dev").read_text().count(":")
        assert devices == 1  # else a request could leave the machine
        monkeypatch.setattr(socket.socket, "connect", _socket.socket.connect)
    with ExitStack() as open_wires:

        def start(name, *, announce=True, time_scale=1.0, **options):
            clock = ManualClock(START)
            told = name if isinstance(name, Story) else story(name, **options)
            service = NoticeService(told, clock=clock, time_scale=time_scale)
            base_url = open_wires.enter_context(wire(service))
            if announce:
                service.announce()
            return Asker(service, clock, base_url)

        yield start
