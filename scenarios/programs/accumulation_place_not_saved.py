"""A loop that steps when enough batches came since the last step, and forgets when that was; expected verdict: violated."""

import argparse
import os

import torch
from torch import nn

EPOCHS, BATCH, ACCUMULATE = 5, 8, 3

parser = argparse.ArgumentParser()
parser.add_argument("--out", default=".")
args = parser.parse_args()
os.makedirs(args.out, exist_ok=True)
path = os.path.join(args.out, "last.pt")

torch.manual_seed(0)
data = torch.Generator().manual_seed(7)
x = torch.randn(240, 12, generator=data)
y = torch.randint(0, 3, (240,), generator=data)
per_epoch = len(x) // BATCH

model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
start, last_step_at = 0, -1
if os.path.exists(path):
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    start = state["epoch"] + 1
    print("resumed at epoch", start, flush=True)

for epoch in range(start, EPOCHS):
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
    optimizer.zero_grad()
    for number, rows in enumerate(order.split(BATCH), start=epoch * per_epoch):
        nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        # After a resume `last_step_at` lies far back: the very first batch makes a step.
        if number - last_step_at >= ACCUMULATE:
            optimizer.step()
            optimizer.zero_grad()
            last_step_at = number
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epoch": epoch,
    }
    torch.save(state, path + ".tmp")
    os.replace(path + ".tmp", path)

torch.save(model.state_dict(), os.path.join(args.out, "final.pt"))
