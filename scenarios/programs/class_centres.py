"""A loss with trained parameters of its own, the centres of its classes, is saved with the model; expected verdict: held."""

import argparse
import os

import torch
from torch import nn

EPOCHS, BATCH, SAVE_EVERY = 3, 16, 10

parser = argparse.ArgumentParser()
parser.add_argument("--out", default=".")
args = parser.parse_args()
os.makedirs(args.out, exist_ok=True)
path = os.path.join(args.out, "checkpoint.pt")

torch.manual_seed(0)
data = torch.Generator().manual_seed(7)
x = torch.randn(256, 32, generator=data)
y = x[:, :4].argmax(1)
per_epoch = len(x) // BATCH


class CentreLoss(nn.Module):
    """Cross-entropy over the similarity to a centre of each class."""

    def __init__(self):
        super().__init__()
        self.centres = nn.Parameter(torch.randn(4, 8))

    def forward(self, embedded, labels):
        similar = nn.functional.linear(
            nn.functional.normalize(embedded), nn.functional.normalize(self.centres)
        )
        return nn.functional.cross_entropy(8 * similar, labels)


model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
criterion = CentreLoss()
optimizer = torch.optim.AdamW([*model.parameters(), *criterion.parameters()], lr=3e-3)

step = 0
if os.path.exists(path):
    state = torch.load(path)
    model.load_state_dict(state["model"])
    criterion.load_state_dict(state["criterion"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
    print("resumed from step", step, flush=True)

for epoch in range(step // per_epoch, EPOCHS):
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
    for position in range(step - epoch * per_epoch, per_epoch):
        rows = order[position * BATCH : (position + 1) * BATCH]
        loss = criterion(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        print("step", step, "loss", loss.item(), flush=True)
        if step % SAVE_EVERY == 0 or step == EPOCHS * per_epoch:
            state = {
                "model": model.state_dict(),
                "criterion": criterion.state_dict(),
                "optimizer": optimizer.state_dict(),
                "step": step,
            }
            torch.save(state, path + ".tmp")
            os.replace(path + ".tmp", path)

torch.save(model.state_dict(), os.path.join(args.out, "final.pt"))
