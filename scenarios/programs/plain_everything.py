"""A plain loop that saves everything, every RNG and the place in the data too, atomically; expected verdict: held."""

import argparse
import os
import random

import numpy as np
import torch
from torch import nn

EPOCHS, BATCH, SAVE_EVERY = 3, 16, 10


def order_of(epoch, size):
    """The order depends on the epoch alone, so a resumed run can find it again."""
    generator = torch.Generator().manual_seed(1000 + epoch)
    return torch.randperm(size, generator=generator)


def save(state, path):
    """Write beside, flush to the disk, then put the new file in the place of the old."""
    beside = path + ".tmp"
    with open(beside, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


parser = argparse.ArgumentParser()
parser.add_argument("--out", default=".")
args = parser.parse_args()
os.makedirs(args.out, exist_ok=True)
path = os.path.join(args.out, "checkpoint.pt")

random.seed(0)
np.random.seed(0)
torch.manual_seed(0)

data = torch.Generator().manual_seed(7)
x = torch.randn(256, 32, generator=data)
y = (x[:, :4].sum(1) > 0).long() + 2 * (x[:, 4:8].sum(1) > 0).long()

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
steps = EPOCHS * (len(x) // BATCH)
scheduler = torch.optim.lr_scheduler.OneCycleLR(
    optimizer, max_lr=1e-2, total_steps=steps
)

step, epoch, position = 0, 0, 0
if os.path.exists(path):
    state = torch.load(path, weights_only=False)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
    step, epoch, position = state["step"], state["epoch"], state["position"]
    random.setstate(state["random"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    print("resumed from step", step, flush=True)

while epoch < EPOCHS:
    order = order_of(epoch, len(x))
    while position < len(x):
        rows = order[position : position + BATCH]
        inputs = (
            x[rows]
            + torch.from_numpy(np.random.normal(0, 0.1, (len(rows), 32))).float()
        )
        if random.random() < 0.5:
            inputs = inputs * 0.9
        loss = nn.functional.cross_entropy(model(inputs), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # Never past the last rate: OneCycleLR refuses one step more than it has.
        if step + 1 < steps:
            scheduler.step()
        step += 1
        position += BATCH
        print("step", step, "loss", loss.item(), flush=True)
        if step % SAVE_EVERY == 0 or step == steps:
            save(
                {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "scheduler": scheduler.state_dict(),
                    "step": step,
                    "epoch": epoch,
                    "position": position,
                    "random": random.getstate(),
                    "numpy": np.random.get_state(),
                    "torch": torch.get_rng_state(),
                },
                path,
            )
    epoch += 1
    position = 0

save(model.state_dict(), os.path.join(args.out, "final.pt"))
