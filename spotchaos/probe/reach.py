"""What the program's own names lead to: found where the garbage collector does not look.

A `torch.Generator` is not tracked by it, nor can its making be seen: its type is fixed. So
the way is followed from the program's modules and running functions through containers
and objects of the program's own classes.
"""

from __future__ import annotations

import gc
import os
import sys
import types
from collections import OrderedDict, deque
from functools import partial
from typing import TYPE_CHECKING

from spotchaos.probe.paths import is_installed, static_attribute
from spotchaos.probe.session import SESSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

_MOST_OBJECTS = 20_000
_ALONE = 3  # references: the frame's, a name, the argument of the question
_LONGEST = 1000  # a longer list holds data
_OPTIMIZED = 1  # flag of the code of functions, whose locals are not a dict
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_CARRIERS = (types.MethodType, types.GeneratorType, types.CellType, partial)


def own_modules() -> Iterator[Any]:
    """Yield the modules that lie in the program's folder or beside its script."""
    main = sys.modules.get("__main__")
    script = static_attribute(main, "__file__")
    folders = {
        SESSION.orders["folder"],
        script and os.path.dirname(os.path.abspath(script)),
    }
    near = tuple(os.path.join(folder, "") for folder in folders if folder)
    for module in list(sys.modules.values()):
        file = static_attribute(module, "__file__")
        # The folder may hold the whole interpreter, as one with a virtual environment.
        if isinstance(file, str) and file.startswith(near) and not is_installed(file):
            yield module


def reached(kind: type, more: Iterable[Any]) -> list[Any]:
    """Return the instances of a type that the program's names lead to, each once.

    Args:
        kind: the type itself; instances of subclasses do not count.
        more: other objects to begin at, as the data sets of loaders.
    """
    modules = [sys.modules.get("__main__"), *own_modules()]
    names = {static_attribute(module, "__name__") for module in modules}
    waiting = deque([*more, *(vars(m) for m in modules if m is not None)])
    waiting.extend(_locals(names))
    # Kept while we look: another object may get the number of one that went.
    seen: dict[int, Any] = {}
    found: list[Any] = []
    begins = {id(one) for one in waiting}
    while waiting and len(seen) < _MOST_OBJECTS:
        one = waiting.popleft()
        if id(one) in seen:
            continue
        seen[id(one)] = one
        if type(one) is kind:
            found.append(one)
        else:
            waiting.extend(_within(one, names, any_length=id(one) in begins))
    return found


def _locals(names: set[str | None]) -> Iterator[Any]:
    """Yield what the running functions of the program's own modules hold."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        own = frame.f_globals.get("__name__") in names
        if own and frame.f_code.co_flags & _OPTIMIZED:
            held = frame.f_locals
            yield list(held.values())
            # Until Python 3.13 that was a copy which the frame keeps, and with it what
            # the function lets go of: a model, a graph. Others may have asked for it too.
            if type(held) is dict and sys.getrefcount(held) <= _ALONE:
                held.clear()
            del held
        frame = frame.f_back


def _within(one: Any, names: set[str | None], *, any_length: bool) -> Iterable[Any]:
    """Return what an object holds, without a word to it: a proxy would wake up."""
    kind = type(one)
    if kind in _CONTAINERS:
        if len(one) > _LONGEST and not any_length:
            return ()
        return list(one.values()) if kind is dict else list(one)
    if kind is types.FunctionType:
        return (*(one.__closure__ or ()), *(one.__defaults__ or ()))
    if kind in _CARRIERS:
        return gc.get_referents(one)
    if issubclass(kind, types.ModuleType):
        return ()
    if issubclass(kind, type):
        held = type.__dict__["__dict__"].__get__(one)
        return list(held.values()) if held.get("__module__") in names else ()
    if type.__getattribute__(kind, "__module__") in names:
        return gc.get_referents(one)
    try:
        held = object.__getattribute__(one, "__dict__")
    except AttributeError:
        return ()
    # A container of modules, such as `Sequential`, may hold modules of the program's own.
    inner = held.get("_modules")
    return list(inner.values()) if type(inner) in (dict, OrderedDict) else ()
