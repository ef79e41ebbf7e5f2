"""One flaw: of what is copied, the optimizer's tensors are still those in training."""

import os

import torch
from torch import nn

torch.manual_seed(5)
STEPS, EVERY, LATER, FILE = 42, 7, 3, "snapshot.pt"
inputs = torch.randn(56, 9)
answers = torch.randint(0, 4, (56,))
model = nn.Sequential(nn.Linear(9, 12), nn.Tanh(), nn.Linear(12, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def copied(state):
    return {k: v.clone() for k, v in state.items()}


def copied_optimizer(state):
    moved = {
        i: copied({k: v for k, v in s.items() if v is not None})
        for i, s in state["state"].items()
    }
    return {"state": moved, "param_groups": [dict(g) for g in state["param_groups"]]}


def write(snapshot):
    torch.save(snapshot, FILE + ".w")
    with open(FILE + ".w", "rb+") as f:
        os.fsync(f.fileno())
    os.replace(FILE + ".w", FILE)


step, pending = 0, None
if os.path.exists(FILE):
    saved = torch.load(FILE)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]

while step < STEPS:
    rows = torch.arange(step * 8, step * 8 + 8) % 56
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs[rows]), answers[rows]).backward()
    optimizer.step()
    step += 1
    if step % EVERY == 0:  # taken now, written when there is time
        pending = {
            "model": copied(model.state_dict()),
            "step": step,
            "optimizer": optimizer.state_dict(),
        }
    if pending is not None and step == pending["step"] + LATER:
        write(pending)
        pending = None
