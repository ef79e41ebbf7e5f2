"""The outcomes of the report tests, as a fixture."""

import importlib.util
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location(
    "report_outcomes", Path(__file__).parents[1] / "report" / "outcomes.py"
)
_MODULE = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_MODULE)


@pytest.fixture(scope="session")
def outcomes():
    return _MODULE
