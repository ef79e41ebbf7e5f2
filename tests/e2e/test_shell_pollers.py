"""A shell loop with curl beside the program asks for the notice, as tutorials write it."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from spotchaos.campaign.campaign import run
from spotchaos.config.settings import Settings
from spotchaos.model import Verdict

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not shutil.which("curl"), reason="no curl here"),
]

PROGRAM = """
import atexit, os, signal, subprocess, sys, time, torch
flag = []
signal.signal(signal.SIGTERM, lambda *a: flag.append(1))
poller = subprocess.Popen(["bash", "poll.sh", str(os.getpid())])
atexit.register(poller.kill)
torch.manual_seed(0)
net = torch.nn.Linear(4, 2)
opt = torch.optim.Adam(net.parameters(), 1e-2)
x = torch.randn(40, 8, 4)
step = 0
if os.path.exists("last.pt"):
    c = torch.load("last.pt")
    net.load_state_dict(c["net"]); opt.load_state_dict(c["opt"]); step = c["step"]
def save():
    state = {"net": net.state_dict(), "opt": opt.state_dict(), "step": step}
    torch.save(state, "last.tmp"); os.replace("last.tmp", "last.pt")
while step < 40:
    opt.zero_grad(); net(x[step]).square().mean().backward(); opt.step()
    step += 1
    time.sleep(0.05)
    if step == 8: save()
    if flag or os.path.exists("stop"): save(); sys.exit(143)
save()
"""
URL = "http://169.254.169.254/latest"
WITHOUT_TOKEN = f"""
while sleep PAUSE; do
  if curl -sf --max-time 2 {URL}/meta-data/spot/instance-action > /dev/null; then
    kill -TERM $1; exit
  fi
done
"""
# By the endpoint that botocore is told; leaves a mark instead of a signal.
WITH_TOKEN = """
base=${AWS_EC2_METADATA_SERVICE_ENDPOINT:-http://169.254.169.254}/latest
ttl="X-aws-ec2-metadata-token-ttl-seconds: 21600"
TOKEN=$(curl -s -X PUT $base/api/token -H "$ttl")
rm -f stop
while sleep PAUSE; do
  CODE=$(curl -s -w '%{http_code}' -o /dev/null -H "X-aws-ec2-metadata-token: $TOKEN" \
    $base/meta-data/spot/instance-action)
  if [[ $CODE -eq 401 ]]; then TOKEN=$(curl -s -X PUT $base/api/token -H "$ttl"); fi
  if [[ $CODE -eq 200 ]]; then touch stop; exit; fi
done
"""


@pytest.mark.parametrize(
    ("poller", "pause", "notice", "netns", "findings"),
    [
        pytest.param(WITHOUT_TOKEN, 0.2, "aws", True, [], id="version-1"),
        pytest.param(
            WITHOUT_TOKEN,
            0.2,
            "aws-token-required",
            False,
            ["notice-ignored"],
            id="no-token",
        ),
        # With five seconds between two requests it asks once, if at all, before the notice.
        pytest.param(WITH_TOKEN, 5, "aws-token-expired", False, [], id="now-and-then"),
    ],
)
def test_a_shell_loop_is_judged_by_what_it_is_told(
    tmp_path, poller, pause, notice, netns, findings
):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "poll.sh").write_text(poller.replace("PAUSE", str(pause)))
    settings = Settings(
        command=("python", "program.py"),
        folder=tmp_path,
        kill_at=("step-end:12",),
        notice=notice,
        netns=netns,
        timeout_s=300.0,
        environment={"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )
    outcome = run(settings, lambda event: None)
    ((trial, judgement),) = outcome.trials
    assert [finding.name for finding in judgement.findings] == findings
    assert outcome.verdict is (Verdict.VIOLATED if findings else Verdict.HELD)
    if not findings:
        assert trial.attempts[0].exit_code == 143
        assert trial.attempts[0].notice.asked_after
