"""What a program adopts piece by piece: the plain loop, and checkpoints of older releases."""

import os
import runpy
import shutil
import signal
import sys
from pathlib import Path

import pytest
import torch

import spotchaos.training
from spotchaos.training.checkpoint import CheckpointStore
from spotchaos.training.plain import first_difference

HERE = Path(__file__).parent
LOOP = HERE.parents[1] / "examples" / "plain_loop.py"


def run_loop(forked, out, *, die_after=None, number=signal.SIGKILL):
    """Run the loop in a process, and send a signal right after its nth optimizer step."""

    def work():
        from torch.optim.optimizer import register_optimizer_step_post_hook

        done = []

        def count(*args):
            done.append(1)
            if len(done) == die_after:
                os.kill(os.getpid(), number)

        register_optimizer_step_post_hook(count)
        sys.argv = [LOOP.name, str(out), "23"]
        try:
            runpy.run_path(str(LOOP), run_name="__main__")
        except SystemExit as leaving:
            return leaving.code, len(done)
        return 0, len(done)

    child = forked.one(work)
    return forked.wait([child])[0], child.result


def test_the_page_on_the_core_shows_the_loop_that_is_run_here():
    page = HERE.parents[1] / "docs" / "howto" / "core.md"
    shown = f"```python\n{LOOP.read_text(encoding='utf-8')}```"
    assert shown in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("kills", [[7], [3, 9, 2], [11, 4]])
def test_the_plain_loop_ends_with_the_bits_of_a_quiet_run(
    forked, final, tmp_path, kills
):
    assert run_loop(forked, tmp_path / "quiet") == (0, (0, 23))
    for steps in kills:
        code, _ = run_loop(forked, tmp_path / "hurt", die_after=steps)
        assert code == -signal.SIGKILL
    assert run_loop(forked, tmp_path / "hurt")[0] == 0
    quiet, hurt = final(tmp_path / "quiet"), final(tmp_path / "hurt")
    assert first_difference(quiet, hurt, "state") is None


def test_the_plain_loop_saves_on_a_signal_and_loses_no_step(forked, final, tmp_path):
    assert run_loop(forked, tmp_path / "quiet")[0] == 0
    stopped = run_loop(forked, tmp_path / "hurt", die_after=7, number=signal.SIGTERM)
    assert stopped == (0, (143, 7))
    assert CheckpointStore(tmp_path / "hurt").newest().step == 7
    assert run_loop(forked, tmp_path / "hurt") == (0, (0, 16))
    quiet, hurt = final(tmp_path / "quiet"), final(tmp_path / "hurt")
    assert first_difference(quiet, hurt, "state") is None


def test_a_finished_plain_loop_does_not_train_again(forked, tmp_path):
    run_loop(forked, tmp_path)
    assert run_loop(forked, tmp_path) == (0, (0, 0))


@pytest.mark.parametrize("release", sorted(p.name for p in (HERE / "assets").iterdir()))
def test_a_checkpoint_of_an_earlier_release_goes_on(toy, final, tmp_path, release):
    shutil.copytree(HERE / "assets" / release, tmp_path / "out")
    before = CheckpointStore(tmp_path / "out", run_id="toy").newest()
    assert before.step == 3
    codes, _ = toy(tmp_path / "out", steps=6, save_every=3)
    assert codes == [0]
    assert final(tmp_path / "out")["step"] == 6
    weights = final(tmp_path / "out")["model"]["first.weight"]
    assert torch.isfinite(weights).all()


def test_every_public_name_is_there_and_costs_no_torch_until_it_is_used():
    for name in spotchaos.training.__all__:
        assert getattr(spotchaos.training, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        spotchaos.training.nothing  # noqa: B018
    import subprocess

    code = "import sys, spotchaos.training; print('torch' in sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout == "False\n"
