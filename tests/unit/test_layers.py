"""Who may import whom: the table of the architecture, held by a test."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import spotchaos

PACKAGE = Path(spotchaos.__file__).parent

BASE = {"errors"}
NOUNS = BASE | {"model", "findings", "clock", "settings", "timing"}
PLANS = NOUNS | {"plan", "trace", "events", "strategies", "scenario", "token"}
PLANS |= {
    "options",
    "output_options",
    "spellings",
    "followups",
    "config",
    "explanations",
}
ALLOWED = {
    "errors": set(),
    "clock": BASE,
    "timing": set(),
    "cost": BASE | {"timing"},
    "findings": BASE,
    "model": BASE | {"findings"},
    "plan": BASE | {"trace"},
    "followups": BASE | {"plan", "trace"},
    "settings": BASE | {"findings", "plan", "followups"},
    "spellings": set(),
    "output_options": {"spellings"},
    "options": BASE | {"settings", "plan", "findings", "spellings", "output_options"},
    "config": BASE | {"options", "settings"},
    "token": BASE | {"plan", "settings"},
    "events": NOUNS,
    # Which notices and faults there are is said by their own tables.
    "strategies": PLANS | {"providers", "injectors"},
    "scenario": PLANS,
    "trace": BASE | {"model", "findings"},
    "oracles": BASE | {"model", "findings", "trace"},
    "persistence": BASE | {"model", "findings", "trace"},
    "providers": BASE | {"clock"},
    "stores": BASE | {"clock"},
    "probe": BASE | {"trace"},
    "training": BASE | {"clock", "stores", "providers"},
    "launch": BASE | {"model", "clock", "trace", "persistence", "settings"},
    "injectors": BASE
    | {"launch", "providers", "stores", "model", "clock", "trace", "persistence"},
    "report": PLANS,
}
# trial, campaign and what belongs to them may import everything but these.
FOR_NOBODY = {"training", "specimens"}
FRONTS = {"cli", "pytest_plugin", "__main__", "report", "specimens", "training"}


def imported_layers(path):
    """Return the names below `spotchaos` that a module imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module == "spotchaos":
                names = [f"spotchaos.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "spotchaos" and len(parts) > 1:
                found.add(parts[1])
    return found - {"__version__"}


def modules_of(layer):
    single = PACKAGE / f"{layer}.py"
    return [p for p in (single, *(PACKAGE / layer).rglob("*.py")) if p.exists()]


@pytest.mark.parametrize("layer", sorted(ALLOWED))
def test_a_layer_imports_only_what_lies_below_it(layer):
    found = {name for path in modules_of(layer) for name in imported_layers(path)}
    assert found - {layer} <= ALLOWED[layer]


def test_nothing_but_the_fronts_imports_the_reference_or_the_specimens():
    layers = {p.stem if p.is_file() else p.name for p in PACKAGE.iterdir()}
    for layer in layers - FRONTS:
        found = {name for path in modules_of(layer) for name in imported_layers(path)}
        assert not found & FOR_NOBODY, layer


@pytest.mark.parametrize(
    "module",
    [
        "spotchaos",
        "spotchaos.cli",
        "spotchaos.campaign",
        "spotchaos.pytest_plugin",
        "spotchaos.cost",
    ],
)
def test_the_harness_starts_without_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
