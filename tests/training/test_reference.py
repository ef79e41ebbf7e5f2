"""The reference trainer, killed and started again, ends with the bits of a quiet run."""

import os
import re
import signal
import subprocess
import sys

import pytest

from spotchaos.training.checkpoint import CheckpointStore
from spotchaos.training.command import main
from spotchaos.training.plain import first_difference

LIMIT_S = 100
HORIZON = 14


def options(out, ranks, *extra):
    # A small epoch, so that runs this short cross its end.
    return [
        "--out", str(out), "--ranks", str(ranks), "--steps", str(HORIZON),
        "--save-every", "3", "--samples", str(40 * ranks), "--watch", "none", *extra,
    ]  # fmt: skip


def run(forked, out, *, ranks, die_after=None, extra=()):
    """Run the command on forked ranks; return exit codes, and (status, steps) of each."""

    def work():
        from torch.optim.optimizer import register_optimizer_step_post_hook

        done = []

        def count(*args):
            done.append(1)
            if len(done) == die_after:
                os.kill(os.getpid(), signal.SIGKILL)

        register_optimizer_step_post_hook(count)
        return main(options(out, ranks, *extra)), len(done)

    started = [forked.one(work)] if ranks == 1 else forked.ranks(ranks, work)
    return forked.wait(started), [rank.result for rank in started]


@pytest.mark.parametrize(
    ("ranks", "kills"),
    [
        pytest.param(1, [4, 5, 4], id="one-rank-three-kills"),
        pytest.param(1, [2], id="before-the-first-save"),
        pytest.param(
            2, [5, 7], id="two-ranks-twice-in-two-epochs", marks=pytest.mark.ddp
        ),
        pytest.param(3, [4], id="three-ranks-bucket-order", marks=pytest.mark.ddp),
        pytest.param(
            4, [5, 4, 4], id="four-ranks", marks=[pytest.mark.ddp, pytest.mark.slow]
        ),
    ],
)
def test_killed_and_resumed_it_ends_with_the_same_bits(
    forked, final, tmp_path, ranks, kills
):
    codes, answers = run(forked, tmp_path / "quiet", ranks=ranks)
    assert (codes, answers) == ([0] * ranks, [(0, HORIZON)] * ranks)
    for steps in kills:
        codes, _ = run(forked, tmp_path / "killed", ranks=ranks, die_after=steps)
        assert -signal.SIGKILL in codes
    codes, answers = run(forked, tmp_path / "killed", ranks=ranks)
    assert codes == [0] * ranks
    assert all(status == 0 for status, _ in answers)
    quiet, killed = final(tmp_path / "quiet"), final(tmp_path / "killed")
    assert first_difference(quiet, killed, "state") is None


def test_a_finished_run_started_again_does_not_train(forked, tmp_path):
    assert run(forked, tmp_path, ranks=1)[1] == [(0, HORIZON)]
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    assert run(forked, tmp_path, ranks=1)[1] == [(0, 0)]
    assert before == {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}


# --- cold starts: the command as a user types it


def start(out, *, ranks, extra=()):
    command = [sys.executable, "-m", "spotchaos.training", *options(out, ranks, *extra)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    )


def finish(process):
    output, _ = process.communicate(timeout=LIMIT_S)
    return process.returncode, output


@pytest.mark.slow
@pytest.mark.ddp
def test_a_signal_to_the_launcher_saves_and_exits_143(tmp_path):
    process = start(tmp_path, ranks=2, extra=["--steps", "4000"])
    for line in process.stdout:
        if line.startswith("step 5 "):
            process.send_signal(signal.SIGTERM)
            break
    code, output = finish(process)
    assert code == 143
    stopped = re.search(r"stopping at step (\d+), saved", output)
    assert stopped is not None
    assert CheckpointStore(tmp_path).newest().step == int(stopped[1])


@pytest.mark.slow
@pytest.mark.ddp
def test_when_one_rank_is_killed_the_launcher_ends_the_other(tmp_path):
    import psutil

    process = start(tmp_path, ranks=2, extra=["--steps", "4000"])
    for line in process.stdout:
        if line.startswith("step 2 "):
            break
    ranks = psutil.Process(process.pid).children()
    victim = next(r for r in ranks if r.environ()["RANK"] == "1")
    victim.kill()
    code, _ = finish(process)
    assert code == 137
    assert psutil.wait_procs(ranks, timeout=LIMIT_S)[1] == []


@pytest.mark.slow
@pytest.mark.ddp
def test_when_the_launcher_is_killed_its_ranks_die(tmp_path):
    import psutil

    process = start(tmp_path, ranks=2, extra=["--steps", "4000"])
    for line in process.stdout:
        if line.startswith("step 2 "):
            break
    ranks = psutil.Process(process.pid).children()
    process.kill()
    process.wait(timeout=LIMIT_S)
    process.stdout.close()
    assert psutil.wait_procs(ranks, timeout=LIMIT_S)[1] == []
