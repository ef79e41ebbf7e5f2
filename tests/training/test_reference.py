"""The reference trainer, killed and started again, ends with the bits of a quiet run."""

import os
import re
import signal
import subprocess
import sys

import pytest
import torch

from spotchaos.training.checkpoint import CheckpointStore

LIMIT_S = 100


def start(out, *, ranks, steps=14, extra=()):
    command = [sys.executable, "-m", "spotchaos.training", "--out", str(out)]
    command += ["--ranks", str(ranks), "--steps", str(steps), "--save-every", "3"]
    # A small epoch, so that runs this short cross its end.
    command += ["--samples", str(40 * ranks), *extra]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    )


def finish(process):
    output, _ = process.communicate(timeout=LIMIT_S)
    return process.returncode, output


def kill_after(process, step):
    """Send SIGKILL to all processes once the run has said that `step` is done."""
    try:
        for line in process.stdout:
            if re.match(rf"step {step} ", line):
                break
        else:
            pytest.fail(f"the run ended before step {step}")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=LIMIT_S)
        process.stdout.close()


def final_state(out):
    state = CheckpointStore(out).load_latest()
    assert state is not None
    return state


def assert_same(left, right, where="state"):
    """Compare two states bit for bit, and name the first place where they part."""
    if isinstance(left, torch.Tensor):
        assert left.dtype == right.dtype, where
        assert torch.equal(left, right), where
    elif isinstance(left, dict):
        assert left.keys() == right.keys(), where
        for key in left:
            assert_same(left[key], right[key], f"{where}.{key}")
    elif isinstance(left, list | tuple):
        assert len(left) == len(right), where
        for number, (a, b) in enumerate(zip(left, right, strict=True)):
            assert_same(a, b, f"{where}[{number}]")
    else:
        assert left == right, where


def quiet_and_killed(tmp_path, *, ranks, kills):
    code, _ = finish(start(tmp_path / "quiet", ranks=ranks))
    assert code == 0
    for step in kills:
        kill_after(start(tmp_path / "killed", ranks=ranks), step)
    code, output = finish(start(tmp_path / "killed", ranks=ranks))
    assert code == 0
    return output


@pytest.mark.parametrize(
    ("ranks", "kills"),
    [
        pytest.param(1, [4, 8, 13], id="one-rank-three-kills"),
        pytest.param(
            2, [5, 10], id="two-ranks-twice-in-two-epochs", marks=pytest.mark.ddp
        ),
        pytest.param(3, [4], id="three-ranks-bucket-order", marks=pytest.mark.ddp),
        pytest.param(
            4, [5, 8], id="four-ranks", marks=[pytest.mark.ddp, pytest.mark.slow]
        ),
    ],
)
def test_killed_and_resumed_it_ends_with_the_same_bits(tmp_path, ranks, kills):
    output = quiet_and_killed(tmp_path, ranks=ranks, kills=kills)
    assert "resuming after step" in output
    assert_same(final_state(tmp_path / "quiet"), final_state(tmp_path / "killed"))


def test_a_kill_before_the_first_save_starts_at_step_0(tmp_path):
    output = quiet_and_killed(tmp_path, ranks=1, kills=[2])
    assert "starting at step 0" in output
    assert_same(final_state(tmp_path / "quiet"), final_state(tmp_path / "killed"))


def test_a_finished_run_started_again_does_not_train(tmp_path):
    assert finish(start(tmp_path, ranks=1, steps=4))[0] == 0
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    code, output = finish(start(tmp_path, ranks=1, steps=4))
    assert code == 0
    assert not re.search(r"^step \d+ ", output, re.MULTILINE)
    assert before == {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}


@pytest.mark.ddp
def test_a_signal_to_the_launcher_saves_and_exits_143(tmp_path):
    process = start(tmp_path, ranks=2, steps=4000)
    for line in process.stdout:
        if line.startswith("step 5 "):
            process.send_signal(signal.SIGTERM)
            break
    code, output = finish(process)
    assert code == 143
    stopped = re.search(r"stopping at step (\d+), saved", output)
    assert stopped is not None
    assert CheckpointStore(tmp_path).newest().step == int(stopped[1])


@pytest.mark.ddp
def test_when_one_rank_is_killed_the_launcher_ends_the_other(tmp_path):
    import psutil

    process = start(tmp_path, ranks=2, steps=4000)
    for line in process.stdout:
        if line.startswith("step 2 "):
            break
    ranks = psutil.Process(process.pid).children()
    victim = next(r for r in ranks if r.environ()["RANK"] == "1")
    victim.kill()
    code, _ = finish(process)
    assert code == 137
    assert psutil.wait_procs(ranks, timeout=LIMIT_S)[1] == []


@pytest.mark.ddp
def test_when_the_launcher_is_killed_its_ranks_die(tmp_path):
    import psutil

    process = start(tmp_path, ranks=2, steps=4000)
    for line in process.stdout:
        if line.startswith("step 2 "):
            break
    ranks = psutil.Process(process.pid).children()
    process.kill()
    process.wait(timeout=LIMIT_S)
    process.stdout.close()
    assert psutil.wait_procs(ranks, timeout=LIMIT_S)[1] == []
