"""Starts beyond the plan: as many as are allowed, and no sooner than is said."""

import itertools
import sys

import pytest

from spotchaos.campaign.campaign import run
from spotchaos.config.settings import Settings
from spotchaos.model import Ended
from spotchaos.pytest_support.shared_baselines import SharedBaselines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# Each resume gets one step further before it fails, until it is past step 11.
FAILS_A_WHILE = """
import os, torch
torch.manual_seed(0)
net = torch.nn.Linear(4, 2); opt = torch.optim.SGD(net.parameters(), 0.1)
x, y = torch.randn(80, 4), torch.randn(80, 2)
start = 0
if os.path.exists("last.pt"):
    c = torch.load("last.pt")
    net.load_state_dict(c["net"]); opt.load_state_dict(c["opt"]); start = c["step"]
for step in range(start, 20):
    if start and step == start + 1 and step < 12: raise RuntimeError("not yet")
    loss = (net(x[4 * step : 4 * step + 4]) - y[4 * step : 4 * step + 4]).square().mean()
    opt.zero_grad(); loss.backward(); opt.step()
    if (step + 1) % (1 if start else 5) == 0:
        state = {"net": net.state_dict(), "opt": opt.state_dict(), "step": step + 1}
        torch.save(state, "last.tmp"); os.replace("last.tmp", "last.pt")
"""


@pytest.fixture(scope="module")
def attempts_of(tmp_path_factory):
    """Return the attempts of a trial that is interrupted at step 6."""
    folder = tmp_path_factory.mktemp("program")
    (folder / "train.py").write_text(FAILS_A_WHILE)
    shared = SharedBaselines()

    def attempts(**given):
        settings = Settings(
            command=(sys.executable, "train.py"),
            folder=folder,
            kill_at=("step-end:6",),
            **given,
        )
        outcome = run(settings, lambda event: None, layer=shared.layer)
        ((trial, _),) = outcome.trials
        return trial.attempts

    yield attempts
    shared.close()


@pytest.mark.parametrize(("most", "starts"), [(0, 2), (2, 4)])
def test_a_program_that_fails_is_started_again_as_often_as_is_said(
    attempts_of, most, starts
):
    attempts = attempts_of(requeue=most)
    assert len(attempts) == starts
    assert {attempt.ended for attempt in attempts[1:]} == {Ended.FAILED}


def test_starts_end_with_success_and_keep_their_distance(attempts_of):
    attempts = attempts_of(requeue=20, requeue_delay_s=0.5)
    *others, last = attempts
    assert last.ended is Ended.FINISHED
    assert [attempt.trace.completed for attempt in others] == [6, *[1] * 6]
    began = [attempt.started_at_s for attempt in attempts]
    ended = [a.started_at_s + a.wall_s for a in attempts]
    gaps = [start - end for end, start in zip(ended, began[1:], strict=False)]
    assert min(gaps) >= 0.5
    assert all(early < late for early, late in itertools.pairwise(began))
