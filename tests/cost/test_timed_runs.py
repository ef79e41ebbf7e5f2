"""A command is measured by the fewest runs that give its times."""

import json
import sys

import pytest
from click.testing import CliRunner

from spotchaos.campaign.timed_runs import measure
from spotchaos.cli import main
from spotchaos.config.settings import Settings
from spotchaos.errors import ProgramError
from spotchaos.events import PhaseStarted

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STEP_S, SAVE_S = 0.05, 0.3
PACED = f"""
import os, time, torch
net = torch.nn.Linear(64, 64); opt = torch.optim.SGD(net.parameters(), 0.1)
start = 0
if os.path.exists("last.pt"):
    saved = torch.load("last.pt")
    net.load_state_dict(saved["net"]); start = saved["step"]
for step in range(start, 24):
    time.sleep({STEP_S})
    opt.zero_grad(); net(torch.ones(1, 64)).sum().backward(); opt.step()
    if (step + 1) % 6 == 0:
        torch.save({{"net": net.state_dict(), "step": step + 1}}, "last.tmp")
        time.sleep({SAVE_S})
        os.replace("last.tmp", "last.pt")
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").write_text(PACED)
    return tmp_path


def test_a_run_and_a_resume_give_all_times(folder):
    phases = []

    def emit(event):
        if isinstance(event, PhaseStarted):
            phases.append(event.name)

    command = (sys.executable, "train.py")
    found = measure(Settings(command=command, folder=folder), emit)
    assert phases == ["baseline 1", "timed run 1"]
    # A busy machine makes everything longer, and nothing shorter.
    assert STEP_S <= found.step_s.p10 < 4 * STEP_S
    assert SAVE_S <= found.save_stall_s.p10 < 4 * SAVE_S
    assert found.save_end_s.p10 <= found.save_stall_s.p90 + 1e-6
    assert (found.save_every.median, found.save_every.n) == (6.0, 3)
    assert found.lost_steps.median == 3
    assert found.save_bytes.median > 64 * 64 * 4
    assert found.cold_start_s.n == found.resumed_start_s.n == 1
    assert not (folder / "last.pt").exists()


def test_a_program_that_fails_by_itself_is_an_error(tmp_path):
    (tmp_path / "train.py").write_text("raise SystemExit(3)")
    settings = Settings(command=(sys.executable, "train.py"), folder=tmp_path)
    with pytest.raises(ProgramError):
        measure(settings, lambda event: None)


def test_the_command_measures_what_stands_after_the_dashes(folder, monkeypatch):
    monkeypatch.chdir(folder)
    words = ["--steps", "20000", "--mtbf", "0.2", "--runs", "20", "--json", "cost.json"]
    done = CliRunner().invoke(main, ["cost", *words, "--", sys.executable, "train.py"])
    assert done.exit_code == 0, done.output
    document = json.loads((folder / "cost.json").read_text())
    assert document["job"]["save_every"] == 6
    assert document["timing"]["step_s"]["n"] > 10
