"""No flaw: the scheduler is built first, and the optimizer restored last."""

import os

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

TOTAL, PER_EPOCH, BATCH, SAVE_EVERY = 30, 15, 8, 5
WARM_UP, LAST = 5, "checkpoints/last.pt"

torch.manual_seed(0)
x = torch.randn(PER_EPOCH * BATCH, 8)
y = (x[:, 0] > 0).long()

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


def build_scheduler():
    warm_up = LinearLR(optimizer, start_factor=0.1, total_iters=WARM_UP)
    falling = CosineAnnealingLR(optimizer, T_max=TOTAL - WARM_UP)
    return SequentialLR(optimizer, [warm_up, falling], milestones=[WARM_UP])


def save(step):
    os.makedirs("checkpoints", exist_ok=True)
    state = {
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "rng": torch.get_rng_state(),
    }
    torch.save(state, LAST + ".tmp")
    os.replace(LAST + ".tmp", LAST)


def load():
    if not os.path.exists(LAST):
        return 0, build_scheduler()
    state = torch.load(LAST)
    model.load_state_dict(state["model"])
    scheduler = build_scheduler()
    scheduler.load_state_dict(state["scheduler"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["rng"])
    return state["step"], scheduler


start, scheduler = load()
for step in range(start, TOTAL):
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
