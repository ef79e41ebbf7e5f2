"""The outcomes of the report tests, and a campaign that ends with one of them."""

import importlib.util
import sys
import types
from pathlib import Path

import pytest
from click.testing import CliRunner

_SPEC = importlib.util.spec_from_file_location(
    "cli_outcomes", Path(__file__).parents[1] / "report" / "outcomes.py"
)
_MODULE = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_MODULE)


@pytest.fixture(scope="session")
def outcomes():
    return _MODULE


@pytest.fixture
def spotchaos(monkeypatch, tmp_path):
    """Run the command in an empty folder."""
    from spotchaos.cli import main

    monkeypatch.chdir(tmp_path)

    def invoke(*args):
        return CliRunner().invoke(main, list(args), prog_name="spotchaos")

    return invoke


@pytest.fixture
def campaign(monkeypatch, outcomes):
    """Put a campaign in the place of the real one; it keeps the settings it was given."""

    class Campaign:
        outcome = None
        settings = None
        raises = None

        def run(self, settings, listener):
            self.settings = settings
            for event in outcomes.events(self.outcome, notes=()):
                if self.raises is not None:
                    raise self.raises
                listener(event)
            return self.outcome

    fake = Campaign()
    fake.outcome = outcomes.held()
    module = types.ModuleType("spotchaos.campaign.campaign")
    module.run = lambda settings, listener: fake.run(settings, listener)
    monkeypatch.setitem(sys.modules, "spotchaos.campaign.campaign", module)
    return fake
