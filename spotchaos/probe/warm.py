"""The probe in a process that was forked from a zygote instead of started.

The zygote puts the hooks in place before it imports what the program imports; the forked
child takes its orders where a fresh process takes them at start-up.
"""

from __future__ import annotations

import sys

from spotchaos.probe import session, start
from spotchaos.probe.hooks import HOOKS
from spotchaos.probe.hooks.seeding import seed_numpy, seed_random, settle_torch
from spotchaos.probe.imports import Finder


def prepare() -> None:
    """Put every hook in place; nothing is recorded, since there are no orders."""
    Finder(HOOKS).install()
    start.watch_forks()


def begin(orders: str, command: list[str]) -> None:
    """Take the orders in the file `orders`, as the process of `command`."""
    session.COMMAND[:] = command
    if not start.take_orders(orders):
        return
    for name, hook in (
        ("random", seed_random),
        ("numpy", seed_numpy),
        ("torch", settle_torch),
    ):
        if name in sys.modules:
            hook(sys.modules[name])
    start.watch()
