"""An AveragedModel saved with everything else; expected verdict: held."""

import argparse
import os

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

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
per_epoch = len(x) // BATCH

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95))

step = 0
if os.path.exists(path):
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    average.load_state_dict(state["average"])
    step = state["step"]
    torch.set_rng_state(state["rng"])
    print("resumed from step", step, flush=True)

for epoch in range(step // per_epoch, EPOCHS):
    generator = torch.Generator().manual_seed(1000 + epoch)
    order = torch.randperm(len(x), generator=generator)
    for position in range(step - epoch * per_epoch, per_epoch):
        rows = order[position * BATCH : (position + 1) * BATCH]
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
        step += 1
        print("step", step, "loss", loss.item(), flush=True)
        if step % SAVE_EVERY == 0 or step == EPOCHS * per_epoch:
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "average": average.state_dict(),
                "step": step,
                "rng": torch.get_rng_state(),
            }
            torch.save(state, path + ".tmp")
            os.replace(path + ".tmp", path)

final = {"model": model.state_dict(), "average": average.state_dict()}
torch.save(final, os.path.join(args.out, "final.pt"))
