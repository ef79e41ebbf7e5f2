"""A plain loop with dropout that restores everything but the RNG; expected verdict: violated (rng-not-restored)."""

import argparse
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

EPOCHS, BATCH, SAVE_EVERY = 3, 16, 10

parser = argparse.ArgumentParser()
parser.add_argument("--out", default=".")
args = parser.parse_args()
os.makedirs(args.out, exist_ok=True)
path = os.path.join(args.out, "checkpoint.pt")

torch.manual_seed(0)
data = torch.Generator().manual_seed(7)
x = torch.randn(256, 32, generator=data)
y = (x[:, :4].sum(1) > 0).long()
train_set = TensorDataset(x, y)

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=48)

step = 0
if os.path.exists(path):
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
    step = state["step"]
    print("resumed from step", step, flush=True)

per_epoch = len(x) // BATCH
for epoch in range(step // per_epoch, EPOCHS):
    generator = torch.Generator().manual_seed(1000 + epoch)
    order = torch.randperm(len(x), generator=generator).tolist()
    done = step - epoch * per_epoch
    for inputs, labels in DataLoader(
        Subset(train_set, order[done * BATCH :]), batch_size=BATCH
    ):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        step += 1
        print("step", step, "loss", loss.item(), flush=True)
        if step % SAVE_EVERY == 0 or step == EPOCHS * per_epoch:
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
                "step": step,
            }
            torch.save(state, path + ".tmp")
            os.replace(path + ".tmp", path)

torch.save(model.state_dict(), os.path.join(args.out, "final.pt"))
