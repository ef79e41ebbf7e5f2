"""A repository of somebody else's, and a campaign that ends as a test wants it to."""

import importlib.util
from pathlib import Path

import pytest

import spotchaos.pytest_support

_PATH = Path(__file__).parents[1] / "report" / "outcomes.py"
_SPEC = importlib.util.spec_from_file_location("plugin_outcomes", _PATH)
_OUTCOMES = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_OUTCOMES)

# For workers and other processes, which a monkeypatch does not reach.
CONFTEST = f"""
import importlib.util
import spotchaos.pytest_support

spec = importlib.util.spec_from_file_location("outcomes", {str(_PATH)!r})
outcomes = importlib.util.module_from_spec(spec)
spec.loader.exec_module(outcomes)
def interrupted():
    import dataclasses
    return dataclasses.replace(outcomes.held(), interrupted=True)

outcomes.interrupted = interrupted
spotchaos.pytest_support.run = lambda settings, listener, layer: outcomes.{{name}}()
"""

CLAIM = """\
summary = "a reclaim between two saves loses nothing but time"
kill-at = ["step-end:7"]

[expect]
verdict = "held"
"""


@pytest.fixture(scope="session")
def outcomes():
    return _OUTCOMES


@pytest.fixture
def campaign(monkeypatch, outcomes):
    """Put a campaign in the place of the real one; it keeps the settings it was given."""

    class Campaign:
        outcome = outcomes.held()
        settings = None

        def run(self, settings, listener, *, layer):
            self.settings = settings
            return self.outcome

    fake = Campaign()
    monkeypatch.setattr(spotchaos.pytest_support, "run", fake.run)
    return fake


@pytest.fixture
def repository(pytester):
    """Return a function that writes scenarios by name, and the repository around them."""

    class Repository:
        path = pytester.path

        def write(self, text=CLAIM, name="scenarios/reclaim.toml"):
            path = pytester.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            return path

        def pytest(self, *args):
            return pytester.runpytest_inprocess("-p", "no:cacheprovider", *args)

        def pytest_elsewhere(self, *args, outcome="held"):
            (pytester.path / "conftest.py").write_text(CONFTEST.format(name=outcome))
            return pytester.runpytest_subprocess(*args)

    return Repository()
