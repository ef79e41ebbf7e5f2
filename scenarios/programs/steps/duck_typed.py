"""Ten steps of an optimizer that only looks like one; expected: 10 real steps, the hook never fires."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))
x, y = torch.randn(80, 8), torch.randint(0, 2, (80,))


class Momentum:
    def __init__(self, parameters, lr):
        self.parameters, self.lr = list(parameters), lr
        self.velocity = [torch.zeros_like(p) for p in self.parameters]

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None

    @torch.no_grad()
    def step(self):
        for p, v in zip(self.parameters, self.velocity, strict=True):
            v.mul_(0.9).add_(p.grad)
            p.add_(v, alpha=-self.lr)


optimizer = Momentum(model.parameters(), lr=0.1)

steps = 0
for first in range(0, 80, 8):
    loss = cross_entropy(model(x[first : first + 8]), y[first : first + 8])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    steps += 1
print("real steps:", steps)
