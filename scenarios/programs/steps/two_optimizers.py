"""Two optimizers, the larger stepped ten times and the smaller five times; expected: 10 real steps, the hook fires 15 times."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))
x, y = torch.randn(80, 8), torch.randint(0, 2, (80,))
body = torch.optim.AdamW(model[0].parameters(), lr=1e-2)
head = torch.optim.SGD(model[3].parameters(), lr=1e-1)

steps = head_steps = 0
for number, first in enumerate(range(0, 80, 8)):
    loss = cross_entropy(model(x[first : first + 8]), y[first : first + 8])
    loss.backward()
    body.step()
    body.zero_grad()
    steps += 1
    if number % 2:  # the head gathers two batches
        head.step()
        head.zero_grad()
        head_steps += 1
print("real steps:", steps)
print("steps of the head:", head_steps)
