"""Start the ranks of one run on this machine, pass signals on, and end as they end.

Imports no torch: the process that waits costs a few megabytes and no start-up time.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence

from spotchaos.clock import Clock, SystemClock

PASSED_ON = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
)

# How often the launcher looks at its ranks, in seconds.
_LOOK_S = 0.02


def start_ranks(
    command: Sequence[str], *, world_size: int, end_within_s: float = 10.0,
    clock: Clock | None = None,
) -> int:  # fmt: skip
    """Run `command` once for each rank and return the exit status of the run.

    Args:
        command: the program and its arguments, the same for every rank.
        world_size: how many ranks.
        end_within_s: once a rank has failed, the others are ended after so many seconds.
        clock: tells the time; the machine's own by default.

    Returns:
        0 if every rank finished; else the status of the rank that failed first, as a
        shell writes it (128 + N for signal N).
    """
    clock = clock or SystemClock()
    with socket.create_server(("127.0.0.1", 0), backlog=world_size) as meeting:
        ranks: list[subprocess.Popen[bytes]] = []

        received: list[int] = []

        def pass_on(number: int, frame: object) -> None:
            received.append(number)
            for rank in ranks:
                if rank.poll() is None:
                    rank.send_signal(number)

        before = {number: signal.signal(number, pass_on) for number in PASSED_ON}
        try:
            for place in range(world_size):
                ranks.append(_start(command, place, world_size, meeting))
                for early in tuple(received):  # it came before this rank was there
                    ranks[-1].send_signal(early)
            meeting.close()  # rank 0 has its own copy; ours would keep a dead port open
            return _wait(ranks, end_within_s, clock)
        finally:
            for rank in ranks:
                if rank.poll() is None:
                    rank.kill()
                rank.wait()
            for number, handler in before.items():
                signal.signal(number, handler)


def die_with_parent() -> None:
    """Have the kernel kill this rank when its launcher dies, however it dies.

    Linux only; elsewhere a rank notices by its peers, or trains on.

    Source: prctl(2), PR_SET_PDEATHSIG.
    """
    launcher = os.environ.get("SPOTCHAOS_LAUNCHER_PID")
    if launcher is None or not sys.platform.startswith("linux"):
        return
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != int(launcher):  # it died before we asked
        os.kill(os.getpid(), signal.SIGKILL)


def _start(
    command: Sequence[str], rank: int, world_size: int, meeting: socket.socket
) -> subprocess.Popen[bytes]:
    environment = {
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo" if sys.platform.startswith("linux") else "lo0",
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(meeting.getsockname()[1]),
        "SPOTCHAOS_LAUNCHER_PID": str(os.getpid()),
        "SPOTCHAOS_RENDEZVOUS_FD": str(meeting.fileno()),
    }
    return subprocess.Popen(
        list(command), env=environment, pass_fds=[meeting.fileno()] if rank == 0 else []
    )


def _wait(
    ranks: Sequence[subprocess.Popen[bytes]], end_within_s: float, clock: Clock
) -> int:
    first_failure = 0
    give_up_at = float("inf")
    while True:
        codes = [rank.poll() for rank in ranks]
        failed = [code for code in codes if code]
        if failed and not first_failure:
            first_failure = failed[0] if failed[0] > 0 else 128 - failed[0]
            give_up_at = clock.monotonic() + end_within_s
        if all(code is not None for code in codes):
            return first_failure
        if clock.monotonic() >= give_up_at:
            for rank in ranks:
                if rank.poll() is None:
                    rank.kill()
        clock.sleep(_LOOK_S)
