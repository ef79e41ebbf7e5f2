"""Loaders: what they hand out, made of which samples, and when an epoch has ended.

Only the iterators of the main process are followed. The base class is that of torchdata's
stateful loader as well.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections import deque
from typing import TYPE_CHECKING

from spotchaos.probe.checkpoint_io import SAVES
from spotchaos.probe.components import LOADERS
from spotchaos.probe.fetched import FETCHED
from spotchaos.probe.session import SESSION
from spotchaos.probe.suspension import COURSE
from spotchaos.probe.window import TRAINING

if TYPE_CHECKING:
    from typing import Any


class _Iteration:
    """One iterator: the samples whose batches are still to come, and whether it trains."""

    __slots__ = ("count", "has_ended", "indices", "progress", "trains")

    def __init__(self) -> None:
        self.indices: deque[Any] = deque()
        # Of training when it last handed out a batch. Forwards alone do not tell: who
        # validates may do so in training mode, with gradients switched on.
        self.progress: tuple[int, ...] | None = None
        self.trains = False
        self.count = 0  # batches handed out
        self.has_ended = False  # and was announced

    def end(self) -> None:
        """Announce the end of its epoch, once."""
        if not self.has_ended:
            self.has_ended = True
            self.notice_training()
            TRAINING.exhausted(trains=self.trains)

    def notice_training(self) -> None:
        if self.progress not in (None, TRAINING.progress()):
            self.trains = True


_iterations: weakref.WeakKeyDictionary[Any, _Iteration] = weakref.WeakKeyDictionary()


def _of(iterator: Any) -> _Iteration:
    found = _iterations.get(iterator)
    if found is None:
        found = _iterations[iterator] = _Iteration()
    return found


# Iterators whose last batch is out. Frameworks that know the length never ask for the
# `StopIteration`: their epoch ends when something else is fetched.
_drained: list[_Iteration] = []


def _end_others(current: _Iteration) -> None:
    for iteration in list(_drained):
        if iteration is not current:
            _drained.remove(iteration)
            iteration.end()


def _length(iterator: Any) -> int | None:
    try:
        return len(iterator)
    except (NotImplementedError, TypeError):
        return None


def hook_loader(torch: Any) -> None:
    """Follow construction of loaders, and the iterators' three methods."""
    module = torch.utils.data.dataloader
    _follow_creation(module.DataLoader)
    kind = module._BaseDataLoaderIter
    original_next, original_index, original_reset = (
        kind.__next__,
        kind._next_index,
        kind._reset,
    )

    @functools.wraps(original_index)
    def _next_index(self: Any) -> Any:
        index = original_index(self)
        _of(self).indices.append(index)
        return index

    @functools.wraps(original_reset)
    def _reset(self: Any, *args: Any, **kwargs: Any) -> Any:
        _iterations[self] = _Iteration()
        return original_reset(self, *args, **kwargs)

    @functools.wraps(original_next)
    def __next__(self: Any) -> Any:  # noqa: N807 - it takes its place
        if not SESSION.may_train():
            return original_next(self)
        SAVES.end()
        iteration = _of(self)
        iteration.notice_training()
        _end_others(iteration)
        was_busy = COURSE.is_busy
        COURSE.is_busy = True
        try:
            data = original_next(self)
        except StopIteration:
            iteration.end()
            raise
        finally:
            COURSE.is_busy = was_busy
        _handed_out(self, iteration, data)
        return data

    kind._next_index, kind._reset, kind.__next__ = _next_index, _reset, __next__


def _handed_out(iterator: Any, iteration: _Iteration, data: Any) -> None:
    iteration.progress = TRAINING.progress()
    iteration.count += 1
    if iteration.count == _length(iterator):
        _drained.append(iteration)
    index = iteration.indices.popleft() if iteration.indices else None
    TRAINING.counted["batch"] += 1
    if SESSION.fingerprint != "light":
        try:
            ids = None
            if getattr(iterator, "_in_order", True):
                ids = _ids(index, getattr(iterator, "_dataset", None))
            if ids is not None:
                FETCHED.add(ids, data)
        except Exception as error:
            SESSION.trouble("samples of a batch", error)
    TRAINING.fetched()
    SESSION.site("fetch")


def _ids(index: Any, data: Any) -> list[str] | None:
    """Return the samples' ids; None if the data set is one without indices.

    The ids of a subset are those of the data set itself: what is left of an epoch is
    often a subset of it, whose own numbers count from 0 at every resume.
    """
    if index is None:
        return None
    numbers = list(index) if isinstance(index, (list, tuple)) else [index]
    if any(number is None for number in numbers):
        return None
    seen = set()
    subset = sys.modules["torch"].utils.data.Subset
    while isinstance(data, subset) and id(data) not in seen:
        seen.add(id(data))
        indices = data.indices
        numbers = [_plain(indices[number]) for number in numbers]
        data = data.dataset
    return [str(number) for number in numbers]


def _plain(number: Any) -> Any:
    """Return a number of an array or tensor as one of Python's."""
    return number.item() if hasattr(number, "item") else number


def _follow_creation(kind: Any) -> None:
    original = kind.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it takes its place
        original(self, *args, **kwargs)
        LOADERS.see(self)

    kind.__init__ = __init__
