"""One flaw: the place in the epoch is counted from the last resume."""

import os

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
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(
    optimizer, T_max=EPOCHS * PER_EPOCH
)


def save(epoch, place):
    os.makedirs("checkpoints", exist_ok=True)
    state = {
        "epoch": epoch,
        "place": place,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "rng": torch.get_rng_state(),
    }
    torch.save(state, LAST + ".tmp")
    os.replace(LAST + ".tmp", LAST)


def load():
    if not os.path.exists(LAST):
        return 0, 0
    state = torch.load(LAST)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
    torch.set_rng_state(state["rng"])
    return state["epoch"], state["place"]


first, done = load()
for epoch in range(first, EPOCHS):
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
    rest = order[done * BATCH :].tolist()
    batches = DataLoader(Subset(data, rest), batch_size=BATCH)
    for place, (inputs, labels) in enumerate(batches, 1):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if place % SAVE_EVERY == 0:
            save(epoch, place)
    done = 0
print("done")
