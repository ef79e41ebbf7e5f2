"""No flaw: two models, one after the other, each gone when its training ends."""

import os

import torch


def fold(number):
    torch.manual_seed(number)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        g = torch.Generator().manual_seed(step)
        x = torch.randn(8, 4, generator=g)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
        optimizer.step()
    torch.save(model.state_dict(), f"fold{number}.pt")


for number in range(2):
    if not os.path.exists(f"fold{number}.pt"):
        fold(number)
