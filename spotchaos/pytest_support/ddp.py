"""A function on N gloo ranks, each in a process of its own, as torchrun would start them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from spotchaos.clock import SystemClock
from spotchaos.launch.isolation.addresses import free_port
from spotchaos.launch.isolation.environment import THREAD_VARIABLES
from spotchaos.launch.isolation.leaving import LEAVING
from spotchaos.pytest_support import file_and_name

RANK_MAIN = Path(__file__).parent / "rank_main.py"
LAST_LINES = 12
CLOCK = SystemClock()
# Between the time limit and the kill: the ranks write where they wait.
STACKS_S = 2.0


def run_ranks(
    function: Callable[[], object],
    ranks: int = 2,
    *,
    folder: Path,
    timeout_s: float = 60.0,
) -> list[Any]:
    """Call a function on every rank at once; return what each rank's call returned.

    The process group is up when it is called and is taken down after it. One rank that
    fails, or a time limit that passes, fails the test with the last lines of each rank;
    none of them outlives this call.

    Args:
        function: without arguments, at the top of its module. It may return tensors and
            plain values.
        ranks: how many processes, from 1 up.
        folder: the working folder of all ranks.
        timeout_s: for all of them together.
    """
    file, name = file_and_name(function)
    port = free_port()
    running: list[subprocess.Popen[bytes]] = []
    with _ended(running):
        running += (
            _start(file, name, rank, ranks, port, folder) for rank in range(ranks)
        )
        deadline_s = CLOCK.monotonic() + timeout_s
        hung = [
            r for r, process in enumerate(running) if not _ends(process, deadline_s)
        ]
        if hung:
            for process in running:
                process.send_signal(signal.SIGABRT)
            for process in running:
                _ends(process, CLOCK.monotonic() + STACKS_S)
    failed = [r for r, process in enumerate(running) if process.returncode != 0]
    if failed:
        said = f"no end within {timeout_s:g} s" if hung else f"ranks {failed} failed"
        outputs = "\n".join(_last_lines(folder, rank) for rank in range(ranks))
        pytest.fail(f"{said}\n{outputs}", pytrace=False)
    return [_result(folder, rank) for rank in range(ranks)]


def _start(
    file: str, name: str, rank: int, ranks: int, port: int, folder: Path
) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        **dict.fromkeys(THREAD_VARIABLES, "1"),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    with _output(folder, rank).open("wb") as output:
        started = subprocess.Popen(
            [sys.executable, str(RANK_MAIN), file, name, str(_returned(folder, rank))],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    LEAVING.kill(started.pid)
    return started


@contextmanager
def _ended(running: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    """End every rank, and what it started, however the block is left."""
    try:
        yield
    finally:
        for process in running:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _ends(process: subprocess.Popen[bytes], deadline_s: float) -> bool:
    try:
        process.wait(max(0.0, deadline_s - CLOCK.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


def _result(folder: Path, rank: int) -> Any:
    import torch  # the ranks have needed it; the fixtures of others have not

    return torch.load(_returned(folder, rank), weights_only=True)


def _last_lines(folder: Path, rank: int) -> str:
    lines = _output(folder, rank).read_text(errors="replace").splitlines()
    return "\n".join([f"rank {rank}:", *(f"  {line}" for line in lines[-LAST_LINES:])])


def _output(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.log"


def _returned(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.returned"
