"""One flaw: each rank resumes from its own newest checkpoint."""

import os

import torch
import torch.distributed as dist
from torch import nn

TOTAL, BATCH, SAVE_EVERY = 24, 4, 4

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
LAST = f"checkpoints/rank{rank}.pt"

torch.manual_seed(0)
x = torch.randn(TOTAL * ranks * BATCH, 8)
y = (x[:, 0] > 0).long()

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


def save(step):
    os.makedirs("checkpoints", exist_ok=True)
    state = {
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
    }
    if os.path.exists(LAST):
        os.replace(LAST, LAST + ".before")
    torch.save(state, LAST + ".tmp")
    os.replace(LAST + ".tmp", LAST)


def load():
    found = [
        torch.load(path) for path in (LAST, LAST + ".before") if os.path.exists(path)
    ]
    newest = max((state["step"] for state in found), default=0)
    for state in found:
        if state["step"] == newest:
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
    return newest


for step in range(load(), TOTAL):
    first = (step * ranks + rank) * BATCH
    loss = nn.functional.cross_entropy(model(x[first:][:BATCH]), y[first:][:BATCH])
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= ranks
    optimizer.step()
    if (step + 1) % SAVE_EVERY == 0:
        save(step + 1)
print("done")
dist.destroy_process_group()
