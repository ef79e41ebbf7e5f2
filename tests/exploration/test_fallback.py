"""What is done, and said, where no listener for file ops can be installed."""

import pytest

from spotchaos.exploration import explore
from spotchaos.launch.strace import strace_available
from spotchaos.settings import Settings

TRACED, WHY = strace_available()
QUICK = """
import os, torch
from pathlib import Path
torch.manual_seed(0)
net = torch.nn.Linear(4, 2)
opt = torch.optim.SGD(net.parameters(), 0.1)
last, start = Path("last.pt"), 0
if last.exists():
    state = torch.load(last)
    net.load_state_dict(state["net"])
    start = state["step"]
for step in range(start, 4):
    opt.zero_grad()
    net(torch.ones(3, 4) * step).square().mean().backward()
    opt.step()
    torch.save({"net": net.state_dict(), "step": step + 1}, "tmp.pt")
    os.replace("tmp.pt", last)
"""


@pytest.fixture
def refused(monkeypatch):
    """Let the machine have no listener to install."""
    monkeypatch.setattr(
        "spotchaos.baseline.supervisor_available", lambda: (False, "EBUSY: taken")
    )


def explored(tmp_path):
    (tmp_path / "train.py").write_text(QUICK)
    settings = Settings(command=("python", "train.py"), folder=tmp_path, saves=1)
    return explore(settings, lambda event: None)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not TRACED, reason=f"no strace here: {WHY}")
def test_strace_records_instead_and_says_what_it_does_not_see(refused, tmp_path):
    outcome = explored(tmp_path)
    told = outcome.coverage["crash_states"]
    assert told["mechanism"] == "strace"
    assert told["held"] > 5
    assert told["violated"] == 0
    assert any("recorded by strace" in why for why in told["why_not_visited"])
    assert str(outcome.verdict) == "held"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_without_either_recorder_the_verdict_is_unknown(refused, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "spotchaos.exploration.strace_available", lambda: (False, "no strace")
    )
    outcome = explored(tmp_path)
    assert str(outcome.verdict) == "unknown"
    assert "EBUSY: taken" in outcome.trouble
    assert "no strace" in outcome.trouble
