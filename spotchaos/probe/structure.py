"""Which live modules are trained, and what their parameters are called.

Names must not depend on wrappers (DDP, compiled modules), on a second module that holds
the same parameters, nor on one that is alive by accident. So for each optimizer we climb
from its parameters to the top, and come down again through modules that only pass on.
"""

from __future__ import annotations

import gc
import re
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any


# What types are called that keep an average of the weights.
NAMED_AVERAGE = re.compile(
    r"(^|_|[a-z0-9])(EMA|Ema|SWA|Swa|Averag|Polyak|Shadow)|^ema|^swa|^shadow"
)


class Living:
    """Live modules and optimizers, by weak reference and in order of appearance."""

    def __init__(self) -> None:
        self.modules: dict[int, weakref.ref[Any]] = {}
        self.optimizers: list[weakref.ref[Any]] = []
        self.trained: dict[
            int, weakref.ref[Any]
        ] = {}  # called in training, no optimizer
        self.leaves: list[Any] = []  # trained tensors of programs without modules
        self.version = 0  # grows with whatever may change the structure
        self.at_death: Callable[[], None] | None = None

    def see_module(self, module: Any) -> None:
        """Remember a module; cheap for one that is known."""
        self.version += 1
        key = id(module)
        if key not in self.modules:
            self.modules[key] = weakref.ref(module, self._forgetting(key))

    def _forgetting(self, key: int) -> Callable[[Any], None]:
        def forget(_reference: Any) -> None:
            self.modules.pop(key, None)
            self.version += 1

        return forget

    def see_optimizer(self, optimizer: Any) -> int:
        """Return the index of an optimizer, in order of creation."""
        for index, known in enumerate(self.optimizers):
            if known() is optimizer:
                return index
        self.optimizers.append(weakref.ref(optimizer))
        self.version += 1
        return len(self.optimizers) - 1

    def see_trained(self, module: Any) -> None:
        """Remember a module that is trained by something that is no optimizer of torch's."""
        if id(module) not in self.trained:
            self.trained[id(module)] = weakref.ref(module)
            self.version += 1

    def see_leaves(self, tensors: list[Any]) -> None:
        """Remember what a loss depends on in a program without modules and optimizers."""
        if self.optimizers or self.trained or self.leaves:
            return
        self.leaves = _leaves_below(tensors)

    def live_modules(self) -> list[Any]:
        found = [reference() for reference in list(self.modules.values())]
        return [m for m in found if m is not None and "_modules" in m.__dict__]

    def live_optimizers(self) -> list[tuple[int, Any]]:
        pairs = [(i, reference()) for i, reference in enumerate(self.optimizers)]
        return [
            (i, o) for i, o in pairs if o is not None and hasattr(o, "param_groups")
        ]

    def working_optimizers(self) -> list[tuple[int, Any]]:
        """Return those that may train: not one whose parameters were frozen for good.

        A teacher that was trained first is no part of the state once it is frozen and
        evaluates: a resume loads it, and makes no optimizer for it. A discriminator that
        is frozen while the other trains goes on in training mode.
        """
        return [pair for pair in self.live_optimizers() if not self._is_done(pair[1])]

    def _is_done(self, optimizer: Any) -> bool:
        # Asked several times a step: the first parameter nearly always decides.
        if any(p.requires_grad for p in parameters_of(optimizer)):
            return False
        own = {id(p) for p in parameters_of(optimizer)}
        holders = [
            module
            for module in self.live_modules()
            if any(id(p) in own for p in module._parameters.values())
        ]
        return bool(holders) and not any(module.training for module in holders)

    def placed_optimizers(
        self, idle: frozenset[int] = frozenset()
    ) -> list[tuple[int, Any]]:
        """Return (place among those that live, optimizer): what fingerprints call it.

        A resumed program may have made one more, and dropped it for the one it loaded.
        A second one with the very state of another is a view that a framework made of
        it, at some step of its own.

        Args:
            idle: indices of those that are left out.
        """
        found: list[Any] = []
        for index, optimizer in self.working_optimizers():
            state = getattr(optimizer, "state", None)
            is_view = any(getattr(o, "state", None) is state for o in found)
            if index not in idle and (state is None or not is_view):
                found.append(optimizer)
        return list(enumerate(found))

    def separate_optimizers(self) -> list[int]:
        """Return the indices of working optimizers, a wrapper and what it wraps as one."""
        found: list[int] = []
        seen: set[int] = set()
        for index, optimizer in self.working_optimizers():
            groups = {id(group) for group in optimizer.param_groups}
            if not groups & seen:
                found.append(index)
            seen |= groups
        return found

    def rivals(self) -> list[list[int]]:
        """Return the indices of optimizers that train the same parameters, by group.

        One that searched for a rate may live on beside the one that then trains. Those
        that share their groups are a wrapper and what it wraps: both are at work.
        """
        live = self.live_optimizers()
        if len(live) < 2:
            return []
        same: dict[frozenset[int], list[int]] = {}
        for index, optimizer in live:
            trained = frozenset(id(p) for p in parameters_of(optimizer))
            same.setdefault(trained, []).append(index)
        of = dict(live)
        return [
            indices
            for indices in same.values()
            if len(indices) > 1
            and len({id(g) for i in indices for g in of[i].param_groups})
            == sum(len(of[i].param_groups) for i in indices)
        ]

    def drop_the_dead(self) -> None:
        """Collect garbage if more than one optimizer seems to live.

        A scheduler and its optimizer hold each other, so that a pair that a loaded one
        took the place of lives until a collection.
        """
        if len(self.live_optimizers()) > 1:
            gc.collect()


LIVING = Living()


def parameters_of(optimizer: Any) -> Iterator[Any]:
    """Yield the parameters of all groups, in order."""
    for group in optimizer.param_groups:
        yield from group["params"]


def numel_of(optimizer: Any) -> int:
    """Return how many numbers the optimizer trains."""
    return sum(int(p.numel()) for p in parameters_of(optimizer))


class Structure:
    """The trained roots and their names, worked out anew only when something changed."""

    def __init__(self) -> None:
        self._key: Any = None
        self._roots: dict[frozenset[int], list[weakref.ref[Any]]] = {}
        self._replicas: list[weakref.ref[Any]] = []

    def roots(self, idle: frozenset[int] = frozenset()) -> list[Any]:
        """Return the modules that hold what the optimizers train, in a settled order.

        Args:
            idle: indices of optimizers that are left out.
        """
        optimizers = LIVING.working_optimizers()
        groups = tuple(
            (i, *(len(g["params"]) for g in o.param_groups)) for i, o in optimizers
        )
        key = (LIVING.version, groups)
        if key != self._key:
            self._roots = {}
            self._replicas = [weakref.ref(m) for m in _find_replicas()]
            self._key = key
        if idle not in self._roots:
            found = _find_roots([o for i, o in optimizers if i not in idle])
            self._roots[idle] = [weakref.ref(m) for m in found]
        return [m for m in (r() for r in self._roots[idle]) if m is not None]

    def parameters(self, idle: frozenset[int] = frozenset()) -> list[tuple[str, Any]]:
        """Return (name, parameter) of all roots; one parameter has one name."""
        return _named(self.roots(idle), "_parameters")

    def buffers(self, idle: frozenset[int] = frozenset()) -> list[tuple[str, Any]]:
        """Return (name, buffer) of all roots, without those that rank 0 is about to send.

        DDP overwrites them on every other rank as the next forward begins: what lies
        there until then is no state, and a checkpoint of rank 0 need not hold it.
        """
        return self._split_buffers(idle)[0]

    def sent_buffers(self) -> frozenset[str]:
        """Return the names of the buffers that rank 0 is about to send to this one."""
        return frozenset(name for name, _ in self._split_buffers(frozenset())[1])

    def _split_buffers(
        self, idle: frozenset[int]
    ) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
        """Return the buffers that are this rank's own, and those that it is sent."""
        found = _named(self.roots(idle), "_buffers")
        sent = {
            id(buffer)
            for replica in (r() for r in self._replicas)
            if replica is not None and replica.will_sync_module_buffers()
            for buffer in replica.module.buffers()
        }
        if not sent:
            return found, []
        return (
            [(name, buffer) for name, buffer in found if id(buffer) not in sent],
            [(name, buffer) for name, buffer in found if id(buffer) in sent],
        )


STRUCTURE = Structure()


def named_tensors(module: Any, table: str) -> Iterator[tuple[str, Any]]:
    """Yield (name, tensor) of a module and its children, each module once."""
    seen: set[int] = set()
    stack = [("", module)]
    while stack:
        prefix, current = stack.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        for name, tensor in current.__dict__.get(table, {}).items():
            if tensor is not None:
                yield prefix + name, tensor
        children = current.__dict__.get("_modules", {})
        for name, child in reversed(list(children.items())):
            if child is not None:
                stack.append((f"{prefix}{name}.", child))


def _named(roots: list[Any], table: str) -> list[tuple[str, Any]]:
    found: dict[int, tuple[str, Any]] = {}
    for index, root in enumerate(roots):
        prefix = f"{index}:" if index else ""
        for name, tensor in named_tensors(root, table):
            found.setdefault(id(tensor), (prefix + name, tensor))
    return list(found.values())


def _leaves_below(tensors: list[Any]) -> list[Any]:
    """Return the tensors that backward would give gradients to, in the graph's order."""
    found: list[Any] = []
    stack = [t.grad_fn for t in tensors if t.grad_fn is not None]
    seen: set[Any] = set()
    while stack and len(seen) < 100_000:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None:
            found.append(variable)
        stack.extend(
            below for below, _ in reversed(node.next_functions) if below is not None
        )
    return found


def _find_roots(optimizers: list[Any]) -> list[Any]:
    modules = LIVING.live_modules()
    parents: dict[int, list[Any]] = {}
    holders: dict[int, list[Any]] = {}
    for module in modules:
        for child in module._modules.values():
            if child is not None:
                parents.setdefault(id(child), []).append(module)
        for parameter in module._parameters.values():
            if parameter is not None:
                holders.setdefault(id(parameter), []).append(module)
    roots: dict[int, Any] = {}
    for optimizer in optimizers:
        for parameter in parameters_of(optimizer):
            for holder in holders.get(id(parameter), [])[:1]:
                root = _without_wrappers(_climbed(holder, parents))
                roots.setdefault(id(root), root)
    if not optimizers:
        for module in [
            m for m in (t() for t in LIVING.trained.values()) if m is not None
        ]:
            root = _without_wrappers(_climbed(module, parents))
            roots.setdefault(id(root), root)
    # In order of creation: parameters collected in a set come in another order in each
    # process, and their roots with them.
    places = {id(module): place for place, module in enumerate(modules)}
    return sorted(roots.values(), key=lambda root: places.get(id(root), len(places)))


def _find_replicas() -> list[Any]:
    """Return the DDP wrappers of this process whose buffers are another rank's."""
    return [
        module
        for module in LIVING.live_modules()
        if hasattr(module, "will_sync_module_buffers") and _is_sent_to(module)
    ]


def _is_sent_to(replica: Any) -> bool:
    try:
        return bool(replica._distributed_rank != 0)
    except (AttributeError, ValueError, RuntimeError):
        return False  # its process group is gone


def _keeps_average(module: Any) -> bool:
    """Tell whether a module holds an average beside the model, and says so by its type.

    What trains is only the model in it: the average is known as such.
    """
    if not any(NAMED_AVERAGE.search(kind.__name__) for kind in type(module).__mro__):
        return False
    kept = [[p for _, p in named_tensors(c, "_parameters")] for c in _children(module)]
    return any(each and not any(p.requires_grad for p in each) for each in kept)


def _children(module: Any) -> list[Any]:
    return [child for child in module._modules.values() if child is not None]


def _climbed(module: Any, parents: dict[int, list[Any]]) -> Any:
    seen = {id(module)}
    while True:
        above = [
            p
            for p in parents.get(id(module), [])
            if id(p) not in seen and not _keeps_average(p)
        ]
        if not above:
            return module
        # Of several holders the one that was there first is the program's model; what
        # came later is a view of it (a loss that keeps its model, an exported copy).
        module = above[0]
        seen.add(id(module))


def _without_wrappers(module: Any) -> Any:
    while not any(p is not None for p in module._parameters.values()):
        children = [c for c in module._modules.values() if c is not None]
        if len(children) != 1 or any(b is not None for b in module._buffers.values()):
            return module
        module = children[0]
    return module
