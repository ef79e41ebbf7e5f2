"""Wires to a notice, under a clock that stands still."""

from contextlib import ExitStack
from datetime import UTC, datetime

import pytest
import requests

from spotchaos.clock import ManualClock
from spotchaos.providers.service import NoticeService
from spotchaos.providers.serving import in_process, on_loopback
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


@pytest.fixture(params=["in-process", "loopback"])
def play(request):
    """Open a wire to a story; call it with the story, or its name."""
    with ExitStack() as open_wires:

        def start(name, *, announce=True, time_scale=1.0, **options):
            clock = ManualClock(START)
            told = name if isinstance(name, Story) else story(name, **options)
            service = NoticeService(told, clock=clock, time_scale=time_scale)
            wire = in_process if request.param == "in-process" else on_loopback
            base_url = open_wires.enter_context(wire(service))
            if announce:
                service.announce()
            return Asker(service, clock, base_url)

        yield start
