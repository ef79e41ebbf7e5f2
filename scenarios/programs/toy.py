"""A toy of 60 steps that saves model, optimizer, RNG and step every 10 steps, atomically; expected verdict: held."""

import argparse
import os

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--out", default=".")
args = parser.parse_args()
os.makedirs(args.out, exist_ok=True)
last = os.path.join(args.out, "last.pt")

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 3))
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
x, y = torch.randn(240, 16), torch.randint(0, 3, (240,))

start = 0
if os.path.exists(last):
    saved = torch.load(last)
    net.load_state_dict(saved["net"])
    opt.load_state_dict(saved["opt"])
    torch.set_rng_state(saved["rng"])
    start = saved["step"]
    print("resumed from step", start, flush=True)

for step in range(start + 1, 61):
    first = 8 * (step - 1) % len(x)
    loss = nn.functional.cross_entropy(net(x[first : first + 8]), y[first : first + 8])
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("step", step, "loss", loss.item(), flush=True)
    if step % 10 == 0:
        saved = {
            "net": net.state_dict(),
            "opt": opt.state_dict(),
            "rng": torch.get_rng_state(),
            "step": step,
        }
        with open(last + ".tmp", "wb") as file:
            torch.save(saved, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(last + ".tmp", last)

torch.save(net.state_dict(), os.path.join(args.out, "final.pt"))
