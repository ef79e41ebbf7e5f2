"""One flaw: after a resume DDP adds up in the order of its first pass."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

TOTAL, BATCH, SAVE_EVERY = 16, 4, 4
LAST = "checkpoints/last.pt"

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)
x = torch.randn(TOTAL * ranks * BATCH, 8)
y = (x[:, 0] > 0).long()

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
parallel = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


def save(step):
    if rank == 0:
        os.makedirs("checkpoints", exist_ok=True)
        state = {
            "step": step,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
        }
        torch.save(state, LAST + ".tmp")
        os.replace(LAST + ".tmp", LAST)
    dist.barrier()


def load():
    if not os.path.exists(LAST):
        return 0
    state = torch.load(LAST)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


def batch_loss(step):
    first = (step * ranks + rank) * BATCH
    return nn.functional.cross_entropy(parallel(x[first:][:BATCH]), y[first:][:BATCH])


start = load()
for step in range(start, TOTAL):
    optimizer.zero_grad()
    loss = batch_loss(step)
    loss.backward()
    optimizer.step()
    if (step + 1) % SAVE_EVERY == 0:
        save(step + 1)
print("done")
parallel = None  # DDP must be gone before its process group is
dist.destroy_process_group()
