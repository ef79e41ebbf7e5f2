"""A helper process writes; the pointer moves at the next save, once the file is there."""

import io
import os
from concurrent.futures import ProcessPoolExecutor

import torch
from torch import nn

TOTAL, PER_EPOCH, BATCH, SAVE_EVERY = 30, 15, 8, 5
LATEST = "checkpoints/latest.txt"

torch.manual_seed(0)
x = torch.randn(PER_EPOCH * BATCH, 8)
y = (x[:, 0] > 0).long()

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=TOTAL)


def write(content, path):
    with open(path + ".tmp", "wb") as file:
        file.write(content)
    os.replace(path + ".tmp", path)


def save(step, helper):
    os.makedirs("checkpoints", exist_ok=True)
    path = f"checkpoints/step-{step}.pt"
    state = {
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "rng": torch.get_rng_state(),
    }
    # Of tensors the helper would share the memory, which training changes meanwhile.
    snapshot = io.BytesIO()
    torch.save(state, snapshot)
    return path, helper.submit(write, snapshot.getvalue(), path)


def point_at(path, written):
    written.result()
    with open(LATEST + ".tmp", "w") as file:
        file.write(path)
    os.replace(LATEST + ".tmp", LATEST)


def load():
    if not os.path.exists(LATEST):
        return 0
    with open(LATEST) as file:
        state = torch.load(file.read())
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
    torch.set_rng_state(state["rng"])
    return state["step"]


with ProcessPoolExecutor(1) as helper:
    under_way = None
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
            if under_way is not None:
                point_at(*under_way)
            under_way = save(step + 1, helper)
    if under_way is not None:
        point_at(*under_way)
print("done")
