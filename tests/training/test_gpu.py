"""The core on GPUs: whose GPU a rank takes, and a resume on it, bit for bit."""

import os
import subprocess
import sys

import pytest
import torch

from spotchaos.training.background import SnapshotPool
from spotchaos.training.checkpoint import CheckpointStore
from spotchaos.training.peers import device_of_rank
from spotchaos.training.plain import first_difference
from spotchaos.training.rng import capture_rng, restore_rng

LIMIT_S = 300


@pytest.mark.parametrize(
    ("gpus", "environment", "expected"),
    [
        (0, {}, "cpu"),
        (1, {}, "cuda:0"),
        (2, {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, "cuda:1"),
        (1, {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}, "cpu"),
        (1, {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, "cpu"),
    ],
    ids=["none", "alone", "one-each", "too-few", "too-few-for-the-second"],
)
def test_ranks_take_gpus_only_where_there_is_one_for_each(
    monkeypatch, gpus, environment, expected
):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert str(device_of_rank(environment)) == expected


def test_a_run_on_the_cpu_does_not_start_cuda():
    assert "cuda" not in capture_rng()
    assert not torch.cuda.is_initialized()


def gpus(count):
    found = torch.cuda.device_count()
    return [
        pytest.mark.gpu,
        pytest.mark.skipif(
            found < count, reason=f"needs {count} CUDA devices, here are {found}"
        ),
    ]


def on_a_gpu(test):
    for mark in gpus(1):
        test = mark(test)
    return test


SCRIPT = """
import os, signal, sys
from torch.optim.optimizer import register_optimizer_step_post_hook
from spotchaos.training.command import main

done = []


def count(*args):
    done.append(1)
    if str(len(done)) == os.environ.get("DIE_AFTER"):
        os.kill(os.getpid(), signal.SIGKILL)


register_optimizer_step_post_hook(count)
sys.exit(main(sys.argv[1:]))
"""


def train(folder, out, *, ranks, precision, die_after=None):
    """Run the reference trainer on GPUs; return its exit status."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    start = [sys.executable]
    if ranks > 1:
        start += ["-m", "torch.distributed.run", "--standalone"]
        start += ["--nproc-per-node", str(ranks)]
    options = [
        "--out", str(folder / out), "--steps", "12", "--save-every", "3", "--samples",
        "80", "--watch", "none", "--run-id", "gpu", "--background", "--precision",
        precision, "--ranks", str(ranks),
    ]  # fmt: skip
    given = {} if die_after is None else {"DIE_AFTER": str(die_after)}
    return subprocess.run(
        [*start, str(script), *options], env={**os.environ, **given}, timeout=LIMIT_S
    ).returncode


@pytest.mark.parametrize(
    ("ranks", "precision"),
    [
        pytest.param(1, "fp32", marks=gpus(1)),
        pytest.param(1, "fp16", marks=gpus(1)),
        pytest.param(2, "fp32", marks=gpus(2)),
    ],
    ids=["one", "scaled", "nccl"],
)
def test_a_run_on_gpus_resumes_bit_for_bit(tmp_path, ranks, precision):
    given = {"ranks": ranks, "precision": precision}
    assert train(tmp_path, "whole", **given) == 0
    assert train(tmp_path, "killed", die_after=8, **given) != 0
    assert train(tmp_path, "killed", **given) == 0
    whole, killed = (
        CheckpointStore(tmp_path / out, run_id="gpu").load_latest()
        for out in ("whole", "killed")
    )
    assert (whole["step"], killed["step"]) == (12, 12)
    assert first_difference(whole, killed, "state") is None


@on_a_gpu
def test_the_random_stream_of_a_gpu_is_put_back():
    torch.rand(3, device="cuda")
    kept = capture_rng()
    drawn = torch.rand(5, device="cuda")
    torch.rand(7, device="cuda")
    restore_rng(kept)
    assert torch.equal(torch.rand(5, device="cuda"), drawn)


@on_a_gpu
def test_a_snapshot_of_a_gpu_lies_in_pinned_memory_and_does_not_move_on():
    weights = torch.arange(1 << 20, device="cuda", dtype=torch.float32)
    copy = SnapshotPool().copy({"weights": weights})["weights"]
    weights.zero_()
    assert copy.is_pinned()
    assert torch.equal(copy, torch.arange(1 << 20, dtype=torch.float32))
