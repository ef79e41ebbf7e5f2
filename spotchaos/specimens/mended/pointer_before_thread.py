"""No flaw: the pointer moves, and the old one goes, once the thread has written."""

import copy
import glob
import os
import threading
import time

import torch
from torch import nn

TOTAL, PER_EPOCH, BATCH, SAVE_EVERY = 30, 15, 8, 5
LATEST = "checkpoints/latest"
writers = []

torch.manual_seed(0)
x = torch.randn(PER_EPOCH * BATCH, 8)
y = (x[:, 0] > 0).long()

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=TOTAL)


def save(step):
    os.makedirs("checkpoints", exist_ok=True)
    state = {
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "rng": torch.get_rng_state(),
    }
    path = f"checkpoints/step{step}.pt"
    while writers:
        writers.pop().join()
    writers.append(threading.Thread(target=write, args=(copy.deepcopy(state), path)))
    writers[0].start()


def write(state, path):
    time.sleep(0.2)  # stands for a slow disk
    torch.save(state, path + ".tmp")
    os.replace(path + ".tmp", path)
    point(path)


def point(path):
    with open(LATEST + ".tmp", "w") as file:
        file.write(path)
    os.replace(LATEST + ".tmp", LATEST)
    for old in glob.glob("checkpoints/step*.pt"):
        if old != path:
            os.remove(old)


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
while writers:
    writers.pop().join()
print("done")
