"""Rank 0 saves its buffers alone: DDP sends them to every rank as a forward begins."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

TOTAL, BATCH, SAVE_EVERY = 30, 4, 5
LAST = "checkpoints/last.pt"

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)
x = torch.randn(TOTAL * ranks * BATCH, 8)
y = (x[:, 0] > 0).long()

model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
replica = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


def save(step):
    os.makedirs("checkpoints", exist_ok=True)
    state = {
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
    }
    torch.save(state, LAST + ".tmp")
    os.replace(LAST + ".tmp", LAST)


def load():
    if not os.path.exists(LAST):
        return 0
    state = torch.load(LAST)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


for step in range(load(), TOTAL):
    first = (step * ranks + rank) * BATCH
    loss = nn.functional.cross_entropy(replica(x[first:][:BATCH]), y[first:][:BATCH])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if (step + 1) % SAVE_EVERY == 0 and rank == 0:
        save(step + 1)
print("done")
dist.destroy_process_group()
