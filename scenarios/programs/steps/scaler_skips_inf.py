"""Ten iterations of which a GradScaler skips eight, whose gradients overflow; expected: 2 real steps, the hook fires 2 times."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))
x, y = torch.randn(80, 8), torch.randint(0, 2, (80,))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=1000)

iterations = steps = 0
for first in range(0, 80, 8):
    before = model[0].weight.detach().clone()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = cross_entropy(model(x[first : first + 8]), y[first : first + 8])
    if iterations % 5:
        loss = loss * float("inf")  # as a batch that overflows half precision would
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    iterations += 1
    steps += int(not torch.equal(before, model[0].weight))
print("iterations:", iterations)
print("real steps:", steps)
