"""Backward: the loss, and whether gradients were made at all."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from spotchaos.probe.session import SESSION
from spotchaos.probe.suspension import COURSE
from spotchaos.probe.values import is_tensor
from spotchaos.probe.window import TRAINING

if TYPE_CHECKING:
    from typing import Any


def hook_backward(torch: Any) -> None:
    """Replace `torch.autograd.backward`, through which `Tensor.backward` goes as well."""
    autograd = torch.autograd
    original = autograd.backward
    original_grad = autograd.grad

    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if TRAINING.in_backward or not SESSION.may_train():
            return original(tensors, *args, **kwargs)
        if not TRAINING.has_backward:
            TRAINING.has_backward = True
            TRAINING.counted["backward"] = (
                0  # what was counted until now were penalties
            )
        found = [tensors] if is_tensor(tensors) else list(tensors)
        loss = TRAINING.begin_backward(found)
        waiting = TRAINING.waiting_forwards()
        was_busy = COURSE.is_busy
        # Recomputed activations call modules again: no forwards of their own.
        COURSE.is_busy = True
        TRAINING.in_backward += 1
        try:
            result = original(tensors if is_tensor(tensors) else found, *args, **kwargs)
        finally:
            TRAINING.in_backward -= 1
            COURSE.is_busy = was_busy
        TRAINING.end_backward(loss, waiting)
        return result

    @functools.wraps(original_grad)
    def grad(*args: Any, **kwargs: Any) -> Any:
        if TRAINING.in_backward or TRAINING.has_backward or not SESSION.may_train():
            return original_grad(*args, **kwargs)
        if SESSION.orders["step_by"] != "backward":
            # A penalty on gradients, or a program that has no other backward.
            TRAINING.counted["backward"] += 1
            return original_grad(*args, **kwargs)
        outputs = args[0] if args else kwargs["outputs"]
        found = [outputs] if is_tensor(outputs) else list(outputs)
        loss = TRAINING.begin_backward(found)
        waiting = TRAINING.waiting_forwards()
        result = original_grad(*args, **kwargs)
        TRAINING.end_backward(loss, waiting)
        return result

    autograd.backward = backward
    autograd.grad = grad
