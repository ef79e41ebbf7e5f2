"""A detector's manner: modules in the checkpoint, a decaying average; expected verdict: held."""

import argparse
import copy
import math
import os

import torch
from torch import nn

EPOCHS, BATCH = 3, 16

parser = argparse.ArgumentParser()
parser.add_argument("--out", default=".")
args = parser.parse_args()
os.makedirs(args.out, exist_ok=True)
last = os.path.join(args.out, "last.pt")


class ModelEMA:
    """An average whose decay grows with the number of its updates."""

    def __init__(self, model, decay=0.99, tau=20.0):
        self.ema = copy.deepcopy(model).eval().requires_grad_(False)
        self.updates = 0
        self.decay, self.tau = decay, tau

    def update(self, model):
        self.updates += 1
        decay = self.decay * (1 - math.exp(-self.updates / self.tau))
        values = model.state_dict()
        for name, kept in self.ema.state_dict().items():
            if kept.dtype.is_floating_point:
                kept.mul_(decay).add_(values[name].detach(), alpha=1 - decay)


torch.manual_seed(0)
data = torch.Generator().manual_seed(7)
images = torch.randn(256, 3, 8, 8, generator=data)
labels = torch.randint(0, 4, (256,), generator=data)
per_epoch = len(images) // BATCH

model = nn.Sequential(
    nn.Conv2d(3, 8, 3, bias=False),
    nn.BatchNorm2d(8),
    nn.SiLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(8, 4),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
ema = ModelEMA(model)

start = 0
if os.path.exists(last):
    checkpoint = torch.load(last, weights_only=False)
    model.load_state_dict(checkpoint["model"].state_dict())
    optimizer.load_state_dict(checkpoint["optimizer"])
    ema.ema.load_state_dict(checkpoint["ema"].state_dict())
    ema.updates = checkpoint["updates"]
    start = checkpoint["epoch"] + 1
    print("resumed at epoch", start, flush=True)

for epoch in range(start, EPOCHS):
    model.train()
    order = torch.randperm(256, generator=torch.Generator().manual_seed(1000 + epoch))
    for rows in order.split(BATCH):
        loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.update(model)
    print("epoch", epoch, "loss", loss.item(), flush=True)
    # The copies of this dictionary live on until the next epoch has ended.
    checkpoint = {
        "epoch": epoch,
        "model": copy.deepcopy(model),
        "ema": copy.deepcopy(ema.ema),
        "updates": ema.updates,
        "optimizer": optimizer.state_dict(),
    }
    torch.save(checkpoint, last + ".tmp")
    os.replace(last + ".tmp", last)

final = {"model": model.state_dict(), "ema": ema.ema.state_dict()}
torch.save(final, os.path.join(args.out, "final.pt"))
