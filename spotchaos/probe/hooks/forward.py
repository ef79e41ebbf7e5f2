"""The outermost module call: a training forward, or a block of evaluation.

`Module.__call__` is replaced once, which registers nothing with any module and so leaves
nothing behind in a pickled model. What runs inside the outermost call, inside a loader
(transforms are modules too) or inside backward (recomputed activations) passes by.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from spotchaos.probe.batch import OUTPUTS, Batch, batch_of
from spotchaos.probe.forwards import Forward
from spotchaos.probe.leaves import leaves_of
from spotchaos.probe.session import SESSION
from spotchaos.probe.structure import LIVING, parameters_of
from spotchaos.probe.suspension import COURSE
from spotchaos.probe.values import is_tensor
from spotchaos.probe.window import TRAINING

if TYPE_CHECKING:
    from typing import Any


class _Owners:
    """Which optimizers train which module; worked out again when something changed."""

    def __init__(self) -> None:
        self._key: Any = None
        self._by_parameter: dict[int, set[int]] = {}
        self._by_module: dict[int, frozenset[int]] = {}

    def of(self, module: Any) -> frozenset[int]:
        optimizers = LIVING.live_optimizers()
        groups = tuple(
            (i, *(len(g["params"]) for g in o.param_groups)) for i, o in optimizers
        )
        key = (LIVING.version, groups)
        if key != self._key:
            self._key = key
            self._by_module = {}
            self._by_parameter = {}
            for index, optimizer in optimizers:
                for parameter in parameters_of(optimizer):
                    self._by_parameter.setdefault(id(parameter), set()).add(index)
        found = self._by_module.get(id(module))
        if found is None:
            owners: set[int] = set()
            for parameter in module.parameters():
                owners |= self._by_parameter.get(id(parameter), set())
                if not optimizers and parameter.requires_grad:
                    owners.add(-1)
            found = self._by_module[id(module)] = frozenset(owners)
        return found


OWNERS = _Owners()


def hook_forward(torch: Any) -> None:
    """Replace `Module.__call__`."""
    original = torch.nn.Module.__call__
    is_compiling = torch.compiler.is_compiling
    is_grad_enabled = torch.is_grad_enabled
    # What is done to tensors while a graph is traced would become a part of it.
    is_tracing = torch.jit.is_tracing

    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 - it takes its place
        if COURSE.is_busy or is_compiling() or is_tracing():
            return original(self, *args, **kwargs)
        COURSE.is_busy = True
        try:
            forward = _begun(
                self, args, kwargs, trains=self.training and is_grad_enabled()
            )
            if forward is None:
                return original(self, *args, **kwargs)
            try:
                result = original(self, *args, **kwargs)
            except BaseException:
                TRAINING.forget_forward(forward)
                raise
            _watch_gradients(forward, result)
            return result
        finally:
            COURSE.is_busy = False

    torch.nn.Module.__call__ = __call__


def _begun(module: Any, args: Any, kwargs: Any, *, trains: bool) -> Forward | None:
    """Return the forward that begins; None for a call that trains nothing."""
    try:
        if SESSION.orders["inference"]:
            SESSION.site("forward")
            return None
        owners = OWNERS.of(module)
        if not SESSION.may_train():
            return None
        TRAINING.note_untrained(module, owners)
        if not owners:
            return None
        if trains and -1 in owners:
            LIVING.see_trained(module)
        wanted = trains and SESSION.fingerprint != "light"
        batch = batch_of(args, kwargs) if wanted else Batch()
    except Exception as error:
        SESSION.trouble("forward", error)
        return None
    if not trains:
        TRAINING.evaluation()
        return None
    forward: Forward | None = TRAINING.begin_forward(batch, owners)
    return forward


def _watch_gradients(forward: Forward, result: Any) -> None:
    """Have `forward` know when a gradient comes back through one of its outputs."""

    def arrived(_gradients: Any) -> None:
        forward.backed = True

    try:
        for _, leaf in leaves_of(result):
            if not is_tensor(leaf):
                continue
            forward.is_blind = False
            node = leaf.grad_fn
            if node is not None:
                node.register_prehook(arrived)
                forward.has_node = True
                OUTPUTS.add(leaf)
    except Exception as error:
        SESSION.trouble("output of a forward", error)
