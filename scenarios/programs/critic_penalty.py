"""A critic with a gradient penalty, three of its steps to one of the generator; expected verdict: held."""

import argparse
import os

import torch
from torch import nn

EPOCHS, BATCH, CRITIC_STEPS = 9, 16, 3

parser = argparse.ArgumentParser()
parser.add_argument("--out", default=".")
args = parser.parse_args()
os.makedirs(args.out, exist_ok=True)
path = os.path.join(args.out, "checkpoint.pt")

torch.manual_seed(0)
real_data = torch.randn(288, 12, generator=torch.Generator().manual_seed(7))

# The generator runs, detached, before each step of the critic: its batch norm moves.
generator_net = nn.Sequential(
    nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 12)
)
critic = nn.Sequential(
    nn.Linear(12, 24), nn.LeakyReLU(0.2), nn.Linear(24, 24), nn.LeakyReLU(0.2),
    nn.Linear(24, 1),
)  # fmt: skip
optimizer_g = torch.optim.Adam(generator_net.parameters(), lr=1e-3, betas=(0.5, 0.9))
optimizer_d = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))


def penalty(real, fake):
    share = torch.rand(len(real), 1)
    between = (share * real + (1 - share) * fake).requires_grad_(True)
    (gradient,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    return ((gradient.norm(2, 1) - 1) ** 2).mean()


start = 0
if os.path.exists(path):
    state = torch.load(path)
    generator_net.load_state_dict(state["generator"])
    critic.load_state_dict(state["critic"])
    optimizer_g.load_state_dict(state["optimizer_g"])
    optimizer_d.load_state_dict(state["optimizer_d"])
    torch.set_rng_state(state["rng"])
    start = state["epoch"] + 1
    print("resumed at epoch", start, flush=True)

for epoch in range(start, EPOCHS):
    for number, rows in enumerate(torch.randperm(288).split(BATCH), start=1):
        real = real_data[rows]
        fake = generator_net(torch.randn(len(real), 6)).detach()
        loss_d = critic(fake).mean() - critic(real).mean() + 10 * penalty(real, fake)
        optimizer_d.zero_grad()
        loss_d.backward()
        optimizer_d.step()
        if number % CRITIC_STEPS == 0:
            loss_g = -critic(generator_net(torch.randn(BATCH, 6))).mean()
            optimizer_g.zero_grad()
            loss_g.backward()
            optimizer_g.step()
    print("epoch", epoch, "loss", loss_d.item(), loss_g.item(), flush=True)
    state = {
        "generator": generator_net.state_dict(),
        "critic": critic.state_dict(),
        "optimizer_g": optimizer_g.state_dict(),
        "optimizer_d": optimizer_d.state_dict(),
        "rng": torch.get_rng_state(),
        "epoch": epoch,
    }
    torch.save(state, path + ".tmp")
    os.replace(path + ".tmp", path)

final = {"generator": generator_net.state_dict(), "critic": critic.state_dict()}
torch.save(final, os.path.join(args.out, "final.pt"))
