"""Putting the probe together in this process.

Everything of ours is imported here, at once: once the program runs, an import of ours
would find the program's own `spotchaos`, or none.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from spotchaos.probe import file_op_recorder
from spotchaos.probe.checkpoint_io import SAVES
from spotchaos.probe.exits import watch_exit, watch_hang
from spotchaos.probe.files import watch_files
from spotchaos.probe.held import weights_in
from spotchaos.probe.hooks import HOOKS
from spotchaos.probe.imports import Finder
from spotchaos.probe.lines import LINES
from spotchaos.probe.redirect import install
from spotchaos.probe.refusals import Refusals
from spotchaos.probe.sample import KEEPER
from spotchaos.probe.session import SESSION
from spotchaos.probe.structure import LIVING, parameters_of
from spotchaos.probe.window import TRAINING

if TYPE_CHECKING:
    from typing import Any


def begin(orders: str) -> None:
    """Take the orders in the file `orders`, and watch what they say to watch."""
    if not take_orders(orders):
        return
    Finder(HOOKS).install()
    watch_forks()
    watch()


def take_orders(orders: str) -> bool:
    """Read the orders; False if they say to stay out."""
    if not SESSION.begin(orders):
        return False
    SAVES.at_begin = _write_saved_state
    SAVES.at_load = _begin_again
    SAVES.is_beside = _is_beside
    SAVES.weights_in = weights_in
    return True


def watch_forks() -> None:
    """Have forked children start afresh."""
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


def watch() -> None:
    """Watch the end of the process and its files; it has begun."""
    redirect = SESSION.orders["redirect"]
    if redirect:
        # In every process: whoever asks for the machine's metadata asks us.
        install(redirect, ["*"] if SESSION.orders["allow_network"] else [])
    if SESSION.role == "helper":
        return
    watch_exit()
    watch_hang()
    watch_files()
    if SESSION.orders["faults"]:
        Refusals(SESSION.orders["faults"]).install()
    if SESSION.orders["frames"]:
        try:
            LINES.begin(SESSION.orders["frames"])
        except (OSError, ValueError) as error:
            SESSION.trouble("table of lines", error)
    if SESSION.orders["record"] and SESSION.role == "main":
        try:
            file_op_recorder.begin(SESSION.orders["record"])
        except OSError as error:
            SESSION.trouble("recording of file ops", error)
    if SESSION.role == "main":
        SESSION.site("start")


def _is_beside() -> bool:
    """Tell whether another thread or a child of the one that trains asks."""
    if TRAINING.thread is None:
        return SESSION.is_child
    return TRAINING.thread != threading.get_ident()


def _write_saved_state(number: int) -> None:
    TRAINING.note_closing()
    # While a thread of the program's own saves a copy, the one that trains may be in the
    # middle of a step; where nothing has trained yet there is no state to look up.
    if _is_beside():
        return
    if SESSION.steps or TRAINING.counted["backward"] or TRAINING.has_roots():
        TRAINING.search_again()
        TRAINING.write_sample(TRAINING.sampled(), at="save", n=number)
        TRAINING.leave_out_others()


def _begin_again(module: Any) -> None:
    # What others stepped before a resume loads its checkpoint, as to search for a rate on
    # a copy, is undone by it.
    if SESSION.steps or _is_beside():
        return
    trained = {
        id(parameter)
        for index, optimizer in LIVING.live_optimizers()
        if index == TRAINING.main_optimizer()
        for parameter in parameters_of(optimizer)
    }
    if module is None or any(id(p) in trained for p in module.parameters()):
        TRAINING.leave_out_others()


def _before_fork() -> None:
    # A thread of ours would not live on in the child, and newer Pythons warn of threads.
    TRAINING.settle()


def _after_fork() -> None:
    SESSION.become_child()
    KEEPER.drop()
    TRAINING.reset()
    SAVES.reset()
