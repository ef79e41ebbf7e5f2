"""Fixtures of the probe's tests: a place to run in, and a quick way to run."""

import importlib.util
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location(
    "probe_running", Path(__file__).with_name("running.py")
)
running = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(running)


@pytest.fixture
def place(tmp_path):
    return running.Place(tmp_path)


@pytest.fixture(scope="session")
def _nursery(tmp_path_factory):
    nursery = running.Nursery(tmp_path_factory.mktemp("nursery"))
    yield nursery
    nursery.close()


@pytest.fixture
def quick(_nursery, place):
    """Run a script in a child forked from a parent that has loaded torch."""

    def run(script, **options):
        return _nursery.run(place, script, **options)

    return run
