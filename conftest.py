"""What every test relies on: no connection but loopback, and Hypothesis profiles."""

from __future__ import annotations

import os
import socket

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["pytester"]

settings.register_profile("dev", deadline=None)
settings.register_profile(
    "ci",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("deep", deadline=None, max_examples=2000)
# The same examples each time, so that a red test is red for everybody; `dev` looks on.
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """Keep baselines of this session apart from those of whoever runs it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


LOOPBACK = ("127.", "::1", "localhost", "0.0.0.0")


class NotLoopbackError(AssertionError):
    """A test tried to reach an address that is not on this machine."""


@pytest.fixture(autouse=True)
def loopback_only(monkeypatch):
    """Refuse every connection of this process that is not loopback."""
    real = socket.socket.connect

    def connect(self, address):
        if self.family in (socket.AF_INET, socket.AF_INET6) and not str(
            address[0]
        ).startswith(LOOPBACK):
            raise NotLoopbackError(f"a test connects to {address!r}")
        return real(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect)
