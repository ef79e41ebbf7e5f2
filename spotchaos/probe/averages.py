"""Averaged copies of the weights: what is one, and what only looks like one.

A second live module with the model's shapes may be an average, or a copy that is alive
by accident. An average is one that says so by its type (torch's `AveragedModel`, a class
named after averaging) or is a twin of the model whose parameters take no gradients.
A copy that is made to be saved, or that was read from a checkpoint, is neither until
something changes it: an average is changed in place.
"""

from __future__ import annotations

import collections
import gc
import os
import re
import sys
import weakref
from typing import TYPE_CHECKING

from spotchaos.probe.fingerprint import Digest
from spotchaos.probe.structure import (
    LIVING,
    NAMED_AVERAGE,
    STRUCTURE,
    named_tensors,
)
from spotchaos.probe.values import is_tensor

if TYPE_CHECKING:
    from typing import Any

_VARIABLE = re.compile(r"(^|_)(ema|swa|shadow|averaged?|polyak)(_|\d|$)", re.IGNORECASE)
_OWN_FOLDER = os.path.dirname(os.path.abspath(__file__))
# Their types named so average no weights, or are modules, which are known otherwise.
_NOT_THE_PROGRAMS = ("torch.", "tqdm.", "email.", "spotchaos.probe.")
_OF_MODULES = "torch.nn.modules.module"
# Plain objects are searched among those of the garbage collector, this many at most.
_MOST_OBJECTS = 2_000_000


class Copy:
    """A copied or unpickled module that nothing has changed yet."""

    __slots__ = ("_alive", "digest", "is_read")

    def __init__(self, alive: weakref.ref[Any], *, is_read: bool) -> None:
        self._alive = alive
        self.is_read = is_read
        self.digest: str | None = None  # once there was a sample


class Averages:
    """The averaged copies that were found."""

    def __init__(self) -> None:
        self._holders: list[weakref.ref[Any]] = []
        self._wanted: dict[str, bool] = {}  # type -> whether its objects are
        self._still: dict[int, Copy] = {}  # by id of the module

    def see_copy(self, module: Any, *, is_late: bool, is_read: bool) -> None:
        """Note a copied or unpickled module.

        Args:
            module: what was copied or unpickled.
            is_late: there were steps already; an average is made before, or changes.
            is_read: it comes out of a checkpoint.
        """
        if is_late or is_read:
            key = id(module)
            alive = weakref.ref(module, lambda _: self._still.pop(key, None))
            self._still[key] = Copy(alive, is_read=is_read)

    def _lives(self, module: Any) -> bool:
        """Tell whether a module is more than a copy of one moment."""
        copy = self._still.get(id(module))
        if copy is None:
            return True
        digest = Digest()
        for _, tensor in named_tensors(module, "_parameters"):
            digest.tensor(tensor)
        now, before = digest.hex(), copy.digest
        copy.digest = now
        if before in (None, now):
            return False
        del self._still[id(module)]
        return True

    def _living(self, candidates: list[Any]) -> list[Any]:
        """Return those that are averages, of what looks like one.

        A program may go on with the very average that it read.
        """
        living = [m for m in candidates if self._lives(m)]
        return living or [m for m in candidates if self._still[id(m)].is_read]

    def search_objects(self) -> None:
        """Look for plain objects named after averaging: 10 ms, so at saves and joins."""
        # Hundreds of thousands of objects have a few thousand types: those are asked for
        # their names, and the objects only where a type of the program's is named so.
        kinds = {kind for kind in _kinds() if self._is_wanted(kind)}
        if not kinds:
            return
        known = {id(h()) for h in self._holders}
        for found in gc.get_objects()[:_MOST_OBJECTS]:
            if type(found) not in kinds or id(found) in known:
                continue
            try:
                self._holders.append(weakref.ref(found))
            except TypeError:
                continue

    def _is_wanted(self, kind: type) -> bool:
        """Tell whether a type is named after averaging, and no module's."""
        name = f"{kind.__module__}.{kind.__qualname__}"
        if name not in self._wanted:
            self._wanted[name] = (
                NAMED_AVERAGE.search(kind.__name__) is not None
                and not name.startswith(_NOT_THE_PROGRAMS)
                and not issubclass(kind, type)
                and not any(base.__module__ == _OF_MODULES for base in kind.__mro__)
            )
        return self._wanted[name]

    def tensors(self, roots: list[Any]) -> list[tuple[str, Any]]:
        """Return (name, tensor) of all averaged copies of `roots`."""
        shapes = [_shapes(root) for root in roots]
        found: list[tuple[str, Any]] = []
        if not any(shapes):
            return found
        own = {id(t) for root in roots for _, t in named_tensors(root, "_parameters")}
        number = 0
        candidates = [m for m in LIVING.live_modules() if _is_average(m, shapes, own)]
        # `AveragedModel` holds a copy that may look like one as well: report the outer.
        inner = {id(c) for m in candidates for c in m.modules() if c is not m}
        candidates = self._living([m for m in candidates if id(m) not in inner])
        for module in candidates:
            for table in ("_parameters", "_buffers"):
                for name, tensor in named_tensors(module, table):
                    found.append((f"{number}:{name}", tensor))
            number += 1
        for holder in self._holders:
            kept = holder()
            if kept is not None:
                tensors = _kept_tensors(kept, shapes, own)
                found += [(f"{number}:{name}", tensor) for name, tensor in tensors]
                number += bool(tensors)
        shapes += [
            [tuple(t.shape) for t in root.state_dict(keep_vars=True).values()]
            for root in roots
        ]
        for label, value in _variables():
            tensors = _listed_tensors(label, value, shapes, own)
            found += [(f"{number}:{name}", tensor) for name, tensor in tensors]
            number += bool(tensors)
        return _without_sent(found)


AVERAGES = Averages()


def _without_sent(found: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Leave out averages of buffers that rank 0 sends to this rank at each forward.

    They average what this rank made of its own samples in between, which nobody keeps: a
    checkpoint holds those of rank 0.
    """
    sent = {name.rpartition(":")[2] for name in STRUCTURE.sent_buffers()}
    if not sent:
        return found
    endings = tuple(f".{name}" for name in sent) + tuple(f":{name}" for name in sent)
    return [(name, tensor) for name, tensor in found if not name.endswith(endings)]


def _kinds() -> set[type]:
    """Return all classes that are alive."""
    found: set[type] = {object}
    waiting: list[type] = [object]
    kind: type
    while waiting:
        for kind in type.__subclasses__(waiting.pop()):
            if kind not in found:
                found.add(kind)
                waiting.append(kind)
    return found


def _shapes(module: Any) -> list[Any]:
    return [tuple(p.shape) for _, p in named_tensors(module, "_parameters")]


def _is_average(module: Any, shapes: list[Any], own: set[int]) -> bool:
    parameters = [p for _, p in named_tensors(module, "_parameters")]
    if not parameters or any(id(p) in own for p in parameters):
        return False
    if [tuple(p.shape) for p in parameters] not in shapes:
        return False
    named_so = any(NAMED_AVERAGE.search(kind.__name__) for kind in type(module).__mro__)
    return named_so or not any(p.requires_grad for p in parameters)


def _variables() -> list[tuple[str, Any]]:
    """Return the variables of the program that are named after averaging, by name.

    Those of its main module, and of the functions that are at work. A frame's variables
    are only asked for where one has such a name: asking makes a copy that lives as long
    as the frame.
    """
    main = sys.modules.get("__main__")
    of_main = list(vars(main).items()) if main is not None else []
    found = {name: value for name, value in of_main if _VARIABLE.search(name)}
    frame: Any = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        names = [n for n in code.co_varnames + code.co_cellvars if _VARIABLE.search(n)]
        if names and not code.co_filename.startswith(_OWN_FOLDER):
            for name in names:
                if name in frame.f_locals:
                    found.setdefault(name, frame.f_locals[name])
        frame = frame.f_back
    return sorted(found.items())


def _listed_tensors(
    label: str, value: Any, shapes: list[Any], own: set[int]
) -> list[tuple[str, Any]]:
    """Return the tensors of a dict or list that holds one for each parameter."""
    if type(value) in (dict, collections.OrderedDict):
        pairs = [(f"{label}.{k}", v) for k, v in value.items() if is_tensor(v)]
    elif type(value) in (list, tuple):
        pairs = [(f"{label}.{i}", v) for i, v in enumerate(value) if is_tensor(v)]
    else:
        return []
    is_own = any(id(t) in own for _, t in pairs)
    if is_own or [tuple(t.shape) for _, t in pairs] not in shapes:
        return []
    return pairs


def _kept_tensors(
    holder: Any, shapes: list[Any], own: set[int]
) -> list[tuple[str, Any]]:
    """Return the tensors of a plain object that keeps one for each parameter."""
    for name, value in list(vars(holder).items()):
        if issubclass(type(value), dict):
            pairs = [(str(k), v) for k, v in value.items() if is_tensor(v)]
        elif issubclass(type(value), (list, tuple)):
            pairs = [(str(i), v) for i, v in enumerate(value) if is_tensor(v)]
        else:
            continue
        if any(id(t) in own for _, t in pairs):
            continue
        if pairs and [tuple(t.shape) for _, t in pairs] in shapes:
            return [(f"{name}.{key}", tensor) for key, tensor in pairs]
    return []
