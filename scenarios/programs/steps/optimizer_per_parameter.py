"""Ten rounds of an optimizer per parameter, stepped in backward; expected: 10 real steps, the hook fires 40 times, within backward."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))
x, y = torch.randn(80, 8), torch.randint(0, 2, (80,))
optimizers = {p: torch.optim.AdamW([p], lr=1e-2) for p in model.parameters()}


def step_at_once(p):
    optimizers[p].step()
    optimizers[p].zero_grad()


for p in model.parameters():
    p.register_post_accumulate_grad_hook(step_at_once)

steps = 0
for first in range(0, 80, 8):
    cross_entropy(model(x[first : first + 8]), y[first : first + 8]).backward()
    steps += 1
print("real steps:", steps)
