# mypy: ignore-errors
# ruff: noqa: ANN202 - no annotations, so that an old Python can at least parse it
"""The way in: Python runs this file at start-up, since its folder is on PYTHONPATH.

It loads the probe if there are orders, and then runs the `sitecustomize` that it hides.
Without orders it does the second thing only, so that it is harmless in every child.
"""

import sys


def _begin():
    import os

    orders = os.environ.get("SPOTCHAOS_ORDERS")
    if not orders or sys.version_info < (3, 9):
        return
    package = os.path.dirname(
        os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    )
    # A stub keeps the package's own `__init__`, and what it may import one day, out of
    # the program; without it, a `spotchaos` of the program's own is the one it imports.
    stub = type(sys)("spotchaos")
    stub.__path__ = [package]
    before = sys.modules.get("spotchaos")
    sys.modules["spotchaos"] = stub
    try:
        from spotchaos.probe.start import begin
    finally:
        if before is None:
            del sys.modules["spotchaos"]
        else:
            sys.modules["spotchaos"] = before
    begin(orders)


def _run_hidden():
    """Run the next `sitecustomize` on `sys.path`, as if this one were not there."""
    from importlib.machinery import PathFinder

    here = __file__.rpartition("/")[0]
    path = [p for p in sys.path if p.rstrip("/") != here]
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    module = type(sys)("sitecustomize")
    module.__spec__ = spec
    module.__file__ = spec.origin
    module.__loader__ = spec.loader
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


try:
    _begin()
except Exception as error:  # the program must start, whatever is wrong with us
    sys.stderr.write("spotchaos: the probe did not start: " + repr(error) + "\n")
_run_hidden()
