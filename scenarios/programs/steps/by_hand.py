"""Ten steps that change the weights by hand, with no optimizer; expected: 10 real steps, the hook never fires."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))
x, y = torch.randn(80, 8), torch.randint(0, 2, (80,))

steps = 0
for first in range(0, 80, 8):
    loss = cross_entropy(model(x[first : first + 8]), y[first : first + 8])
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
    steps += 1
print("real steps:", steps)
