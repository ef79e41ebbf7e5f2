"""Backward: the loss, and whether gradients were made at all."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from spotchaos.probe.course import COURSE
from spotchaos.probe.session import SESSION
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
        if not TRAINING.in_backward and SESSION.may_train():
            TRAINING.counted["backward"] += 1
        return original_grad(*args, **kwargs)

    autograd.backward = backward
    autograd.grad = grad
