"""One flaw: as in articles, the newest file's epoch is trained again, on weights alone."""

import glob
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
dataset = TensorDataset(torch.randn(120, 8), torch.randint(0, 2, (120,)))
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)


def save_checkpoint(epoch, loss):
    os.makedirs("checkpoints", exist_ok=True)
    torch.save(
        {
            "epoch": epoch,
            "model_state_dict": model.state_dict(),
            "optimizer_state_dict": optimizer.state_dict(),
            "loss": loss,
        },
        f"checkpoints/checkpoint_epoch_{epoch}.pt",
    )


def load_latest_checkpoint():
    checkpoints = glob.glob("checkpoints/checkpoint_epoch_*.pt")
    if not checkpoints:
        return 0
    latest = max(checkpoints, key=os.path.getctime)
    checkpoint = torch.load(latest)
    model.load_state_dict(checkpoint["model_state_dict"])
    optimizer.load_state_dict(checkpoint["optimizer_state_dict"])
    return checkpoint["epoch"]


for epoch in range(load_latest_checkpoint(), 4):
    for x, y in DataLoader(dataset, batch_size=8, shuffle=True):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    scheduler.step()
    save_checkpoint(epoch, loss.item())
