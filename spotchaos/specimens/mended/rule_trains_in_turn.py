"""No flaw: each seed is trained in a process of its own, and leaves what it should."""

import os
import subprocess
import sys

import torch
from torch import nn

SEEDS, PER_SEED, BATCH, SAVE_EVERY = (0, 1), 15, 8, 5


def save(step, model, optimizer, last):
    os.makedirs("checkpoints", exist_ok=True)
    state = {
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": torch.get_rng_state(),
    }
    torch.save(state, last + ".tmp")
    os.replace(last + ".tmp", last)


def train(seed):
    last = f"checkpoints/seed-{seed}.pt"
    torch.manual_seed(seed)
    x = torch.randn(PER_SEED * BATCH, 8)
    y = (x[:, 0] > 0).long()
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    begun = 0
    if os.path.exists(last):
        saved = torch.load(last)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["rng"])
        begun = saved["step"]
    for step in range(begun, PER_SEED):
        rows = slice(step * BATCH, (step + 1) * BATCH)
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % SAVE_EVERY == 0:
            save(step + 1, model, optimizer, last)


if len(sys.argv) > 1:
    train(int(sys.argv[1]))
else:
    for seed in SEEDS:
        subprocess.run([sys.executable, __file__, str(seed)], check=True)
    print("done")
