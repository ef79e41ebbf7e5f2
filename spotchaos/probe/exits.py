"""The end of the process: its last state, its exception, its farewell; stacks of a hang."""

from __future__ import annotations

import atexit
import faulthandler
import os
import signal
import sys
from typing import TYPE_CHECKING

from spotchaos.probe.checkpoint_io import SAVES
from spotchaos.probe.paths import is_installed, static_attribute
from spotchaos.probe.record import raised
from spotchaos.probe.sample import KEEPER
from spotchaos.probe.session import SESSION, shield
from spotchaos.probe.structure import LIVING, numel_of
from spotchaos.probe.window import TRAINING

if TYPE_CHECKING:
    from typing import Any

# The harness sends it to a process that hangs; nothing else uses real-time signals.
STACKS_SIGNAL = signal.SIGRTMIN + 10
_finished_in: list[int] = []


def watch_exit() -> None:
    """Have the farewell written however the process ends by itself."""
    atexit.register(finish)
    SESSION.at_promotion.append(_watch_child_exit)


def _watch_child_exit() -> None:
    # Children of multiprocessing leave by `os._exit`, past atexit, after its finalizers.
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, finish, exitpriority=-1000)


def watch_hang() -> None:
    """Have the stacks of all threads written to `PID.stacks` at `STACKS_SIGNAL`."""
    if SESSION.record is None:
        return
    if watch_hang not in SESSION.record.at_loss:
        SESSION.record.at_loss.append(watch_hang)
    path = os.path.join(SESSION.record.folder, f"{os.getpid()}.stacks")
    try:
        descriptor = raised(
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        )
        faulthandler.register(
            STACKS_SIGNAL, file=descriptor, all_threads=True, chain=False
        )
    except (AttributeError, OSError, RuntimeError, ValueError) as error:
        SESSION.trouble("stacks of a hang", error)


@shield
def finish() -> None:
    """Write what is left to say, once."""
    if os.getpid() in _finished_in or SESSION.role != "main":
        KEEPER.drop()
        return
    _finished_in.append(os.getpid())
    TRAINING.complete_batch()
    TRAINING.note_closing()
    SAVES.finish()
    TRAINING.settle()
    if SESSION.steps or TRAINING.counted["backward"]:
        TRAINING.write_join()
        TRAINING.write_finish()
    # What is freed from here on is freed by the interpreter, which is going.
    KEEPER.drop()
    # What a program runs beside itself (`python -m pip list`, a look at the processor)
    # ends as well, and is not the end of the training that a plan means.
    if SESSION.steps or TRAINING.counted["backward"] or SESSION.torch:
        SESSION.site("finish")
    for index, optimizer in LIVING.live_optimizers():
        steps = TRAINING.optimizer_steps.get(index, 0)
        mark_optimizer(index, optimizer, steps=steps)
    SESSION.mark(
        "bye",
        counts={site: count for site, count in SESSION.counts.items() if count},
        steps=SESSION.steps,
        exception=_exception(),
        counted=TRAINING.counted,
        optimizers={str(i): n for i, n in TRAINING.optimizer_steps.items()},
        closings={str(i): n for i, n in TRAINING.closings.items()},
        main_optimizer=TRAINING.main_used,
        **({"modules": _modules()} if SESSION.orders["modules"] else {}),
    )


def mark_optimizer(index: int, optimizer: Any, **more: Any) -> None:
    """Say that an optimizer exists, or more of it at the end."""
    SESSION.mark(
        "optimizer",
        index=index,
        numel=numel_of(optimizer),
        name=type(optimizer).__name__,
        **more,
    )


def _modules() -> list[list[str]]:
    """Return name and file of every imported module, in the order of their import."""
    return [
        [name, static_attribute(module, "__file__") or ""]
        for name, module in list(sys.modules.items())
        if static_attribute(module, "__spec__") is not None
    ]


def _exception() -> dict[str, Any] | None:
    """Return the exception that ended the program; None if it ended without.

    The interpreter leaves it in `sys.last_value` before any `sys.excepthook` runs, ours
    or the program's, so that there is nothing to hook.
    """
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if error is None:
        return None
    place: Any = None
    traceback = getattr(sys, "last_traceback", None) or error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        file = frame.f_code.co_filename
        if place is None or _is_of_program(file):
            place = (file, traceback.tb_lineno)
        traceback = traceback.tb_next
    message = str(error)
    if len(message) > 4000:
        # A launcher quotes its child's traceback, whose last lines say what it was.
        message = f"{message[:1000]}\n...\n{message[-3000:]}"
    return {
        "type": type(error).__name__,
        "message": message,
        "file": place and place[0],
        "line": place and place[1],
    }


def _is_of_program(file: str) -> bool:
    return not (is_installed(file) or "<" in file or "spotchaos/probe/" in file)
