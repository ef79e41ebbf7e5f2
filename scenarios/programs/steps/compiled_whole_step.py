"""Ten steps of a compiled function that runs model, backward and optimizer; expected: 10 real steps, the hook fires 10 times."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))
x, y = torch.randn(80, 8), torch.randint(0, 2, (80,))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


@torch.compile(backend="eager")  # needs no compiler
def step(rows, labels):
    loss = cross_entropy(model(rows), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


steps = 0
for first in range(0, 80, 8):
    step(x[first : first + 8], y[first : first + 8])
    steps += 1
print("real steps:", steps)
