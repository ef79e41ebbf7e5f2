"""A GAN with two optimizers, both saved with both networks and the RNG; expected verdict: held."""

import argparse
import os

import torch
from torch import nn

EPOCHS, BATCH, SAVE_EVERY = 3, 16, 10

parser = argparse.ArgumentParser()
parser.add_argument("--out", default=".")
args = parser.parse_args()
os.makedirs(args.out, exist_ok=True)
path = os.path.join(args.out, "checkpoint.pt")

torch.manual_seed(0)
data = torch.Generator().manual_seed(7)
x = torch.randn(256, 32, generator=data)
y = (x[:, :4].sum(1) > 0).long()
per_epoch = len(x) // BATCH

generator_net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32))
critic = nn.Sequential(
    nn.Linear(32, 64), nn.LeakyReLU(0.2), nn.Dropout(0.2), nn.Linear(64, 1)
)
optimizer_g = torch.optim.Adam(generator_net.parameters(), lr=2e-3, betas=(0.5, 0.999))
optimizer_d = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.999))
parts = {
    "generator": generator_net,
    "critic": critic,
    "optimizer_g": optimizer_g,
    "optimizer_d": optimizer_d,
}
bce = nn.functional.binary_cross_entropy_with_logits

step = 0
if os.path.exists(path):
    state = torch.load(path)
    for name, part in parts.items():
        part.load_state_dict(state[name])
    step = state["step"]
    torch.set_rng_state(state["rng"])
    print("resumed from step", step, flush=True)

for epoch in range(step // per_epoch, EPOCHS):
    generator = torch.Generator().manual_seed(1000 + epoch)
    order = torch.randperm(len(x), generator=generator)
    for position in range(step - epoch * per_epoch, per_epoch):
        rows = order[position * BATCH : (position + 1) * BATCH]
        real = x[rows]
        fake = generator_net(torch.randn(len(rows), 8))
        ones, zeros = torch.ones(len(rows), 1), torch.zeros(len(rows), 1)

        loss_d = bce(critic(real), ones) + bce(critic(fake.detach()), zeros)
        optimizer_d.zero_grad()
        loss_d.backward()
        optimizer_d.step()

        loss_g = bce(critic(fake), ones)
        optimizer_g.zero_grad()
        loss_g.backward()
        optimizer_g.step()

        step += 1
        print("step", step, "loss", loss_d.item(), loss_g.item(), flush=True)
        if step % SAVE_EVERY == 0 or step == EPOCHS * per_epoch:
            state = {name: part.state_dict() for name, part in parts.items()}
            state["step"] = step
            state["rng"] = torch.get_rng_state()
            torch.save(state, path + ".tmp")
            os.replace(path + ".tmp", path)

final = {"generator": generator_net.state_dict(), "critic": critic.state_dict()}
torch.save(final, os.path.join(args.out, "final.pt"))
