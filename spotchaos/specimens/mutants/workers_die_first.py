"""One flaw: SIGTERM ends the loader's workers, and with them the save on SIGTERM."""

import os
import signal
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

EPOCHS, PER_EPOCH, BATCH, SAVE_EVERY = 2, 15, 8, 5
LAST = "checkpoints/last.pt"

torch.manual_seed(0)
x = torch.randn(PER_EPOCH * BATCH, 8)
y = (x[:, 0] > 0).long()
data = TensorDataset(x, y)

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
generator = torch.Generator()


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


stopped = []
signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
step = load()
for epoch in range(step // PER_EPOCH, EPOCHS):
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
    rest = Subset(data, order[step % PER_EPOCH * BATCH :].tolist())
    for inputs, labels in DataLoader(
        rest,
        batch_size=BATCH,
        num_workers=2,
        generator=generator,
    ):
        if stopped:
            save(step)
            sys.exit(143)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % SAVE_EVERY == 0:
            save(step)
print("done")
