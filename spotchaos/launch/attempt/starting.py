"""The start of an attempt: its view, its first process, and the program in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spotchaos.clock import Clock, SystemClock
from spotchaos.errors import HarnessError
from spotchaos.launch.attempt.attempt import RunningAttempt
from spotchaos.launch.attempt.spec import FileOrders, make_spec
from spotchaos.launch.isolation.program import Program
from spotchaos.launch.isolation.workspace import View
from spotchaos.launch.zygote.zygote import Warm, ZygoteGoneError


def launch(
    program: Program,
    view: View,
    *,
    number: int,
    orders: Mapping[str, Any],
    command: Sequence[str] | None = None,
    environment: Mapping[str, str] | None = None,
    addresses: Sequence[str] = (),
    hosts: Mapping[str, str] | None = None,
    listen: Sequence[tuple[str, int]] = (),
    files: FileOrders | None = None,
    warm: Warm | None = None,
    clock: Clock | None = None,
) -> RunningAttempt:
    """Start the program in a view, isolated, and return once it has begun.

    Args:
        program: what, where and with what.
        view: what it sees of the machine.
        number: of the attempt within its trial, from 1.
        orders: for the probe (`trace.format.ORDERS`); where it finds us is added.
        command: instead of the program's own.
        environment: variables on top, such as the addresses of fakes.
        addresses: further addresses of the loopback device, such as a cloud's own.
        hosts: names that lead to such addresses.
        listen: where sockets of ours listen inside the attempt's network; they are
            returned in `RunningAttempt.listeners`, in this order. With an allowed
            network they listen on the machine itself.
        files: what a supervisor of file ops is to do; None: there is none.
        warm: the zygote that forks it, and as what; None starts fresh processes.
        clock: for waits; the system's if left out.

    Raises:
        ZygoteGoneError: nothing can be forked; a fresh process may begin all the same.
        HarnessError: the machine refused something, or space is short.
    """
    view.workspace.demand_open()
    view.workspace.demand_space()
    folder = view.attempt_folder(number)
    trace = folder / "trace"
    trace.mkdir()
    running = RunningAttempt(program, view, folder, clock or SystemClock())
    try:
        spec = make_spec(
            program,
            view,
            folder,
            number=number,
            orders=orders,
            command=command,
            environment=environment or {},
            addresses=addresses,
            hosts=hosts or {},
            listen=listen,
            files=files,
        )
        if warm is not None and warm.start.ranks is not None:
            spec["ranks"] = warm.start.ranks
        if program.allow_network:
            running.listen(listen)
        running.begin(spec, warm)
    except HarnessError as error:
        running.close()
        if warm is None or isinstance(error, ZygoteGoneError):
            raise
        raise warm.zygote.give_up(error.message) from None
    except BaseException:
        running.close()
        raise
    return running
