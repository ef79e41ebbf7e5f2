"""One flaw: as in articles, one temporary name and a rename, and nothing is synced."""

import os

import torch
from torch import nn
from torch.utils.data import TensorDataset

CHECKPOINT = "checkpoint.pt"

torch.manual_seed(0)
dataset = TensorDataset(torch.randn(120, 8), torch.randint(0, 2, (120,)))
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


def save_checkpoint(step):
    """Save atomically, so that an interruption cannot corrupt the checkpoint."""
    temporary = CHECKPOINT + ".tmp"
    state = {
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng_state": torch.get_rng_state(),
    }
    torch.save(state, temporary)
    os.replace(temporary, CHECKPOINT)


def load_checkpoint():
    if not os.path.exists(CHECKPOINT):
        return 0
    state = torch.load(CHECKPOINT)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["rng_state"])
    return state["step"]


for step in range(load_checkpoint(), 30):
    x, y = dataset[step % 15 * 8 : step % 15 * 8 + 8]
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if (step + 1) % 5 == 0:
        save_checkpoint(step + 1)
