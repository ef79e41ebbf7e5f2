"""Who may import whom: the table of the architecture, held by a test."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import spotchaos

PACKAGE = Path(spotchaos.__file__).parent
LAYERS = tomllib.loads(Path(__file__).with_name("layers.toml").read_text())

# The fronts and the layers in between may import everything but these.
FOR_NOBODY = {"training", "specimens"}
FRONTS = {"cli", "pytest_support", "pytest_plugin", "__main__", "specimens", "training"}


def module_name(path):
    """Return the dotted name of a module below `spotchaos`."""
    parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(name):
    """Return the layer of a dotted name: the longest that the table has, or its root."""
    parts = name.split(".")
    fitting = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((layer for layer in fitting if layer in LAYERS), parts[0])


MODULES = {
    module_name(path): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if "specimens" not in path.parts
}


def imported_layers(path):
    """Return the layers that a module imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [
                whole if whole.removeprefix("spotchaos.") in MODULES else node.module
                for alias in node.names
                for whole in [f"{node.module}.{alias.name}"]
            ]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        below = [
            name.split(".", 1)[1] for name in names if name.startswith("spotchaos.")
        ]
        found.update(layer_of(name) for name in below)
    return found


def layers_imported_by(layer):
    return {
        other
        for name, path in MODULES.items()
        if layer_of(name) == layer
        for other in imported_layers(path)
    } - {layer}


@pytest.mark.parametrize("layer", sorted(LAYERS))
def test_a_layer_imports_only_what_the_table_allows(layer):
    assert layers_imported_by(layer) <= set(LAYERS[layer]["may"])


def test_each_layer_may_import_only_layers_above_it_in_the_table():
    order = [*LAYERS]
    for layer, row in LAYERS.items():
        later = [name for name in row["may"] if name in order[order.index(layer) :]]
        assert not later, layer


def test_each_package_has_its_layer():
    layers = {layer_of(name) for name in MODULES if name}
    assert layers - set(LAYERS) - FRONTS == {"launch"}


def test_nothing_but_the_fronts_imports_the_reference_or_the_specimens():
    for layer in {layer_of(name) for name in MODULES} - FRONTS:
        assert not layers_imported_by(layer) & FOR_NOBODY, layer


def test_no_two_modules_have_one_name():
    names = [path.stem for path in MODULES.values()]
    twice = {name for name in names if names.count(name) > 1}
    assert twice <= {"__init__", "__main__"}


@pytest.mark.parametrize(
    "module",
    [
        "spotchaos",
        "spotchaos.cli",
        "spotchaos.campaign.campaign",
        "spotchaos.pytest_plugin",
    ],
)
def test_the_harness_starts_without_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
