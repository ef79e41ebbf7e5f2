"""Each start makes a step of its own, so that there are moments to load into."""

import os

import torch
from torch import nn

TOTAL, PER_EPOCH, BATCH, SAVE_EVERY = 30, 15, 8, 5
LAST = "checkpoints/last.pt"

torch.manual_seed(0)
x = torch.randn(PER_EPOCH * BATCH, 8)
y = (x[:, 0] > 0).long()

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)


def save(step):
    os.makedirs("checkpoints", exist_ok=True)
    moments = [
        (optimizer.state[p]["exp_avg"], optimizer.state[p]["exp_avg_sq"])
        for p in model.parameters()
    ]
    state = {
        "step": step,
        "model": model.state_dict(),
        "moments": moments,
        "rng": torch.get_rng_state(),
    }
    torch.save(state, LAST + ".tmp")
    os.replace(LAST + ".tmp", LAST)


def load():
    if not os.path.exists(LAST):
        return 0
    state = torch.load(LAST)
    train(range(BATCH))
    model.load_state_dict(state["model"])
    for p, (mean, square) in zip(model.parameters(), state["moments"], strict=True):
        optimizer.state[p]["exp_avg"].copy_(mean)
        optimizer.state[p]["exp_avg_sq"].copy_(square)
        optimizer.state[p]["step"].fill_(state["step"])
    torch.set_rng_state(state["rng"])
    return state["step"]


def train(rows):
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


for step in range(load(), TOTAL):
    epoch, position = divmod(step, PER_EPOCH)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
    train(order[position * BATCH :][:BATCH])
    if (step + 1) % SAVE_EVERY == 0:
        save(step + 1)
print("done")
