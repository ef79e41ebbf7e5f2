"""Ten steps of LBFGS, each of which calls its closure several times; expected: 10 real steps, the hook fires 10 times, gradients only after it."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))
x, y = torch.randn(80, 8), torch.randint(0, 2, (80,))
model.eval()  # LBFGS wants the same loss from the same weights
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
calls = 0


def closure():
    global calls
    calls += 1
    optimizer.zero_grad()
    loss = cross_entropy(model(x), y)
    loss.backward()
    return loss


steps = 0
for _ in range(10):
    optimizer.step(closure)
    steps += 1
print("real steps:", steps)
print("closure calls:", calls)
