"""Clouds and stores as a test's fixtures: nothing that they answer leaves this machine.

A metadata service answers `requests` made by the test's own process; a program that runs
in a process of its own gets its notices through `notice=` of the `spotchaos` fixture.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from spotchaos.injectors.objectstore import S3Store, program_environment
from spotchaos.providers import serving
from spotchaos.providers.service import NoticeService
from spotchaos.providers.stories import story


@contextmanager
def in_process(name: str) -> Iterator[NoticeService]:
    """Play a story to `requests` in this process, silent until `announce()`.

    Args:
        name: of the story: a provider such as "aws", or "aws-rebalance".
    """
    service = NoticeService(story(name))
    with serving.in_process(service):
        yield service


@contextmanager
def object_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Store]:
    """Serve an S3 on loopback, and point every client of this process to it.

    Real credentials are taken from the environment first, so that nothing reaches a
    bucket of the user's. `arm(StorageFault.parse("s3-503:2"))` makes it fail.

    Args:
        monkeypatch: sets the variables, and puts them back.
    """
    with S3Store() as store:
        wanted = program_environment(os.environ) | store.environment()
        for variable in [v for v in os.environ if v not in wanted]:
            monkeypatch.delenv(variable)
        for variable, value in wanted.items():
            if os.environ.get(variable) != value:
                monkeypatch.setenv(variable, value)
        yield store
