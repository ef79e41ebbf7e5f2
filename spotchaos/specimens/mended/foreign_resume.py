"""No flaw: the newest checkpoint of this run's own name is taken."""

import glob
import os
import re
import sys

import torch
from torch import nn

TOTAL, PER_EPOCH, BATCH, SAVE_EVERY = 30, 15, 8, 5
RUN = "lr1e-2"

torch.manual_seed(0)
x = torch.randn(PER_EPOCH * BATCH, 8)
y = (x[:, 0] > 0).long()

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=TOTAL)


def save(step):
    state = {
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "rng": torch.get_rng_state(),
    }
    path = f"checkpoints/{RUN}_step{step}.pt"
    torch.save(state, path + ".tmp")
    os.replace(path + ".tmp", path)


def load():
    found = glob.glob(f"checkpoints/{RUN}_step*.pt")
    if "--resume" not in sys.argv or not found:
        return 0
    newest = max(found, key=lambda path: int(re.search(r"step(\d+)", path)[1]))
    state = torch.load(newest)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
    torch.set_rng_state(state["rng"])
    return state["step"]


def leave_other_run():
    """Stand for a run of last week, with another seed, that used the same folder."""
    if os.path.exists("checkpoints"):
        return
    os.makedirs("checkpoints")
    other = nn.Sequential(
        nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2)
    )
    generator = torch.Generator().manual_seed(99)
    for parameter in other.parameters():
        parameter.data.normal_(generator=generator)
    state = {
        "step": 12,
        "model": other.state_dict(),
        "optimizer": torch.optim.AdamW(other.parameters(), lr=3e-2).state_dict(),
        "scheduler": scheduler.state_dict(),
        "rng": generator.get_state(),
    }
    torch.save(state, "checkpoints/lr3e-2_step12.pt")


with torch.random.fork_rng():
    leave_other_run()
for step in range(load(), TOTAL):
    epoch, position = divmod(step, PER_EPOCH)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
    rows = order[position * BATCH :][:BATCH]
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if (step + 1) % SAVE_EVERY == 0:
        save(step + 1)
print("done")
