"""Random generators of the program's own: NumPy's, Python's and torch's.

Those that are not the global ones, and no loader's. Nothing tells of their making, and
looking for them among all objects takes 10 ms. So it is done only for a program whose
code names their types, where averages are looked for as well: at its first sample and
after a save.
"""

from __future__ import annotations

import gc
import sys
import weakref
from types import FunctionType
from typing import TYPE_CHECKING

from spotchaos.probe.components import LOADERS, generators
from spotchaos.probe.paths import is_installed, static_attribute
from spotchaos.probe.reach import own_modules, reached

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

# Module and name of a type -> the names by which code makes one.
_KINDS = {
    ("numpy.random", "Generator"): frozenset(("default_rng", "Generator")),
    ("numpy.random", "RandomState"): frozenset(("RandomState",)),
    ("random", "Random"): frozenset(("Random",)),
}
_TORCH = "Generator"  # the name of torch's, which is reached in a way of its own
_MOST_OBJECTS = 2_000_000
_MOST_KEPT = 64


class OwnGenerators:
    """Those that were alive at the last search."""

    def __init__(self) -> None:
        # NumPy's take no weak references; each search lets go of those before.
        self._found: list[Any] = []
        self._foreign: list[Any] = []  # generators that belong to libraries
        self._named: set[str] = set()  # makers that the program's code names,
        self._modules = 0  # ... when so many modules were there

    def search(self) -> None:
        """Look for generators of the kinds that the program's code names."""
        self._found = []
        if self._modules != len(sys.modules):
            self._modules = len(sys.modules)
            self._named = _named()
        if _TORCH in self._named:
            self._found += _of_torch()
        kinds = {
            kind: module
            for (module, name), makers in _KINDS.items()
            if (kind := getattr(sys.modules.get(module), name, None)) is not None
            and makers & self._named
        }
        if not kinds:
            return
        foreign = {id(one) for one in (*_shared(), *self._foreign)}
        alive = [
            found
            for found in gc.get_objects()[:_MOST_OBJECTS]
            if type(found) in kinds and id(found) not in foreign
        ]
        if len(alive) > _MOST_KEPT:
            return  # so many belong to a library
        libraries = _of_libraries(alive) if alive else []
        self._foreign += libraries
        for found in alive:
            if not any(found is one for one in libraries):
                weak = kinds[type(found)] == "random"
                self._found.append(weakref.ref(found) if weak else found)

    def live(self) -> list[Any]:
        """Return them."""
        found = [f() if isinstance(f, weakref.ref) else f for f in self._found]
        return [one for one in found if one is not None]


OWN_GENERATORS = OwnGenerators()


def _of_torch() -> list[Any]:
    torch = sys.modules["torch"]
    starts: list[Any] = []
    for loader in LOADERS.live():
        held = vars(loader)
        starts += [held.get("dataset"), held.get("sampler"), held.get("batch_sampler")]
        starts.append(held.get("collate_fn"))
    others = [torch.default_generator, *generators()]
    if torch.cuda.is_initialized():
        others += torch.cuda.default_generators
    foreign = {id(one) for one in others}
    found = reached(torch.Generator, starts)
    return [one for one in found if id(one) not in foreign][:_MOST_KEPT]


def _shared() -> list[Any]:
    """Return those that belong to everyone, or to Python's own modules."""
    modules = sys.modules
    names = getattr(modules.get("tempfile"), "_name_sequence", None)
    return [
        getattr(modules.get("random"), "_inst", None),
        getattr(modules.get("numpy.random.mtrand"), "_rand", None),
        getattr(names, "_rng", None),
    ]


def _of_libraries(generators: list[Any]) -> list[Any]:
    """Return those that a module or a class of installed code keeps, as sympy does.

    They are seeded as the library likes, and nobody would save them.
    """
    kept: set[int] = set()
    for referrer in gc.get_referrers(*generators):
        if not isinstance(referrer, dict):
            continue
        # A module's names tell its own; a class's, the module that it is of.
        owner = referrer.get("__module__") or referrer.get("__name__")
        module = sys.modules.get(owner) if isinstance(owner, str) else None
        file = static_attribute(module, "__file__")
        if isinstance(file, str) and is_installed(file):
            kept.update(map(id, list(referrer.values())))
    return [one for one in generators if id(one) in kept]


def _named() -> set[str]:
    wanted = frozenset((_TORCH,)).union(*_KINDS.values())
    found: set[str] = set()
    for top in _tops():
        for code in _nested(top):
            found.update(wanted.intersection(code.co_names))
    return found


def _nested(code: Any) -> Iterator[Any]:
    stack = [code]
    while stack:
        code = stack.pop()
        yield code
        stack += [one for one in code.co_consts if hasattr(one, "co_consts")]


def _tops() -> Iterator[Any]:
    """Yield the code that is at work, the main module's included, and of its neighbours."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back
    for module in own_modules():
        for value in list(vars(module).values()):
            for one in (value, *(vars(value).values() if type(value) is type else ())):
                if type(one) in (staticmethod, classmethod):
                    one = one.__func__
                # Nothing else is asked for its code: a proxy would wake up.
                if type(one) is FunctionType:
                    yield one.__code__
