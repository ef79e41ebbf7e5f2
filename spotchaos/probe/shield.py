"""Keeping the probe's own errors from the program, and the program's from the probe.

Our hooks run inside the program, so nothing of ours may break it. But a signal's handler
may run at any moment, also inside our code, and what it raises is the program's: it
passes unchanged.
"""

from __future__ import annotations

import functools
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Trouble = Callable[[str, BaseException], None]


def is_of_handler(error: BaseException) -> bool:
    """Whether `error` was raised by, or below, a signal handler of the program."""
    codes = set()
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        while isinstance(handler, functools.partial):
            handler = handler.func
        code = getattr(handler, "__code__", None)
        if code is None and callable(handler):
            code = getattr(type(handler).__call__, "__code__", None)
        if code is not None:
            codes.add(code)
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in codes:
            return True
        traceback = traceback.tb_next
    return False


def shielded(report: Trouble) -> Callable[[Any], Any]:
    """Return a decorator: what goes wrong in the function is reported, and None returned.

    Args:
        report: takes where it happened and the exception; raises that which is not ours.
    """

    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except Exception as error:
                report(function.__qualname__, error)
                return None

        return guarded

    return decorate
