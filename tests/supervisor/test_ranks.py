"""Ranks, their loaders' workers and saving threads share one exact order."""

import os
import sys
from pathlib import Path

import pytest

from spotchaos.launch.supervisor.supervisor import supervisor_available
from spotchaos.persistence.crash_states import build
from spotchaos.persistence.materialise import expected, observed
from spotchaos.persistence.rank_cuts import ranks
from spotchaos.persistence.tokens import StateToken

available, reason = supervisor_available()
pytestmark = [
    pytest.mark.skipif(not available, reason=f"no supervisor here: {reason}"),
    pytest.mark.ddp,
    pytest.mark.slow,
]


def test_a_torchrun_job_of_two_ranks_replays_to_its_folder(bench, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0",
        "--local-addr", "127.0.0.1",
        str(Path(__file__).with_name("ranks.py")), str(bench.root),
    ]  # fmt: skip
    status, history = bench.record(command)
    assert os.waitstatus_to_exitcode(status) == 0
    assert ranks(history) == [0, 1]
    last = build(history, StateToken(letter="K", number=history.log.last + 1))
    assert expected(history, last) == observed(bench.root)
    by_rank = {op.path: op.rank for op in history.ops if op.path}
    assert by_rank["0.tmp"] == by_rank["cache-0-3"] == 0
    assert by_rank["1.tmp"] == by_rank["cache-1-3"] == 1
    assert len({op.pid for op in history.ops if op.rank == 0}) > 1
