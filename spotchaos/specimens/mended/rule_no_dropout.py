"""Nothing reads the random stream that moves with each epoch and is not saved."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

EPOCHS, PER_EPOCH, BATCH, SAVE_EVERY = 3, 15, 8, 5
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


def save(step):
    os.makedirs("checkpoints", exist_ok=True)
    state = {
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
    }
    torch.save(state, LAST + ".tmp")
    os.replace(LAST + ".tmp", LAST)


def load():
    if not os.path.exists(LAST):
        return 0
    state = torch.load(LAST)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
    return state["step"]


step = load()
for epoch in range(step // PER_EPOCH, EPOCHS):
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
    done = step - epoch * PER_EPOCH
    rest = order[done * BATCH :].tolist()
    torch.rand(1)  # moves the stream; nobody reads it
    for inputs, labels in DataLoader(Subset(data, rest), batch_size=BATCH):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        step += 1
        if step % SAVE_EVERY == 0:
            save(step)
print("done")
