"""What stands in front of a program: who passes a signal on, and what is said if nobody does."""

import os
import sys
from pathlib import Path

import pytest

from spotchaos.campaign.campaign import run
from spotchaos.config.settings import Settings
from spotchaos.model import Verdict

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

# A signal sets a flag that each step looks at. The steps after the kill point last until
# the window has closed.
PROGRAM = """
import os, signal, sys, time, torch
flag = []
signal.signal(signal.SIGTERM, lambda *a: flag.append(1))
torch.manual_seed(0)
net = torch.nn.Linear(4, 2)
opt = torch.optim.Adam(net.parameters(), 1e-2)
x = torch.randn(20, 8, 4)
step = 0
if os.path.exists("last.pt"):
    c = torch.load("last.pt")
    net.load_state_dict(c["net"]); opt.load_state_dict(c["opt"]); step = c["step"]
def save():
    state = {"net": net.state_dict(), "opt": opt.state_dict(), "step": step}
    torch.save(state, "last.tmp"); os.replace("last.tmp", "last.pt")
while step < 20:
    opt.zero_grad(); net(x[step]).square().mean().backward(); opt.step()
    step += 1
    if step % 4 == 0: save()
    if flag: save(); sys.exit(143)
    if step > 6: time.sleep(0.5)
"""
PASSES_ON = """
trap 'kill -TERM $child' TERM
python program.py &
child=$!
wait $child
wait $child
"""
KEEPS = "trap 'echo told' TERM\npython program.py\n"
ENDS = "python program.py\necho done\n"


@pytest.mark.parametrize(
    ("command", "to", "findings"),
    [
        pytest.param(("env", "X=1", "python", "program.py"), "leader", [], id="env"),
        pytest.param(("bash", "-c", PASSES_ON), "leader", [], id="passes-on"),
        pytest.param(("bash", "-c", KEEPS), "leader", ["signal-ignored"], id="keeps"),
        pytest.param(("bash", "-c", ENDS), "launcher", ["orphans"], id="ends"),
        pytest.param(
            ("setsid", "--wait", "python", "program.py"),
            "group",
            ["orphans"],
            id="group-of-its-own",
        ),
    ],
)
def test_a_signal_to_what_stands_in_front_is_passed_on_or_missed(
    tmp_path, command, to, findings
):
    outcome = attempted(tmp_path, command, to)
    ((_, judgement),) = outcome.trials
    assert [finding.name for finding in judgement.findings] == findings
    assert outcome.verdict is (Verdict.VIOLATED if findings else Verdict.HELD)


def test_a_command_that_leaves_its_program_behind_is_told_so(tmp_path):
    outcome = attempted(tmp_path, ("setsid", "python", "program.py"), "leader")
    assert outcome.verdict is Verdict.UNKNOWN
    assert [name for name, _ in outcome.findings] == ["not-observed"]
    assert "what it had started still ran: python program.py" in (outcome.trouble or "")


def attempted(folder, command, to):
    (folder / "program.py").write_text(PROGRAM)
    settings = Settings(
        command=command,
        folder=folder,
        kill_at=("step-end:6",),
        signal="TERM",
        to=to,
        grace_s=4.0,
        timeout_s=300.0,
        environment={"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )
    return run(settings, lambda event: None)
