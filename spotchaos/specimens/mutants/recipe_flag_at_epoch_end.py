"""One flaw: as in articles, the flag that SIGTERM sets is read at the end of an epoch."""

import os
import signal
import sys
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

PATH = "checkpoint.pt"
should_stop = False


def handle_sigterm(signum, frame):
    global should_stop
    print("SIGTERM received, will save at the end of the epoch")
    should_stop = True


signal.signal(signal.SIGTERM, handle_sigterm)

torch.manual_seed(0)
dataset = TensorDataset(torch.randn(120, 8), torch.randint(0, 2, (120,)))
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


def save_checkpoint(epoch):
    state = {
        "epoch": epoch,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": torch.get_rng_state(),
    }
    torch.save(state, PATH + ".tmp")
    os.replace(PATH + ".tmp", PATH)


start = 0
if os.path.exists(PATH):
    checkpoint = torch.load(PATH)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    torch.set_rng_state(checkpoint["rng"])
    start = checkpoint["epoch"]
for epoch in range(start, 2):
    for first in range(0, len(dataset), 8):
        x, y = dataset[first : first + 8]
        if epoch and 8 <= first // 8 < 12:
            time.sleep(0.4)  # data that come late, so that the grace window is long
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    save_checkpoint(epoch + 1)
    if should_stop:
        sys.exit(143)
