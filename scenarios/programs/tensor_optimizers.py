"""Tensors without a module, each with an optimizer made once it first steps, in the order of a set; expected verdict: held."""

import argparse
import os

import torch

STEPS, SAVE_EVERY = 30, 5

parser = argparse.ArgumentParser()
parser.add_argument("--out", default=".")
args = parser.parse_args()
os.makedirs(args.out, exist_ok=True)
path = os.path.join(args.out, "checkpoint.pt")

torch.manual_seed(0)
data = torch.Generator().manual_seed(7)
x = torch.randn(64, 4, generator=data)
y = x @ torch.tensor([1.0, -2.0, 0.5, 0.0])

values = {"location": torch.zeros(4), "spread": torch.zeros(4), "noise": torch.zeros(1)}
step, waiting, optimizers = 0, {}, {}
if os.path.exists(path):
    state = torch.load(path)
    values, waiting, step = state["values"], state["optimizers"], state["step"]
    torch.set_rng_state(state["rng"])
    print("resumed from step", step, flush=True)
values = {name: value.requires_grad_() for name, value in values.items()}
names = {value: name for name, value in values.items()}


def update(value):
    name = names[value]
    if name not in optimizers:
        optimizers[name] = torch.optim.Adam([value], lr=0.05)
        if name in waiting:
            optimizers[name].load_state_dict(waiting[name])
    optimizers[name].step()
    optimizers[name].zero_grad()


while step < STEPS:
    noise = torch.randn(4)
    weights = values["location"] + values["spread"].exp() * noise
    error = (x @ weights - y).square().mean()
    loss = error / values["noise"].exp() + values["noise"] - values["spread"].sum() / 64
    loss.sum().backward()
    for value in set(values.values()):
        update(value)
    step += 1
    print("step", step, "loss", loss.item(), flush=True)
    if step % SAVE_EVERY == 0:
        state = {
            "values": {name: value.detach() for name, value in values.items()},
            "optimizers": {name: o.state_dict() for name, o in optimizers.items()},
            "step": step,
            "rng": torch.get_rng_state(),
        }
        torch.save(state, path + ".tmp")
        os.replace(path + ".tmp", path)

final = {name: value.detach() for name, value in values.items()}
torch.save(final, os.path.join(args.out, "final.pt"))
