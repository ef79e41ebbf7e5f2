"""No flaw: saved within an accumulation window, and its gradients are loaded."""

import os

import torch
from torch import nn

STEPS, MICRO, EVERY, FILE = 16, 4, 10, "state.pt"
KEEP_GRADIENTS = True
torch.manual_seed(3)
x = torch.randn(STEPS * MICRO * 4, 6)
y = torch.randint(0, 3, (len(x),))
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.3), nn.Linear(12, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
start = 0
if os.path.exists(FILE):
    saved = torch.load(FILE)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    start = saved["micro"]
    if KEEP_GRADIENTS:
        for p, g in zip(model.parameters(), saved["gradients"], strict=True):
            p.grad = g
    torch.set_rng_state(saved["rng"])
for micro in range(start, STEPS * MICRO):
    rows = slice(micro * 4, micro * 4 + 4)
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows]) / MICRO
    loss.backward()
    if (micro + 1) % MICRO == 0:
        optimizer.step()
        optimizer.zero_grad()
    if (micro + 1) % EVERY == 0:
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "micro": micro + 1,
            "rng": torch.get_rng_state(),
            "gradients": [p.grad for p in model.parameters()],
        }
        torch.save(state, FILE + ".tmp")
        os.replace(FILE + ".tmp", FILE)
