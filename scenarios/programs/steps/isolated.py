"""Ten steps of a program started with python -I, which reads no PYTHONPATH; expected: 10 real steps, nothing injected (not-observed)."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))
x, y = torch.randn(80, 8), torch.randint(0, 2, (80,))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

steps = 0
for first in range(0, 80, 8):
    loss = cross_entropy(model(x[first : first + 8]), y[first : first + 8])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    steps += 1
print("real steps:", steps)
