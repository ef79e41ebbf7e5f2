"""Optimizer steps, by torch's own global hooks: the outermost ones, and no phantoms."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING

from spotchaos.probe.exits import mark_optimizer
from spotchaos.probe.hooks.forward import OWNERS
from spotchaos.probe.session import SESSION
from spotchaos.probe.structure import LIVING
from spotchaos.probe.window import TRAINING

if TYPE_CHECKING:
    from typing import Any

_PHANTOM = "torch/distributed/checkpoint/state_dict.py"
_nested: set[int] = set()  # optimizers that stepped inside the outermost step
_empty: set[int] = set()  # optimizers that step now for their state alone


def hook_optimizer(torch: Any) -> None:
    """Register the hooks, and follow creation and `zero_grad`."""
    module = sys.modules["torch.optim.optimizer"]  # torch.optim hides the name
    kind = module.Optimizer
    # The function that runs the hooks: found on the stack above, the step is an inner one.
    inner = [
        c for c in kind.profile_hook_step.__code__.co_consts if hasattr(c, "co_code")
    ]
    wrappers = frozenset(inner)

    def pre(optimizer: Any, args: Any, kwargs: Any) -> None:
        index = _seen(optimizer)
        if not SESSION.may_train() or _is_inner(wrappers):
            _nested.add(index)
            return
        if _is_empty(optimizer, args, kwargs):
            _empty.add(index)
            return
        _nested.clear()
        TRAINING.begin_step(optimizer, index, has_closure=_has_closure(args, kwargs))

    def post(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not SESSION.may_train() or _is_inner(wrappers):
            return
        index = _seen(optimizer)
        if index in _empty:
            _empty.discard(index)
            return
        nested = set(_nested)
        TRAINING.end_step(
            optimizer, index, has_closure=_has_closure(args, kwargs), nested=nested
        )

    module.register_optimizer_step_pre_hook(pre)
    module.register_optimizer_step_post_hook(post)
    _follow_creation(kind)
    _follow_zero_grad(torch, kind)


def _has_closure(args: Any, kwargs: Any) -> bool:
    # The hooks get the optimizer itself as the first argument.
    return kwargs.get("closure") is not None or (len(args) > 1 and callable(args[1]))


def _is_inner(wrappers: frozenset[Any]) -> bool:
    """Whether another step, or torch's own phantom step, is further up on the stack."""
    frame: Any = sys._getframe(3)
    while frame is not None:
        code = frame.f_code
        if code in wrappers or code.co_filename.endswith(_PHANTOM):
            return True
        frame = frame.f_back
    return False


def _is_empty(optimizer: Any, args: Any, kwargs: Any) -> bool:
    """Whether a step before any backward has gradients that are all zero.

    That is how a program makes the optimizer's state, to load a checkpoint into it.
    """
    if SESSION.steps or TRAINING.has_backward or _has_closure(args, kwargs):
        return False
    found = [p.grad for group in optimizer.param_groups for p in group["params"]]
    gradients = [gradient for gradient in found if gradient is not None]
    try:
        return bool(gradients) and not any(bool(one.any()) for one in gradients)
    except (RuntimeError, NotImplementedError):  # a layout that has no `any`
        return False


def _seen(optimizer: Any) -> int:
    known = len(LIVING.optimizers)
    index = LIVING.see_optimizer(optimizer)
    if len(LIVING.optimizers) > known and SESSION.role == "main":
        mark_optimizer(index, optimizer)
    return index


def _follow_creation(kind: Any) -> None:
    original = kind.__init__
    original_add = kind.add_param_group

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it takes its place
        original(self, *args, **kwargs)
        if "param_groups" in self.__dict__:
            _seen(self)

    @functools.wraps(original_add)
    def add_param_group(self: Any, *args: Any, **kwargs: Any) -> None:
        original_add(self, *args, **kwargs)
        LIVING.version += 1

    kind.__init__ = __init__
    kind.add_param_group = add_param_group


def _follow_zero_grad(torch: Any, kind: Any) -> None:
    original = kind.zero_grad
    original_of_module = torch.nn.Module.zero_grad

    @functools.wraps(original)
    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> None:
        TRAINING.zero_grad({LIVING.see_optimizer(self)})
        original(self, *args, **kwargs)

    @functools.wraps(original_of_module)
    def zero_grad_of_module(self: Any, *args: Any, **kwargs: Any) -> None:
        TRAINING.zero_grad(set(OWNERS.of(self)))
        original_of_module(self, *args, **kwargs)

    kind.zero_grad = zero_grad
    torch.nn.Module.zero_grad = zero_grad_of_module
