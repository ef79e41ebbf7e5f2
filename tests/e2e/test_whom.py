"""`--to` on real processes: who is struck, who lives on, and that nobody does at a resume.

A loader's workers, and the ranks of torchrun, are processes that the first one started; a
kill may reach only some.
"""

import itertools
import os
import sys
from pathlib import Path

import pytest

from spotchaos.campaign.campaign import run
from spotchaos.config.settings import Settings
from spotchaos.model import Ended, Verdict
from spotchaos.pytest_support.shared_baselines import SharedBaselines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

WORKERS = """
import os, torch
from torch.utils.data import DataLoader, Subset, TensorDataset
torch.manual_seed(0)
x = torch.randn(48, 4)
data = TensorDataset(x, x[:, :2])
net = torch.nn.Linear(4, 2)
opt = torch.optim.Adam(net.parameters(), 1e-2)
step = 0
if os.path.exists("last.pt"):
    c = torch.load("last.pt")
    net.load_state_dict(c["net"]); opt.load_state_dict(c["opt"]); step = c["step"]
for epoch in range(step // 6, 3):
    order = torch.randperm(48, generator=torch.Generator().manual_seed(epoch))
    left = Subset(data, order[step % 6 * 8 :].tolist())
    for x, y in DataLoader(left, batch_size=8, num_workers=2):
        loss = (net(x) - y).square().mean()
        opt.zero_grad(); loss.backward(); opt.step()
        step += 1
        if step % 4 == 0:
            state = {"net": net.state_dict(), "opt": opt.state_dict(), "step": step}
            torch.save(state, "last.tmp"); os.replace("last.tmp", "last.pt")
"""


# What is left after the kill point takes longer than processes may to follow the first.
RANKS = """
import os, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
ddp = DDP(model)
opt = torch.optim.SGD(ddp.parameters(), 0.1, momentum=0.9)
step = 0
if os.path.exists("last.pt"):
    c = torch.load("last.pt")
    model.load_state_dict(c["model"]); opt.load_state_dict(c["opt"]); step = c["step"]
while step < 12:
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(100 * step + rank))
    opt.zero_grad(); ddp(x).square().mean().backward(); opt.step()
    step += 1
    if step > 6: time.sleep(2.5)
    if step % 4 == 0 and rank == 0:
        state = {"model": model.state_dict(), "opt": opt.state_dict(), "step": step}
        torch.save(state, "last.tmp"); os.replace("last.tmp", "last.pt")
del ddp
dist.destroy_process_group()
"""
TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node", "2")


@pytest.fixture(scope="module")
def shared_baselines():
    shared = SharedBaselines()
    yield shared
    shared.close()


@pytest.fixture(scope="module")
def inject(shared_baselines, tmp_path_factory):
    """Kill those whom `to` names at a step, and return the two attempts of the trial."""

    def injected(script, to, kill_at, *, launcher=("python",), findings=(), **given):
        folder = tmp_path_factory.getbasetemp() / f"program-{abs(hash(script))}"
        folder.mkdir(exist_ok=True)
        (folder / "program.py").write_text(script)
        settings = Settings(
            command=(*launcher, "program.py"),
            folder=folder,
            kill_at=(kill_at,),
            to=to,
            timeout_s=300.0,
            **given,
            environment={"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        )
        outcome = run(settings, lambda event: None, layer=shared_baselines.layer)
        ((trial, judgement),) = outcome.trials
        assert tuple(finding.name for finding in judgement.findings) == findings
        assert outcome.verdict is (Verdict.VIOLATED if findings else Verdict.HELD)
        first, second = trial.attempts
        assert first.reached
        assert first.trouble is None
        assert second.ended is Ended.FINISHED
        return first, second

    return injected


@pytest.mark.parametrize(
    ("to", "status"),
    [
        pytest.param("workers", 1, id="workers"),
        pytest.param("leader", -9, id="leader"),
    ],
)
def test_a_loader_does_not_outlive_its_workers_nor_they_it(inject, to, status):
    """Torch itself sees to both: the resume begins with nobody else alive."""
    first, second = inject(WORKERS, to, "step-end:9")
    assert first.exit_code == status
    assert first.trace.completed == 9
    assert first.survivors == ()
    assert second.trace.completed == 10


@pytest.mark.ddp
@pytest.mark.parametrize("to", ["launcher", "leader", "group"])
def test_ranks_outlive_torchrun_and_not_the_resume(inject, to):
    """Ranks have sessions of their own, so that the leader's group is torchrun alone."""
    first, second = inject(
        RANKS, to, "step-end:6", launcher=TORCHRUN, findings=("orphans",)
    )
    assert first.exit_code == -9
    assert len(first.survivors) == 2
    assert all("program.py" in who for who in first.survivors)
    # They trained on until they were ended, and what they saved by then is resumed from.
    assert 6 <= first.trace.completed <= 12
    assert second.trace.completed in (12 - 4, 12 - 8, 0)


@pytest.mark.ddp
def test_a_machine_that_held_some_of_the_ranks_takes_the_others_with_it(inject):
    first, second = inject(RANKS, "rank:0,1", "step-end:6", launcher=TORCHRUN)
    assert first.exit_code == 1
    assert first.survivors == ()
    assert second.trace.completed == 12 - 4


@pytest.mark.ddp
def test_a_rank_that_is_lost_takes_the_others_with_it(inject):
    """Gloo raises in the peer at once, and torchrun ends with status 1."""
    first, second = inject(RANKS, "rank:1", "step-end:6", launcher=TORCHRUN)
    assert first.exit_code == 1
    assert first.survivors == ()
    assert second.trace.completed == 12 - 4


@pytest.mark.ddp
@pytest.mark.parametrize("order", ["1,0", "0,1"])
def test_ranks_are_lost_one_after_the_other_in_their_order(inject, order):
    """Whoever is left is told by gloo, and may end before its own turn comes."""
    first, second = inject(
        RANKS, f"rank:{order}", "step-end:6", ranks=2, stagger_s=0.05
    )
    told = [sent.target for sent in first.sent]
    assert told == [f"rank:{rank}" for rank in order.split(",")][: len(told)]
    assert told
    assert all(sent.signal == "KILL" for sent in first.sent)
    assert second.trace.completed == 12 - 4


@pytest.mark.ddp
def test_a_rank_that_lags_behind_does_so_in_every_attempt_of_a_trial(inject):
    """The pace of rank 1 changes nothing of what is computed."""
    attempts = inject(RANKS, "all", "save-end:1@0", ranks=2, slow_rank=(1, 0.3))
    for attempt in attempts:
        moments = [mark.t_s for mark in attempt.trace.ranks[1].steps]
        gaps = [late - early for early, late in itertools.pairwise(moments)]
        assert min(gaps) >= 0.3
    first, second = attempts
    assert first.trace.ranks[0].completed == 4
    assert second.trace.completed == 12 - 4


@pytest.mark.ddp
def test_a_launcher_that_restarts_the_ranks_is_a_supervisor(inject, monkeypatch):
    """What it starts anew resumes within the attempt, and nothing is left to resume."""
    # Ranks that share torchrun's store may meet the addresses of those before them.
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    launcher = (*TORCHRUN, "--max-restarts", "3")
    first, second = inject(RANKS, "rank:1", "step-end:6", launcher=launcher)
    assert (first.trace.completed, first.exit_code) == (6, None)
    assert second.is_restart
    assert (second.trace.completed, second.exit_code) == (12 - 4, 0)
