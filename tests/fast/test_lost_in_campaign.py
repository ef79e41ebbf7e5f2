"""A zygote that dies or hangs in the middle of a campaign costs no trial, and it is said."""

import os
import signal
import sys

import psutil
import pytest

from spotchaos.campaign.campaign import run
from spotchaos.config.settings import Settings
from spotchaos.events import TrialDone
from spotchaos.report.document import make_document
from spotchaos.report.screen import plain, screen

NO_MEMORY = "no memory"
PROGRAM = """
import os, torch
torch.manual_seed(0)
net = torch.nn.Linear(4, 2)
opt = torch.optim.SGD(net.parameters(), 0.01)
x = torch.randn(32, 4)
start = 0
if os.path.exists("last.pt"):
    c = torch.load("last.pt")
    net.load_state_dict(c["net"]); start = c["step"]
for step in range(start, 8):
    loss = net(x[4 * step:4 * step + 4]).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
    if step % 3 == 2:
        torch.save({"net": net.state_dict(), "step": step + 1}, "last.tmp")
        os.replace("last.tmp", "last.pt")
"""


def the_zygote():
    children = psutil.Process().children()
    (found,) = (p for p in children if "zygote_child" in " ".join(p.cmdline()))
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("how", "said"),
    [
        (signal.SIGKILL, "the zygote is gone"),
        (signal.SIGSTOP, "did not answer within"),
        (NO_MEMORY, "fresh processes did not show what forked ones had"),
    ],
    ids=["killed", "frozen", "out of memory"],
)
def test_every_trial_is_carried_out_without_the_zygote(
    tmp_path, monkeypatch, how, said
):
    monkeypatch.setattr("spotchaos.launch.zygote.zygote.ANSWER_BOUND_S", 3.0)
    (tmp_path / "train.py").write_text(PROGRAM)

    def listener(event):
        if not isinstance(event, TrialDone) or event.trial.number != 1:
            return
        zygote = the_zygote()
        if how == NO_MEMORY:
            zygote.rlimit(psutil.RLIMIT_AS, (1, 1))
        else:
            os.kill(zygote.pid, how)

    settings = Settings(
        command=(sys.executable, "train.py"),
        folder=tmp_path,
        kill_at=("step-end:4", "step-end:5", "save-begin:2"),
        jobs=1,
        no_cache=True,
        no_skip=True,
    )
    outcome = run(settings, listener)
    said_of = [str(judgement.verdict) for _, judgement in outcome.trials]
    paths = [trial.path for trial, _ in outcome.trials]
    assert said_of == ["held", "held", "held"]
    assert paths == ["warm", "cold", "cold"]
    text = " ".join(plain(screen(make_document(outcome))).split())
    assert "Note: attempts were fresh from then on" in text
    assert said in text
